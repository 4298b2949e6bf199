"""Ranks on GPUs with unlike room agree on the KV cache that all of them have room for; and each
takes its own GPU where it is shown no other.

usage: memory_agreement_test.py OUTRIDER_EMU CHECKPOINT MPIRUN
"""

import re
import subprocess
import sys

PROGRAM, CHECKPOINT, MPIRUN = sys.argv[1:4]
LIMIT_S = 120  # for anything: a hang, not a slow machine
MIB = 1 << 20


def tokens_of_cache(*free_bytes, gpus=lambda rank: {'DEVICES': 2}):
    """That a server says its KV cache holds, of ranks with so much memory each. gpus: a rank's
    OUTRIDER_EMU_…"""
    command = [MPIRUN, '--allow-run-as-root', '--oversubscribe', '--bind-to', 'none']
    for i, free in enumerate(free_bytes):
        command += [':'] if i > 0 else []
        command += ['-np', '1', 'env', f'OUTRIDER_EMU_MEMORY_BYTES={free}',
                    *(f'OUTRIDER_EMU_{name}={value}' for name, value in gpus(i).items()),
                    PROGRAM, 'serve', '--model', CHECKPOINT, '--port', '0', '--device', 'cuda',
                    '--max-sequences', '1024', '--prefill-beside', '16',
                    '--lookahead', 'fixed:4']
    process = subprocess.Popen(
        ['setpriv', '--pdeathsig', 'KILL', 'timeout', str(LIMIT_S), *command],
        stderr=subprocess.PIPE, text=True)
    try:
        said = []
        for line in process.stderr:
            said.append(line)
            held = re.search(r'the KV cache holds (\d+) tokens', line)
            if held:
                return int(held[1])
        raise AssertionError('the server did not come up:\n' + ''.join(said))
    finally:
        process.terminate()
        process.communicate()


def main():
    little, much = 930 * MIB, 950 * MIB
    least = tokens_of_cache(little, little)
    assert 0 < least < tokens_of_cache(much, much)
    assert tokens_of_cache(much, little) == least
    assert tokens_of_cache(little, much) == least
    assert tokens_of_cache(little, little, gpus=lambda rank: {'FIRST_DEVICE': rank}) == least
    print(f'{least} tokens')


if __name__ == '__main__':
    main()

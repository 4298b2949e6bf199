"""Ranks on GPUs with unlike room agree on the KV cache that all of them have room for, and each
takes its own GPU where it is shown no other. One with little room for graphs forgets drafts alone:
NCCL wants collectives in graphs on all ranks or on none, which the emulator checks.

usage: memory_agreement_test.py OUTRIDER_EMU CHECKPOINT MPIRUN

Beside CHECKPOINT there is one that drafts for it.
"""

import json
from pathlib import Path
import re
import subprocess
import sys

PROGRAM, CHECKPOINT, MPIRUN = sys.argv[1:4]
DRAFT = str(Path(CHECKPOINT).with_name('tiny-draft'))
LIMIT_S = 120  # for anything: a hang, not a slow machine
MIB = 1 << 20


def started(ranks, *flags):
    """A server of such ranks. ranks: OUTRIDER_EMU_… of each"""
    command = [MPIRUN, '--allow-run-as-root', '--oversubscribe', '--bind-to', 'none']
    for i, emulated in enumerate(ranks):
        command += [':'] if i > 0 else []
        command += ['-np', '1', 'env',
                    *(f'OUTRIDER_EMU_{name}={value}' for name, value in emulated.items()),
                    PROGRAM, 'serve', '--model', CHECKPOINT, '--port', '0', '--device', 'cuda',
                    '--prefill-beside', '16', '--lookahead', 'fixed:4', *flags]
    return subprocess.Popen(
        ['setpriv', '--pdeathsig', 'KILL', 'timeout', str(LIMIT_S), *command],
        stderr=subprocess.PIPE, text=True)


def number_in(process, pattern):
    """That a line which the server says has where the pattern says."""
    said = []
    for line in process.stderr:
        said.append(line)
        found = re.search(pattern, line)
        if found:
            return int(found[1])
    raise AssertionError('the server did not come up:\n' + ''.join(said))


def end(process):
    process.terminate()
    process.communicate()


def tokens_of_cache(*free_bytes, gpus=lambda rank: {'DEVICES': 2}):
    """That a server says its KV cache holds, of ranks with so much memory each. gpus: a rank's
    OUTRIDER_EMU_…"""
    process = started([{'MEMORY_BYTES': free, **gpus(i)} for i, free in enumerate(free_bytes)],
                      '--max-sequences', '1024')
    try:
        return number_in(process, r'the KV cache holds (\d+) tokens')
    finally:
        end(process)


def answers(graphs=None):
    """Greedy ones of several drafters by turns. graphs: for which rank 1 has room; None: any number.
    None where the server ends for want of that room."""
    limits = {} if graphs is None else {'GRAPHS': graphs}
    process = started([{'DEVICES': 2}, {'DEVICES': 2, **limits}], '--draft', DRAFT,
                      '--kv-cache-tokens', '4096')
    try:
        port = number_in(process, r'listening on 127\.0\.0\.1:(\d+)')
        tokens = []
        for drafter in ('model', 'random') * 2:
            asked = subprocess.run(
                [PROGRAM, 'generate', '--port', str(port), '--input-ids', '7', '--max-tokens', '8',
                 '--ignore-eos', '--temperature', '0', '--drafter', drafter,
                 '--num-speculative-tokens', '1', '--format', 'json'],
                capture_output=True, text=True, timeout=LIMIT_S, check=False)
            if asked.returncode != 0:
                said = process.stderr.read()
                assert limits and 'no room for one CUDA graph' in said, asked.stderr + said
                return None
            tokens.append(json.loads(asked.stdout)['token_ids'])
        return tokens
    finally:
        end(process)


def check_caches():
    little, much = 930 * MIB, 950 * MIB
    least = tokens_of_cache(little, little)
    assert 0 < least < tokens_of_cache(much, much)
    assert tokens_of_cache(much, little) == least
    assert tokens_of_cache(little, much) == least
    assert tokens_of_cache(little, little, gpus=lambda rank: {'FIRST_DEVICE': rank}) == least
    print(f'{least} tokens')


def check_graphs():
    expected = answers()
    assert all(tokens == expected[0] for tokens in expected), expected
    # With the least room that is enough there is a graph for each collective pass, of which there
    # are a few sizes, and one more: the drafters take it from each other.
    for graphs in range(1, 9):
        limited = answers(graphs)
        if limited is not None:
            break
    assert graphs > 1 and limited == expected, (graphs, limited, expected)
    print(f'room for {graphs} graphs')


def main():
    check_caches()
    check_graphs()


if __name__ == '__main__':
    main()

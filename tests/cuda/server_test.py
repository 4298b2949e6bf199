"""Two ranks serve on the CUDA backend and answer over gRPC what two ranks of the CPU do.

usage: server_test.py ON_CUDA ON_CPU CHECKPOINT

ON_CUDA: the program linked with the emulator, or one for GPUs, of which one is enough.
"""

import contextlib
import json
import re
import subprocess
import sys

ON_CUDA, ON_CPU, CHECKPOINT = sys.argv[1:4]
LIMIT_S = 240  # for anything: a hang, not a slow machine
TOKENS = 16


@contextlib.contextmanager
def server(program, *flags):
    """The port of a server of two ranks."""
    process = subprocess.Popen(
        ['setpriv', '--pdeathsig', 'KILL', program, 'launch', '--ranks', '2', '--', 'serve',
         '--model', CHECKPOINT, '--port', '0', '--prefill-beside', '16',
         '--lookahead', 'fixed:4', *flags],
        stderr=subprocess.PIPE, text=True)
    try:
        said = []
        for line in process.stderr:
            said.append(line)
            listening = re.search(r'listening on 127\.0\.0\.1:(\d+)', line)
            if listening:
                break
        else:
            raise AssertionError('the server did not come up:\n' + ''.join(said))
        yield int(listening[1]), ''.join(said)
    finally:
        process.terminate()
        process.communicate(timeout=LIMIT_S)


def answer(*arguments):
    return asked(*arguments)['token_ids']


def asked(port, prompt, k, *flags):
    result = subprocess.run(
        [ON_CPU, 'generate', '--port', str(port), '--input-ids', ','.join(map(str, prompt)),
         '--max-tokens', str(TOKENS), '--ignore-eos', '--num-speculative-tokens', str(k), '--format',
         'json', *flags],
        capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def main():
    prompts = [[7], list(range(40, 60)), [3, 1, 4, 1, 5, 9, 2, 6] * 3]
    long_prompt = list(range(100, 200))
    with server(ON_CPU, '--device', 'cpu') as (port, _):
        expected = [answer(port, prompt, 0, '--temperature', '0') for prompt in prompts]
    with server(ON_CUDA, '--device', 'cuda', '--share-gpus') as (port, said):
        assert re.search(r'rank 0 computes on GPU 0', said), said
        assert int(re.search(r'the KV cache holds (\d+) tokens', said)[1]) > 0, said
        # The two sides round alike but for the last bits, which no tie of these logits is within.
        differing = 0
        for prompt, tokens in zip(prompts, expected):
            plain = answer(port, prompt, 0, '--temperature', '0')
            assert answer(port, prompt, 4, '--temperature', '0') == plain, prompt
            differing += plain != tokens
        sampled = [answer(port, prompts[1], 3, '--temperature', '1', '--seed', '5')
                   for _ in range(2)]
        assert sampled[0] == sampled[1] and len(sampled[0]) == TOKENS, sampled
        exact = asked(port, long_prompt, 0, '--temperature', '0')
    # The prompt by cuBLASLt, which rounds in another order: no tie is within that either.
    with server(ON_CUDA, '--device', 'cuda', '--share-gpus', '--numerics', 'fast') as (port, _):
        fast = asked(port, long_prompt, 3, '--temperature', '0')
        assert fast['token_ids'] == exact['token_ids'], (fast, exact)
        assert len({answered['speculation']['numerics_fingerprint']
                    for answered in (exact, fast)}) == 2, (fast, exact)
    print(f'{differing} of {len(prompts)} greedy answers differ from the CPU backend\'s')
    assert differing == 0


if __name__ == '__main__':
    main()

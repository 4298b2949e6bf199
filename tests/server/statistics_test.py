"""Sampled tokens through a launched server of two ranks: what statistics.cc says of them.

    statistics_test.py PROGRAM CHECKPOINT STATISTICS

PROGRAM is the built `outrider`, CHECKPOINT the directory of tiny-v64, beside which its drafts lie;
STATISTICS the built statistics.cc.
"""

import array
import json
import os
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / 'testing'))
from program import CHECKPOINT, Server  # noqa: E402

STATISTICS = sys.argv[3]


VOCAB_SIZE = 64  # of tiny-v64


def write_counts(path):
    """Counts that differ from token to token; behind each token but every third, of two."""
    counted = [token for token in range(VOCAB_SIZE) if token % 3]
    rows = [0]
    for token in range(VOCAB_SIZE):
        rows.append(rows[-1] + 2 * (token in counted))
    tensors = {'unigram_tokens': range(VOCAB_SIZE),
               'unigram_counts': [1 + token * 7 % 5 for token in range(VOCAB_SIZE)],
               'bigram_rows': rows,
               'bigram_tokens': [t for token in counted for t in (token // 2, VOCAB_SIZE - 1)],
               'bigram_counts': [n for token in counted for n in (2, 1 + token % 4)]}
    header, data = {}, b''
    for name, values in tensors.items():
        begin = len(data)
        data += array.array('i', values).tobytes()
        header[name] = {'dtype': 'I32', 'shape': [len(values)], 'data_offsets': [begin, len(data)]}
    text = json.dumps(header).encode()
    text += b' ' * (-len(text) % 8)
    path.write_bytes(struct.pack('<Q', len(text)) + text + data)


def main():
    with tempfile.TemporaryDirectory() as directory:
        counts = Path(directory) / 'counts.safetensors'
        write_counts(counts)
        ask(['--draft', CHECKPOINT + '-draft', '--draft-head', CHECKPOINT + '-head',
             '--draft-counts', str(counts)])


def ask(drafts):
    with Server('launch', '--ranks', '2', '--', options=drafts) as server:
        assert len(server.ranks) == 2, server.log
        environment = {**os.environ, 'OUTRIDER_TEST_PORT': str(server.port)}
        status = subprocess.run([STATISTICS], env=environment, check=False).returncode
        server.process.terminate()
        assert server.wait_for_end() == 0, server.log
    sys.exit(status)


if __name__ == '__main__':
    main()

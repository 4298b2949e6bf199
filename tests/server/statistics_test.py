"""Sampled tokens through a launched server of two ranks: what statistics.cc says of them.

    statistics_test.py PROGRAM CHECKPOINT STATISTICS

PROGRAM is the built `outrider`, CHECKPOINT the directory of tiny-v64, beside which its drafts lie;
STATISTICS the built statistics.cc.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / 'testing'))
from program import CHECKPOINT, Server  # noqa: E402

STATISTICS = sys.argv[3]


def main():
    with tempfile.TemporaryDirectory() as directory:
        counts = Path(directory) / 'counts.safetensors'
        with counts.open('wb') as file:
            subprocess.run([STATISTICS, '--counts', CHECKPOINT], stdout=file, check=True)
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

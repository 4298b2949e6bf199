"""Sampled tokens through a launched server of two ranks: what statistics.cc says of them.

    statistics_test.py PROGRAM CHECKPOINT STATISTICS

PROGRAM is the built `outrider`, CHECKPOINT the directory of tiny-v64, beside which its drafts lie;
STATISTICS the built statistics.cc.
"""

import os
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / 'testing'))
from program import CHECKPOINT, Server  # noqa: E402

STATISTICS = sys.argv[3]


def main():
    drafts = ['--draft', CHECKPOINT + '-draft', '--draft-head', CHECKPOINT + '-head']
    with Server('launch', '--ranks', '2', '--', options=drafts) as server:
        assert len(server.ranks) == 2, server.log
        environment = {**os.environ, 'OUTRIDER_TEST_PORT': str(server.port)}
        status = subprocess.run([STATISTICS], env=environment, check=False).returncode
        server.process.terminate()
        assert server.wait_for_end() == 0, server.log
    sys.exit(status)


if __name__ == '__main__':
    main()

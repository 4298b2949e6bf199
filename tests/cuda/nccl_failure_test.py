"""What goes wrong inside NCCL ends the job with the reason: a collective that never ends, of which
NCCL says so by itself, a rank that never joins, and links that spoil what they carry.

usage: nccl_failure_test.py OUTRIDER_EMU CHECKPOINT
"""

import os
import re
import subprocess
import sys
import unittest

PROGRAM, CHECKPOINT = sys.argv[1:3]
LIMIT_S = 240  # for anything: a hang, not a slow machine
# Behind the first steps: a pass of the two layers has six.
COLLECTIVE = 200


class Failure(unittest.TestCase):
    def served_until(self, rank, collective):
        """Asks for a long answer while `rank` fails. Returns status and errors of asking, of serving."""
        env = dict(os.environ, OUTRIDER_EMU_NCCL_FAIL_AT=str(collective),
                   OUTRIDER_EMU_NCCL_FAIL_RANK=str(rank))
        process = subprocess.Popen(
            ['setpriv', '--pdeathsig', 'KILL', PROGRAM, 'launch', '--ranks', '2', '--no-restart',
             '--', 'serve', '--model', CHECKPOINT, '--port', '0', '--prefill-beside', '16',
             '--lookahead', 'fixed:4', '--device', 'cuda', '--share-gpus'],
            stderr=subprocess.PIPE, text=True, env=env)
        self.addCleanup(process.stderr.close)
        self.addCleanup(process.kill)
        for line in process.stderr:
            listening = re.search(r'listening on 127\.0\.0\.1:(\d+)', line)
            if listening:
                break
        asked = subprocess.run(
            [PROGRAM, 'generate', '--port', listening[1], '--input-ids', '1,2,3', '--ignore-eos',
             '--max-tokens', '1000', '--num-speculative-tokens', '0', '--temperature', '0',
             '--format', 'json'],
            capture_output=True, text=True, timeout=LIMIT_S, check=False)
        said = process.communicate(timeout=LIMIT_S)[1]
        return asked, process.returncode, said

    def test_of_rank_0(self):
        asked, status, said = self.served_until(0, COLLECTIVE)
        self.assertNotEqual(asked.returncode, 0)
        self.assertRegex(asked.stderr, 'UNAVAILABLE.*rank 0 is lost: NCCL: remote process exited')
        self.assertEqual(status, 1)
        self.assertRegex(said, '(?m)^outrider: .*rank 0 is lost: NCCL: remote process exited')

    def test_of_another_rank(self):
        asked, status, said = self.served_until(1, COLLECTIVE)
        self.assertNotEqual(asked.returncode, 0)
        self.assertRegex(asked.stderr, 'UNAVAILABLE.*rank 1 is lost')
        self.assertEqual(status, 1)
        self.assertRegex(said, '(?m)^outrider: rank 1: rank 1 is lost: NCCL: remote process exited')


class Start(unittest.TestCase):
    def test_links_that_spoil_what_they_carry(self):
        """Each exchange of the trial, of one number a rank and of many."""
        pair = ['ncclAllGather', 'ncclBroadcast', 'ncclAllReduce']
        for ranks, at, call, numbers in (
                *((2, at, call, 1) for at, call in enumerate(pair, 1)),
                *((2, at, call, 1 << 18) for at, call in enumerate(pair, 4)),
                (3, 3, 'ncclAlltoAll', 1), (3, 6, 'ncclAlltoAll', 1 << 18)):
            with self.subTest(ranks=ranks, call=call, numbers=numbers):
                said = subprocess.run(
                    ['setpriv', '--pdeathsig', 'KILL', PROGRAM, 'launch', '--ranks', str(ranks),
                     '--', 'serve', '--model', CHECKPOINT, '--port', '0', '--device', 'cuda',
                     '--share-gpus'], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                    timeout=LIMIT_S, check=False,
                    env=os.environ | {'OUTRIDER_EMU_NCCL_SPOIL_AT': str(at)})
                self.assertEqual(said.returncode, 1, said.stderr)
                self.assertRegex(said.stderr, rf'(?m)^outrider: .*{call} of {4 * ranks * numbers} '
                                              rf'bytes over {ranks} ranks brought [0-9.]+ to rank '
                                              r'\d in element \d+; expected \d')
                self.assertNotIn('listening', said.stderr)

    def test_a_rank_that_never_joins_and_links_that_lose_the_first_bytes(self):
        hung = {'OUTRIDER_EMU_NCCL_HANG_RANK': '1'}
        lost = {'OUTRIDER_EMU_NCCL_FAIL_AT': '1', 'OUTRIDER_EMU_NCCL_FAIL_RANK': '1'}
        # Each takes as long as ranks may take to join: at once.
        starts = [subprocess.Popen(
            ['setpriv', '--pdeathsig', 'KILL', PROGRAM, 'launch', '--ranks', '2', '--', 'serve',
             '--model', CHECKPOINT, '--port', '0', '--device', 'cuda', '--share-gpus'],
            stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            env=os.environ | failure) for failure in (hung, lost)]
        for start in starts:
            self.addCleanup(start.stderr.close)
            self.addCleanup(start.kill)
        said = [start.communicate(timeout=LIMIT_S)[1] for start in starts]
        for start, of_start in zip(starts, said):
            self.assertEqual(start.returncode, 1, of_start)
            # Ranks that have joined wait for the others as they try out what they share.
            self.assertRegex(of_start, '(?m)^outrider: .*no rank has joined the communicator for '
                                       r'60\.\d s')
            self.assertNotIn('listening', of_start)


if __name__ == '__main__':
    unittest.main(argv=sys.argv[:1])

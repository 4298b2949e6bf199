"""A job whose ranks disagree ends, every call hears why, and it starts again; and what ends a rank
is told whatever becomes of it then.

    disagreement_test.py PROGRAM CHECKPOINT LOAD_CLIENT

PROGRAM is an `outrider` with straying_follower.cc: its ranks but 0 stray at step 1000 of each start.
"""

import sys
import unittest

from job import INTERNAL, Job, Load, answer_of

STREAMS = 4
MAX_TOKENS = 1900  # of each stream, of which a step makes one


class Disagreement(unittest.TestCase):
    def hears_of_it(self, ranks, who):
        with Job(ranks=ranks, serve=['--lookahead', 'fixed:0']) as job:
            expected = answer_of(job)[1]
            watch = job.watch_ranks()
            with Load(job, STREAMS, MAX_TOKENS) as load:
                load.wait_for('running')
                failed = load.events('failed')
                watch.all_gone()
            self.assertEqual(len(failed), STREAMS)
            for _, what in failed:
                self.assertRegex(what, f'^{INTERNAL} step 1000: .* differ from rank 0.s on {who}$')
            self.assertEqual(answer_of(job)[1], expected)
            log = '\n'.join(job.log.lines)
            self.assertRegex(log, 'outrider: the job has ended: step 1000: .*starting it again')

    def test_every_call_hears_of_it_and_the_job_starts_again(self):
        for ranks, who in ((2, 'rank 1'), (3, 'rank 1, rank 2'), (2, 'rank 1')):
            with self.subTest(ranks=ranks):
                self.hears_of_it(ranks, who)


class Told(unittest.TestCase):
    """Before the rank is unwound, which here never ends."""

    def said(self, **env):
        with Job(launch=['--no-restart'], serve=['--lookahead', 'fixed:0'],
                 env={'OUTRIDER_STRAY_HANGS': '1', **env}) as job:
            with Load(job, STREAMS, MAX_TOKENS) as load:
                self.assertEqual(len(load.events('failed')), STREAMS)
            self.assertNotEqual(job.wait(), 0)
            return '\n'.join(job.log.lines)

    def test_on_rank_0(self):
        self.assertRegex(self.said(),
                         '(?m)^outrider: step 1000: .* differ from rank 0.s on rank 1$')

    def test_on_another(self):
        self.assertRegex(self.said(OUTRIDER_STRAY_FAILS='1'),
                         '(?m)^outrider: rank 1: it has strayed$')


if __name__ == '__main__':
    unittest.main(argv=sys.argv[:1] + sys.argv[4:])

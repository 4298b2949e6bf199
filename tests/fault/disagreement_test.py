"""A job whose ranks disagree ends, and tells no token of the step.

    disagreement_test.py PROGRAM CHECKPOINT LOAD_CLIENT

PROGRAM is an `outrider` with straying_follower.cc: its ranks but 0 stray at step 1000 of each start.
"""

import sys
import unittest

from job import INTERNAL, Job, Load, answer_of

STREAMS = 4
MAX_TOKENS = 1900  # of each stream, in a step each


class Disagreement(unittest.TestCase):
    def test_every_call_hears_of_it_and_the_job_starts_again(self):
        with Job() as job:
            expected = answer_of(job)[1]
            with Load(job, STREAMS, MAX_TOKENS) as load:
                load.wait_for('running')
                watch = job.watch_ranks()
                failed = load.events('failed')
                watch.all_gone()
            self.assertEqual(len(failed), STREAMS)
            for _, what in failed:
                self.assertRegex(what, rf'^{INTERNAL} step 1000: .* differ from rank 0.s on rank 1$')
            self.assertEqual(answer_of(job)[1], expected)
            log = '\n'.join(job.log.lines)
            self.assertRegex(log, 'outrider: the job has ended: step 1000: .*starting it again')


if __name__ == '__main__':
    unittest.main(argv=sys.argv[:1] + sys.argv[4:])

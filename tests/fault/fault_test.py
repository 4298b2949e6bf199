"""What becomes of calls and processes when something breaks, and how soon.

    fault_test.py PROGRAM CHECKPOINT LOAD_CLIENT [unittest arguments]

PROGRAM is the built `outrider`, CHECKPOINT a tiny model's directory, LOAD_CLIENT the built
load_client. OUTRIDER_FAULT_RUNS: how often each fault is repeated (default: a few times);
OUTRIDER_FAULT_SEED: which ranks and moments. Exit status 77: everything was skipped.

These are promises about time, so time is asserted, with bounds of twice what is promised; of
five times where each fault is tried but a few times, beside other tests.
"""

import contextlib
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import unittest
from pathlib import Path

from figures import Figures
from job import (CHECKPOINT, FAILED_PRECONDITION, LIMIT_S, NOT_SERVING, UNAVAILABLE, WATCH_ENDED,
                 Job, Load, StubMpirun, answer_of)
from starts import Starts  # noqa: F401  # run by its name
from two_hosts import TwoHosts

RUNS = int(os.environ.get('OUTRIDER_FAULT_RUNS', 0))
SEED = int(os.environ.get('OUTRIDER_FAULT_SEED', random.randrange(1 << 32)))
STREAMS = 4
MAX_TOKENS = 1900
LONGEST_MOMENT_S = 0.5  # under load, before the fault
BUSY_PROCESSES, BUSY_S = 8, 10  # that take the ranks' processor, and for how long

figures = Figures(slack=2 if RUNS else 5)  # the more runs, the quieter the machine has to be
rng = random.Random(SEED)


def tearDownModule():
    print(f'\nseed {SEED}\n{figures.table()}' if figures.samples else '', flush=True)


class Case(StubMpirun, unittest.TestCase):
    def under_load(self, job, fault, name, seen_ms, reason, restart_s=0, after_gone=None):
        """Calls fault(ranks) at a random moment of a load on the job, and checks what follows.

        seen_ms: by when the fault has to be seen, 0: at once; reason: what clients are told, None for
        any, as of a job that ends without a word.
        """
        with Load(job, STREAMS, MAX_TOKENS) as load:
            load.wait_for('running')
            time.sleep(rng.random() * LONGEST_MOMENT_S)
            watch = job.watch_ranks()
            restarted_after = len(job.log.lines)
            start = time.monotonic_ns()
            fault(job.ranks())
            gone = watch.all_gone()
            if after_gone is not None:
                after_gone()
            failed = load.events('failed')
            ends = (NOT_SERVING,) if reason is not None else (NOT_SERVING, WATCH_ENDED)
            health = [at for at, status in load.events('health')
                      if int(status) in ends and at > start]

        def ms(at):
            return (at - start) / 1e6
        for at, what in failed:
            self.assertGreater(at, start, what)
            self.assertRegex(what, f'^{UNAVAILABLE} ')
            if reason is not None:
                self.assertRegex(what, reason)
        self.assertEqual(len(failed), STREAMS)
        figures.check(self, name, 'health NOT_SERVING', ms(health[0]), seen_ms + 200)
        figures.check(self, name, 'clients told', ms(failed[-1][0]), seen_ms + 500)
        figures.check(self, name, 'all ranks gone', ms(gone), seen_ms + 3000)
        again, answer = answer_of(job)
        figures.check(self, name, 'serving again', ms(again), seen_ms + 10_000 + 1000 * restart_s)
        self.assertEqual(answer, self.expected)
        log = '\n'.join(job.log.lines[restarted_after:])
        self.assertRegex(log, 'outrider: the job has ended: .*starting it again')
        self.assertNotRegex(log, 'drain|stopping', 'a loss was taken for a request to end')

    def each(self, default_runs, name, seen_ms, make_fault):
        """make_fault(rank) -> the fault, for a random rank of a random job, again and again."""
        for run in range(RUNS or default_runs):
            with self.subTest(run=run), Job(ranks=rng.choice((2, 3))) as job:
                self.expected = answer_of(job)[1]
                rank = rng.randrange(job.num_ranks)
                # What rank 0 did not live to say, nobody says.
                self.under_load(job, make_fault(rank), name.format('0' if rank == 0 else 'n'),
                                seen_ms, None if rank == 0 else 'is lost: ')

    def ends_well(self, job):
        self.assertEqual(job.wait(), 0, job.log.lines)
        self.assertEqual(job.ranks(), {})
        self.assertTrue(job.port_is_free())


class Kill(Case):
    def test_a_killed_rank(self):
        def make_fault(rank):
            return lambda ranks: os.kill(ranks[rank], signal.SIGKILL)
        self.each(5, 'rank {} killed', 0, make_fault)

    def test_a_crash_is_told_like_a_kill(self):
        with Job() as job:
            self.expected = answer_of(job)[1]
            self.under_load(job, lambda ranks: os.kill(ranks[1], signal.SIGABRT), 'rank 1 crashes',
                            0, 'rank 1 is lost: it closed the connection')

    def test_an_idle_job_starts_again_too(self):
        with Job() as job:
            expected = answer_of(job)[1]
            watch = job.watch_ranks()
            os.kill(job.ranks()[1], signal.SIGKILL)
            watch.all_gone()
            self.assertEqual(answer_of(job)[1], expected)
            job.process.send_signal(signal.SIGTERM)
            self.ends_well(job)

    def test_no_restart(self):
        # Whoever starts it may ignore the ends of children.
        for prefix in ([], ['env', '--ignore-signal=CHLD']):
            with (self.subTest(prefix=prefix),
                  Job(launch=['--no-restart'], prefix=prefix) as job):
                answer_of(job)
                os.kill(job.ranks()[1], signal.SIGKILL)
                self.assertNotEqual(job.wait(), 0)
                self.assertEqual(job.ranks(), {})

    def test_a_killed_mpirun_is_replaced(self):
        with Job() as job:
            expected = answer_of(job)[1]
            watch = job.watch_ranks()
            mpirun = int(Path('/proc', str(job.ranks()[0]), 'stat').read_text()
                         .rsplit(')', 1)[1].split()[1])
            files = self.shared_memory(job)
            self.assertTrue(files)
            os.kill(mpirun, signal.SIGKILL)
            watch.all_gone()
            self.assertEqual(answer_of(job)[1], expected)
            self.assertFalse([file for file in files if Path(file).exists()])
            files = self.shared_memory(job)
            job.process.send_signal(signal.SIGTERM)
            self.ends_well(job)
            self.assertFalse([file for file in files if Path(file).parent.exists()])

    def test_an_mpirun_that_hangs_behind_a_loss_is_replaced(self):
        stub = self.stub_mpirun(f'{shutil.which("mpirun")} "$@"\nexec sleep 1000\n')
        with Job(env=stub) as job:
            expected = answer_of(job)[1]
            os.kill(job.ranks()[0], signal.SIGKILL)
            start = time.monotonic()
            job.log.wait_for('starting it again')
            self.assertLess(time.monotonic() - start, 8)  # not as long as an orderly end may take
            self.assertEqual(answer_of(job)[1], expected)
            job.process.send_signal(signal.SIGTERM)
            self.ends_well(job)

    def test_what_a_killed_launcher_leaves_is_swept_by_the_next(self):
        with Job() as job, Job() as other:
            directory, = {Path(file).parent for file in self.shared_memory(job)}
            session = self.session_directory(job)
            self.assertTrue(list(session.iterdir()))
            others, = {Path(file).parent for file in self.shared_memory(other)}
            watch = job.watch_ranks()
            job.process.kill()
            watch.all_gone()
            job.wait()
            # Any launcher that has started on this host meanwhile may have swept it.
            with Job():
                self.assertFalse(directory.exists())
                self.assertFalse(session.exists())
                self.assertTrue(others.exists())
                self.assertTrue(list(self.session_directory(other).iterdir()))

    def shared_memory(self, job):
        maps = Path('/proc', str(job.ranks()[0]), 'maps').read_text()
        return set(re.findall(r'/dev/shm/outrider-launch-scratch-[^/\s]+/\S+', maps))

    def session_directory(self, job):
        environment = Path('/proc', str(job.ranks()[0]), 'environ').read_text()
        return Path(re.search(r'\0OMPI_MCA_orte_tmpdir_base=([^\0]+)', environment)[1])


class Quarantine(Case):
    def test_a_request_that_ran_whenever_the_job_died_is_refused(self):
        with Job() as job:
            expected = answer_of(job)
            for _ in range(2):
                ranks = job.ranks()
                with Load(job, STREAMS, MAX_TOKENS) as load:
                    load.wait_for('running')
                    os.kill(ranks[1], signal.SIGKILL)
                    self.assertEqual(len(load.events('failed')), STREAMS)
                self.assertEqual(answer_of(job)[1], expected[1])
            with Load(job, 1, MAX_TOKENS) as load:
                load.wait_for(f'failed {FAILED_PRECONDITION} this request was running when the job '
                              'died, 2 times; it is refused for 60 min$')
            self.assertEqual(answer_of(job)[1], expected[1])


class Stop(Case):
    def test_a_stopped_rank(self):
        def make_fault(rank):
            return lambda ranks: os.kill(ranks[rank], signal.SIGSTOP)
        self.each(2, 'rank {} stopped', 3500, make_fault)

    def test_a_stopped_rank_of_an_idle_job(self):
        with Job() as job:
            expected = answer_of(job)[1]
            watch = job.watch_ranks()
            start = time.monotonic_ns()
            os.kill(job.ranks()[1], signal.SIGSTOP)
            gone = watch.all_gone()
            figures.check(self, 'rank n stopped, idle', 'all ranks gone', (gone - start) / 1e6,
                          5500 + 3000)
            self.assertEqual(answer_of(job)[1], expected)

    def test_a_job_that_was_stopped_as_a_whole_goes_on(self):
        """As by a terminal's Ctrl-Z, or a machine that slept."""
        with Job() as job, Load(job, STREAMS, MAX_TOKENS) as load:
            load.wait_for('running')
            ranks = job.ranks()
            for number in (signal.SIGSTOP, signal.SIGCONT):
                for pid in ranks.values():
                    os.kill(pid, number)
                time.sleep(7)  # longer than any limit
            self.assertEqual(job.ranks(), ranks)
            self.assertFalse([line for line in load.output.lines if 'failed' in line])


class Hang(Case):
    def freeze(self, ranks, rank):
        freezer = Path(__file__).with_name('freeze_thread.py')
        self.freezer = subprocess.Popen([sys.executable, str(freezer), str(ranks[rank])],
                                        stdout=subprocess.PIPE, text=True)
        self.addCleanup(self.freezer.wait)
        self.addCleanup(self.freezer.kill)
        self.addCleanup(self.freezer.stdout.close)
        if self.freezer.stdout.readline() != 'frozen\n':
            code = self.freezer.wait()
            self.assertEqual(code, 77)
            self.skipTest('tracing other processes is not allowed here')

    def test_a_main_thread_that_hangs(self):
        """Its heartbeat goes on."""
        for rank in (0, 1):
            with self.subTest(rank=rank), Job() as job:
                self.expected = answer_of(job)[1]
                self.under_load(job, lambda ranks: self.freeze(ranks, rank), f'rank {rank} hangs',
                                3500, r'is lost: step \d+ has not advanced')

    def test_a_main_thread_that_hangs_between_steps(self):
        """As one that plans for ever: a call has come, and no step begins."""
        with Job() as job:
            expected = answer_of(job)[1]
            watch = job.watch_ranks()
            self.freeze(job.ranks(), 0)
            with Load(job, 1, MAX_TOKENS) as load:
                start = time.monotonic_ns()
                gone = watch.all_gone()
                (_, what), = load.events('failed')
            self.assertRegex(what, f'^{UNAVAILABLE} rank 0 is lost: it has not begun its next step')
            figures.check(self, 'rank 0 hangs, idle', 'all ranks gone',
                          (gone - start) / 1e6, 10_500 + 3000)
            self.assertEqual(answer_of(job)[1], expected)


class Overload(Case):
    """A host that gives the ranks little of its processors is slow, and no hang."""

    @contextlib.contextmanager
    def busy(self, core):
        """Others want that core, for a while."""
        others = [subprocess.Popen(['setpriv', '--pdeathsig', 'KILL', 'taskset', '-c', core,
                                    'sh', '-c', 'while :; do :; done'])
                  for _ in range(BUSY_PROCESSES)]
        end = threading.Timer(BUSY_S, lambda: [other.kill() for other in others])
        end.start()
        try:
            yield
        finally:
            end.cancel()
            for other in others:
                other.kill()
                other.wait()

    def test_a_step_takes_longer_than_a_hang_may(self):
        # Many layers: every sum of each has to wait until the core has come round to every rank.
        deep = str(Path(CHECKPOINT).with_name('tiny-deep'))
        core = str(min(os.sched_getaffinity(0)))
        with Job(ranks=3, checkpoint=deep, launch=['--no-restart'],
                 serve=['--prefill-beside', '16', '--lookahead', 'fixed:4']) as job:
            expected = answer_of(job, max_tokens=8)[1]
            ranks = job.ranks()
            for pid in ranks.values():
                subprocess.run(['taskset', '-a', '-c', '-p', core, str(pid)], check=True,
                               stdout=subprocess.DEVNULL)
            start = time.monotonic()
            with self.busy(core):
                self.assertEqual(answer_of(job, max_tokens=8)[1], expected)
            print(f'an answer of 8 tokens took {time.monotonic() - start:.1f} s')
            self.assertEqual(job.ranks(), ranks, job.log.lines)


class CutLink(Case):
    @classmethod
    def setUpClass(cls):
        why_not = TwoHosts.why_not()
        if why_not:
            raise unittest.SkipTest(why_not)

    def test_a_cut_link(self):
        for run in range(max(RUNS // 20, 1)):
            with (self.subTest(run=run), TwoHosts() as hosts,
                  Job(launch=['--hostfile', str(hosts.hostfile)], prefix=hosts.prefix,
                      env=hosts.environment) as job):
                self.expected = answer_of(job)[1]
                self.assertIn(job.ranks()[1], hosts.processes(1))
                self.under_load(job, lambda ranks: hosts.cable('down'), 'link cut', 5000,
                                'rank 1 is lost: nothing was heard from it',
                                after_gone=lambda: hosts.cable('up'))


class Drain(Case):
    PATIENT = ['--drain-seconds', str(LIMIT_S)]  # where nothing is to end but by itself

    def asked_to_end(self, job, load, number=signal.SIGTERM):
        load.wait_for('running')
        start = time.monotonic_ns()
        job.process.send_signal(number)
        load.wait_for(f'health {NOT_SERVING}')
        return start

    def test_running_calls_finish(self):
        for run in range(RUNS or 2):
            with (self.subTest(run=run), Job(serve=self.PATIENT) as job,
                  Load(job, STREAMS, MAX_TOKENS, answers=1) as load):
                start = self.asked_to_end(job, load)
                os.kill(load.process.pid, signal.SIGSTOP)  # its calls cannot end meanwhile
                with Load(job, 1, 1, answers=1) as late:
                    late.wait_for('failed')
                    os.kill(load.process.pid, signal.SIGCONT)
                    failed = late.events('failed')  # once the server has ended
                self.assertEqual(len(failed), 1)
                self.assertRegex(failed[0][1], f'^{UNAVAILABLE} ')
                done = load.events('done')
                self.assertEqual([what.split()[0] for _, what in done], [str(MAX_TOKENS)] * STREAMS)
                not_serving = [at for at, status in load.events('health')
                               if int(status) == NOT_SERVING]
                figures.check(self, 'SIGTERM to launch', 'health NOT_SERVING',
                              (not_serving[0] - start) / 1e6, 200)
                self.ends_well(job)

    def test_a_second_signal_ends_it_now(self):
        with Job() as job, Load(job, STREAMS, MAX_TOKENS) as load:
            self.asked_to_end(job, load)
            job.process.send_signal(signal.SIGINT)
            self.assertIn(f'{UNAVAILABLE} the server is shutting down',
                          [what for _, what in load.events('failed')])
            self.ends_well(job)

    def is_pending(self, pid, number):
        status = Path('/proc', str(pid), 'status').read_text()
        return int(re.search(r'^ShdPnd:\s*(\w+)', status, re.MULTILINE)[1], 16) >> number - 1 & 1

    def test_a_third_signal_kills_what_does_not_end(self):
        with Job() as job:
            answer_of(job)
            ranks = job.ranks()
            for pid in ranks.values():
                os.kill(pid, signal.SIGSTOP)
            start = time.monotonic()
            for _ in range(3):
                while self.is_pending(job.process.pid, signal.SIGTERM):  # or they would be one
                    time.sleep(0.01)
                job.process.send_signal(signal.SIGTERM)
            self.assertEqual(job.wait(), 128 + signal.SIGKILL)
            self.assertLess(time.monotonic() - start, 8)  # two would take ten seconds
            self.assertEqual(job.ranks(), {})

    def test_the_limit_ends_it(self):
        with Job(serve=['--drain-seconds', '0']) as job, Load(job, STREAMS, MAX_TOKENS) as load:
            self.asked_to_end(job, load)
            self.assertIn(f'{UNAVAILABLE} the server is shutting down',
                          [what for _, what in load.events('failed')])
            self.ends_well(job)

    def test_a_loss_outranks_a_drain(self):
        with Job() as job, Load(job, STREAMS, MAX_TOKENS, answers=1) as load:
            self.asked_to_end(job, load)
            os.kill(job.ranks()[1], signal.SIGKILL)
            self.assertIn('rank 1 is lost', str(load.events('failed')))
            self.assertNotEqual(job.wait(), 0)
            self.assertEqual(job.ranks(), {})
            self.assertNotIn('starting it again', '\n'.join(job.log.lines))

    def test_a_signal_to_rank_zero_itself_drains(self):
        for number in (signal.SIGTERM, signal.SIGHUP):
            with (self.subTest(number=number),
                  Job(serve=self.PATIENT, prefix=['env', '--default-signal=HUP']) as job,
                  Load(job, STREAMS, MAX_TOKENS, answers=1) as load):
                load.wait_for('running')
                os.kill(job.ranks()[0], number)
                self.assertEqual(len(load.events('done')), STREAMS)
                self.ends_well(job)

    def test_a_terminal_that_is_closed_drains(self):
        with (Job(serve=self.PATIENT, prefix=['env', '--default-signal=HUP']) as job,
              Load(job, STREAMS, MAX_TOKENS, answers=1) as load):
            self.asked_to_end(job, load, signal.SIGHUP)
            job.process.send_signal(signal.SIGHUP)  # by its shell, and by the kernel
            self.assertEqual(len(load.events('done')), STREAMS)
            self.ends_well(job)

    def test_what_was_ignored_stays_ignored(self):
        # A terminal that is closed, and a Ctrl-C meant for whatever else the script runs.
        for prefix, number in ((['nohup'], signal.SIGHUP),
                               (['env', '--ignore-signal=INT'], signal.SIGINT)):
            with self.subTest(prefix=prefix), Job(prefix=prefix) as job:
                expected = answer_of(job)[1]
                job.process.send_signal(number)
                self.assertEqual(answer_of(job)[1], expected)
                self.assertFalse([line for line in job.log.lines if 'drain' in line])
                job.process.send_signal(signal.SIGTERM)
                self.ends_well(job)

    def test_a_signal_while_it_starts_again(self):
        with Job() as job:
            os.kill(job.ranks()[1], signal.SIGKILL)
            job.log.wait_for('starting it again')
            job.process.send_signal(signal.SIGTERM)
            self.ends_well(job)

    def test_what_hangs_behind_an_orderly_end_is_no_failure(self):
        mpirun = shutil.which('mpirun')
        # Killed by the launcher, or the status of a rank whose alarm went off; any other is told.
        for then, status in (('exec sleep 1000', 0), ('exit 142', 0), ('exit 139', 139)):
            with (self.subTest(then=then),
                  Job(launch=['--no-restart'] if status else [],
                      env=self.stub_mpirun(f'{mpirun} "$@"\n{then}\n')) as job):
                os.kill(job.ranks()[0], signal.SIGTERM)
                self.assertEqual(job.wait(), status, job.log.lines)
                self.assertNotIn('starting it again', '\n'.join(job.log.lines))
                self.assertEqual(job.ranks(), {})

    def test_what_has_finished_and_stays_is_killed(self):
        job = Job(env=self.staying_rank('serving', 'finished'))
        self.addCleanup(job.__exit__)
        start = time.monotonic()
        self.assertEqual(job.wait(), 0, job.log.lines)
        self.assertGreater(time.monotonic() - start, 15)  # what ranks have themselves
        self.assertLess(time.monotonic() - start, 40)
        self.assertEqual(job.log.lines, ['told'])


if __name__ == '__main__':
    program = unittest.main(argv=sys.argv[:1] + sys.argv[4:], exit=False)
    result = program.result
    if not result.wasSuccessful():
        sys.exit(1)
    if result.skipped:
        for test, reason in result.skipped:
            print(f'skipped: {test}: {reason}')
        if len(result.skipped) >= result.testsRun:
            sys.exit(77)

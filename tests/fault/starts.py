"""How `outrider launch` starts a job, for fault_test.py."""

import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import unittest
from pathlib import Path

from job import CHECKPOINT, LIMIT_S, PROGRAM, Job, Lines, StubMpirun


class Starts(StubMpirun, unittest.TestCase):
    """On this host, and beside what is there already. Starts that cannot succeed end the launcher,
    which says why."""

    def gives_up(self, *arguments, cause, env=None, lines=1):
        result = subprocess.run([PROGRAM, 'launch', '--ranks', '2', '--', 'serve', *arguments],
                                stdin=subprocess.DEVNULL, capture_output=True, text=True,
                                timeout=LIMIT_S, env=dict(os.environ, **(env or {})))
        self.assertNotIn(result.returncode, (0, 2), result.stderr)
        said = [line for line in result.stderr.splitlines() if line.startswith('outrider: ')]
        self.assertEqual(len(said), lines, result.stderr)
        self.assertIn(cause, said[-1])

    def signalled(self, env, after, *numbers):
        """A launcher that gets these signals after this line."""
        process = subprocess.Popen(
            [PROGRAM, 'launch', '--ranks', '2', '--', 'serve', '--model', CHECKPOINT, '--port',
             '0'],
            stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            env=dict(os.environ, **env))
        self.addCleanup(process.kill)
        Lines(process.stderr).wait_for(after)
        for number in numbers:
            process.send_signal(number)
        return process

    def ends_by_signal(self, stub, after):
        """SIGTERM comes after this line, of a job that has never served."""
        process = self.signalled(self.stub_mpirun(stub), after, signal.SIGTERM)
        self.assertEqual(process.wait(LIMIT_S), 128 + signal.SIGTERM)

    def test_a_missing_checkpoint(self):
        self.gives_up('--model', '/no/such/model', '--port', '0', cause='/no/such/model')

    def test_a_missing_shard(self):
        with tempfile.TemporaryDirectory() as broken:
            shutil.copytree(CHECKPOINT, broken, dirs_exist_ok=True)
            Path(broken, 'model.safetensors').unlink()
            self.gives_up('--model', broken, '--port', '0', cause='model.safetensors')

    def test_a_port_in_use(self):
        with socket.create_server(('127.0.0.1', 0)) as taken:
            port = taken.getsockname()[1]
            self.gives_up('--model', CHECKPOINT, '--port', str(port), cause=f'127.0.0.1:{port}')

    def test_ranks_with_different_checkpoints(self):
        with tempfile.TemporaryDirectory() as other:
            shutil.copytree(CHECKPOINT, other, dirs_exist_ok=True)
            config = Path(other, 'config.json')
            config.write_text(config.read_text() + '\n')
            mpirun = shutil.which('mpirun')
            as_root = '--allow-run-as-root' if os.geteuid() == 0 else ''
            env = self.stub_mpirun(
                f'exec {mpirun} --quiet --oversubscribe --bind-to none {as_root}'
                f' -np 1 {PROGRAM} serve --model {CHECKPOINT} --port 0'
                f' : -np 1 {PROGRAM} serve --model {other} --port 0\n')
            self.gives_up('--model', CHECKPOINT, '--port', '0', env=env,
                          cause='every rank must read the same files')

    def test_a_job_that_crashes_is_tried_three_times(self):
        self.gives_up('--model', CHECKPOINT, '--port', '0', lines=3,
                      env=self.stub_mpirun('kill -KILL $$\n'),
                      cause='giving up after 3 starts that failed: ')

    def test_a_rank_that_is_killed_while_it_loads_is_tried_three_times(self):
        deep = str(Path(CHECKPOINT).with_name('tiny-deep'))  # it measures its steps for long
        job = Job(checkpoint=deep)
        self.addCleanup(job.__exit__)
        line = -1
        for _ in range(3):
            line = job.log.wait_for('measuring steps$', after=line + 1)
            os.kill(job.ranks()[1], signal.SIGKILL)
        self.assertEqual(job.wait(), 1)
        log = '\n'.join(job.log.lines)
        self.assertNotIn('listening on', log)
        self.assertIn('giving up after 3 starts that failed: rank 1 is lost: ', log)

    def test_no_mpirun(self):
        self.gives_up('--model', CHECKPOINT, '--port', '0', env={'PATH': '/nowhere'}, lines=1,
                      cause='cannot start mpirun: No such file or directory')

    def test_a_signal_while_loading(self):
        # The stub is a job that never comes to serve.
        self.ends_by_signal('echo started >&2\nexec sleep 1000\n', after='^started$')

    def test_a_job_that_should_end_and_stays_is_killed(self):
        # All at once: each takes ten seconds.
        deaf = 'trap "" TERM\necho started >&2\nexec sleep 1000\n'
        for process, status in [
                (self.signalled(self.staying_rank('failed the disk is full'), '^told$'), 1),
                (self.signalled(self.stub_mpirun(deaf), '^started$', signal.SIGTERM),
                 128 + signal.SIGTERM),
                (self.signalled(self.staying_rank('serving'), '^told$', signal.SIGTERM,
                                signal.SIGINT), 128 + signal.SIGKILL)]:
            self.assertEqual(process.wait(LIMIT_S), status)

    def test_a_signal_between_starts_that_fail(self):
        self.ends_by_signal('kill -KILL $$\n', after='starting it again in 1 s$')

    def test_mpirun_is_handed_no_descriptor_but_the_usual_ones(self):
        result = subprocess.run(
            [PROGRAM, 'launch', '--ranks', '2', '--no-restart', '--', 'serve', '--model',
             CHECKPOINT], stdin=subprocess.PIPE, capture_output=True, text=True, timeout=LIMIT_S,
            env=dict(os.environ, **self.stub_mpirun(
                'ls -l /proc/$$/fd\nkill -KILL $$\n')))
        self.assertEqual(result.returncode, 128 + signal.SIGKILL, result.stderr)
        handed = dict(re.findall(r' (\d+) -> (.*)$', result.stdout, re.MULTILINE))
        # Without the shell's own, the script.
        handed = {fd: name for fd, name in handed.items() if not name.endswith('/mpirun')}
        self.assertEqual(set(handed), {'0', '1', '2'}, handed)
        self.assertEqual(handed['0'], '/dev/null')

    def test_on_this_host_whatever_others_are_at_hand(self):
        with tempfile.NamedTemporaryFile('w') as hosts:
            hosts.write('outrider-test.invalid slots=2\n')
            hosts.flush()
            for env in ({'SLURM_JOBID': '1', 'SLURM_NODELIST': 'outrider-test', 'SLURM_NNODES': '1',
                         'SLURM_TASKS_PER_NODE': '2'},
                        {'OMPI_MCA_orte_default_hostfile': hosts.name}):
                with self.subTest(env=env), Job(env=env) as job:
                    self.assertEqual(set(job.ranks()), {0, 1})

    def test_what_the_launcher_was_before_keeps_its_children(self):
        result = subprocess.run(
            ['sh', '-c', 'sleep 1000 >/dev/null 2>&1 & echo $!; exec "$@"', 'sh', PROGRAM,
             'launch', '--ranks', '2', '--no-restart', '--', 'serve', '--model', CHECKPOINT],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT_S,
            env=dict(os.environ, **self.stub_mpirun('sleep 1000 &\nkill -KILL $$\n')))
        self.assertEqual(result.returncode, 128 + signal.SIGKILL, result.stderr)
        os.kill(int(result.stdout), signal.SIGKILL)  # it is there

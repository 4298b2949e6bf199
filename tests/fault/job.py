"""A job under `outrider launch`, a load on it, and what happens to both and when.

Times are CLOCK_MONOTONIC in nanoseconds, the load client's and this program's alike.
"""

import os
import re
import select
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / 'testing'))
from program import (CHECKPOINT, LIMIT_S, PROGRAM, Lines, children, free_port,  # noqa: E402
                     port_is_free)

LOAD_CLIENT = os.path.realpath(sys.argv[3])
SERVING, NOT_SERVING, WATCH_ENDED = 1, 2, 0
UNAVAILABLE, INTERNAL, FAILED_PRECONDITION = 14, 13, 9  # of gRPC's codes


class Job:
    """Ends with the block, whatever is left of it."""

    def __init__(self, ranks=2, launch=(), serve=(), prefix=(), env=None,
                 checkpoint=CHECKPOINT):
        self.port = free_port()
        self.address = f'127.0.0.1:{self.port}'
        self.num_ranks = ranks
        self.prefix = list(prefix)
        # Nothing is left of a test that is killed itself.
        self.process = subprocess.Popen(
            ['setpriv', '--pdeathsig', 'KILL', *prefix, PROGRAM, 'launch', '--ranks', str(ranks),
             *launch, '--', 'serve', '--model', checkpoint, '--port', str(self.port), *serve],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            env=dict(os.environ, **(env or {})))
        self.log = Lines(self.process.stderr)

    def __enter__(self):
        try:
            self.log.wait_for('listening on')
        except BaseException:
            self.__exit__()
            raise
        return self

    def ranks(self):
        """rank -> pid of those that live."""
        found = {}
        for pid in filter(str.isdigit, os.listdir('/proc')):
            try:
                arguments = Path('/proc', pid, 'cmdline').read_bytes().split(b'\0')
                if arguments[:2] != [PROGRAM.encode(), b'serve']:
                    continue
                environment = Path('/proc', pid, 'environ').read_bytes()
                state = Path('/proc', pid, 'stat').read_text().rsplit(')', 1)[1].split()[0]
            except (FileNotFoundError, ProcessLookupError):
                continue
            rank = re.search(rb'(^|\0)OMPI_COMM_WORLD_RANK=(\d+)\0', environment)
            if rank and state != 'Z' and str(self.port).encode() in arguments:
                found[int(rank[2])] = int(pid)
        return found

    def watch_ranks(self):
        pidfds = {pid: os.pidfd_open(pid) for pid in self.ranks().values()}
        if len(pidfds) != self.num_ranks:
            raise AssertionError(f'found ranks {self.ranks()}, expected {self.num_ranks}')
        return Watch(pidfds)

    def wait(self):
        """The exit status of launch, once everything has let go of its output."""
        self.log.all()
        return self.process.wait(LIMIT_S)

    def port_is_free(self):
        return port_is_free(self.port)

    def __exit__(self, *_):
        # mpirun, too: where its ranks are killed while it ends, it may wait for a lock of its own.
        mpirun = children(self.process.pid) if self.process.poll() is None else []
        for pid in [self.process.pid, *mpirun, *self.ranks().values()]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.process.wait(LIMIT_S)
        self.log.all()


class StubMpirun:
    """For test cases."""

    def stub_mpirun(self, text):
        """An environment in which this shell script is mpirun."""
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        script = Path(directory.name, 'mpirun')
        script.write_text('#!/bin/sh\n' + text)
        script.chmod(0o755)
        return {'PATH': f'{directory.name}:{os.environ["PATH"]}'}

    def staying_rank(self, *told):
        """An environment in which mpirun is a rank 0 that tells `launch` this, and stays."""
        rank = Path(__file__).with_name('staying_rank.py')
        return self.stub_mpirun(f'exec {shlex.join([sys.executable, str(rank), *told])}\n')


class Watch:
    """The ends of some processes."""

    def __init__(self, pidfds):
        self.pidfds = pidfds

    def all_gone(self):
        """When the last of them ended."""
        poll = select.poll()
        for pidfd in self.pidfds.values():
            poll.register(pidfd, select.POLLIN)
        left = len(self.pidfds)
        deadline = time.monotonic() + LIMIT_S
        while left > 0:
            for pidfd, _ in poll.poll(1000 * max(deadline - time.monotonic(), 0)):
                poll.unregister(pidfd)
                left -= 1
            if time.monotonic() > deadline:
                raise AssertionError(f'{left} of {list(self.pidfds)} are left')
        now = time.monotonic_ns()
        for pidfd in self.pidfds.values():
            os.close(pidfd)
        return now


class Load:
    """The load client on a job; see load_client.cc for its events."""

    def __init__(self, job, streams, max_tokens, answers=0):
        self.process = subprocess.Popen(
            [*job.prefix, LOAD_CLIENT, job.address, str(streams), str(max_tokens), str(answers)],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        self.output = Lines(self.process.stdout)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait(LIMIT_S)
        self.output.all()

    def wait_for(self, pattern):
        return self.output.wait_for(rf'^\d+ {pattern}')

    def events(self, kind):
        """[(time, the rest of the line)] of this kind, once the client has ended."""
        found = []
        for line in self.output.all():
            at, name, *rest = line.split(' ', 2)
            if name == kind:
                found.append((int(at), rest[0] if rest else ''))
        return found


def answer_of(job, max_tokens=32):
    """(when, the digest of the tokens) of one greedy answer, once the job serves."""
    with Load(job, streams=0, max_tokens=max_tokens) as load:
        done = load.events('done')
        if not done:
            raise AssertionError('no answer:\n' + '\n'.join(load.output.lines))
        return done[0]

"""The program from outside: what tests that start it share.

Such a test is called with PROGRAM, the built `outrider`, and CHECKPOINT, a tiny model's directory,
before arguments of its own.
"""

import os
import random
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading

# A test that is run in the background ignores it, and so would all that it starts.
signal.signal(signal.SIGINT, signal.default_int_handler)

PROGRAM, CHECKPOINT = map(os.path.realpath, sys.argv[1:3])
LIMIT_S = 120  # for anything: a hang, not a slow machine
# What OpenMPI leaves behind where a rank or mpirun was killed: shared memory, and mpirun's session.
SCRATCH = tempfile.TemporaryDirectory()
MPIRUN = ['mpirun', '--oversubscribe', '--bind-to', 'none',
          '--mca', 'btl_vader_backing_directory', SCRATCH.name,
          '--mca', 'orte_tmpdir_base', SCRATCH.name] + (
    ['--allow-run-as-root'] if os.geteuid() == 0 else [])
GREEDY = ['--raw', '--temperature', '0', '--ignore-eos']


def outrider(*arguments, **options):
    return subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, timeout=LIMIT_S,
                          stdin=subprocess.DEVNULL, **options)


class Refusals:
    """For test cases."""

    def refuses(self, arguments, *parts, code=2, **options):
        """outrider(*arguments) says in one line why not, and `parts` among it."""
        result = outrider(*arguments, **options)
        self.assertEqual(result.returncode, code, result.stderr)
        self.assertEqual(result.stdout, '')
        self.assertEqual(result.stderr.count('\n'), 1, result.stderr)
        for part in parts:
            self.assertIn(part, result.stderr)


def free_port():
    """One for a server that is named before it is there, and can have it again at every restart:
    the system gives those of its own range to whoever connects."""
    with open('/proc/sys/net/ipv4/ip_local_port_range') as file:
        first = int(file.read().split()[0])
    while True:
        port = random.SystemRandom().randrange(max(1024, first // 2), first)
        try:
            with socket.create_server(('127.0.0.1', port)):
                return port
        except OSError:
            continue


def port_is_free(port):
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(('127.0.0.1', port))
    return True


def children(pid):
    found = []
    for task in os.listdir(f'/proc/{pid}/task'):
        with open(f'/proc/{pid}/task/{task}/children') as file:
            found += map(int, file.read().split())
    return found


class Lines:
    """What a process prints, read as it comes."""

    def __init__(self, stream):
        self.lines = []
        self.ended = False
        self.changed = threading.Condition()
        self.thread = threading.Thread(target=self.read, args=(stream,), daemon=True)
        self.thread.start()

    def read(self, stream):
        for line in stream:
            with self.changed:
                self.lines.append(line.rstrip('\n'))
                self.changed.notify_all()
        stream.close()
        with self.changed:
            self.ended = True
            self.changed.notify_all()

    def wait_for(self, pattern, after=0):
        """The index of the first line from `after` on that matches."""
        with self.changed:
            def found():
                for index, line in enumerate(self.lines[after:], after):
                    if re.search(pattern, line):
                        return index
                return None
            self.changed.wait_for(lambda: found() is not None or self.ended, LIMIT_S)
            if found() is None:
                raise AssertionError(f'no line {pattern!r} in:\n' + '\n'.join(self.lines))
            return found()

    def all(self):
        """Every line, once the process has closed its output."""
        with self.changed:
            if not self.changed.wait_for(lambda: self.ended, LIMIT_S):
                raise AssertionError('the output has not ended:\n' + '\n'.join(self.lines))
            return self.lines


class Server:
    """A server with whatever starts it; ends with the block."""

    def __init__(self, *starter, model=CHECKPOINT, port=0, options=()):
        serve = ['serve', '--model', str(model), '--port', str(port), *options]
        command = ([PROGRAM, *starter, *serve] if starter[:1] == ('launch',) else
                   [*starter, PROGRAM, *serve])
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True,
                                        stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
        self.output = Lines(self.process.stderr)
        self.processes = {}  # of the whole job: pid -> pidfd

    def __enter__(self):
        try:
            self.port = self.port_in(r'listening on')
            self.add_tree(self.process.pid)
        except BaseException:
            self.process.kill()
            self.__exit__()
            raise
        self.address = f'127.0.0.1:{self.port}'
        # Ranks are the innermost ones: started by mpirun, they start nothing themselves.
        self.ranks = sorted(pid for pid in self.processes if not children(pid))
        return self

    def port_in(self, words):
        pattern = words + r' (?:127\.0\.0\.1|0\.0\.0\.0):(\d+)'
        return int(re.search(pattern, self.output.lines[self.output.wait_for(pattern)])[1])

    @property
    def http_address(self):
        """Of a server with --http-port."""
        return f'127.0.0.1:{self.port_in("metrics and probes on")}'

    @property
    def log(self):
        return '\n'.join(self.output.lines)

    def add_tree(self, pid):
        self.processes[pid] = os.pidfd_open(pid)
        for child in children(pid):
            self.add_tree(child)

    def wait_for_end(self):
        """The exit status, once every process of the job is gone."""
        self.output.all()  # to the end: every holder has closed it
        status = self.process.wait(LIMIT_S)
        for pid, pidfd in self.processes.items():
            ready, _, _ = select.select([pidfd], [], [], LIMIT_S)
            assert ready, f'process {pid} is left'
        return status

    def port_is_free(self):
        return port_is_free(self.port)

    def __exit__(self, *_):
        for pidfd in self.processes.values():
            try:
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.process.wait(LIMIT_S)
        self.output.all()
        for pidfd in self.processes.values():
            os.close(pidfd)

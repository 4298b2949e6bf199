"""launcher/quickstart from outside: what it leaves behind, and what it says where it cannot go on.

    quickstart_test.py SOURCE_DIR PROGRAM CHECKPOINT [unittest arguments]

It runs in a tree of links that stands for a repository which is set up and built with PROGRAM, on a
PATH where programs that install, configure or build are stubs: nothing is changed by it. CHECKPOINT
is a tiny model's directory.
"""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import unittest
import uuid
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / 'testing'))
from chat_checkpoint import copy_with_chat_template  # noqa: E402

SOURCE_DIR, PROGRAM, CHECKPOINT = (Path(argument).resolve() for argument in sys.argv[1:4])
LIMIT_S = 120  # for anything: a hang, not a slow machine
PINS = '0123456789ab'  # what the stub of sha256sum says of any requirements
MISSING = ['libgrpc++-dev', 'libpcre2-dev']  # packages, where a test has some missing


def packages():
    text = (SOURCE_DIR / 'launcher' / 'setup.sh').read_text()
    body = re.search(r'^PACKAGES=\((.*?)^\)', text, re.DOTALL | re.MULTILINE)[1]
    return re.sub(r'#.*', '', body).split()


class Tree:
    """A repository as quickstart finds it, and the PATH that it runs on."""

    def __init__(self, directory):
        self.root = Path(directory, 'repository')
        self.stubs = Path(directory, 'stubs')
        self.calls = Path(directory, 'calls')  # of stubs, a line each
        self.cache = Path(directory, 'cache')
        environment = self.cache / f'venv-{PINS}'
        for folder in (self.root / 'tools', environment / 'bin', self.stubs):
            folder.mkdir(parents=True)
        (self.root / 'launcher').symlink_to(SOURCE_DIR / 'launcher')
        self.python = environment / 'bin' / 'python'
        self.python.symlink_to(sys.executable)
        self.has_built('cpu', PROGRAM)
        (environment / 'complete').touch()
        for name in ('requirements.txt', 'requirements-test.txt'):
            (self.root / 'tools' / name).touch()
        self.calls.touch()
        self.stub('sha256sum', f'cat >/dev/null; echo "{PINS}  -"')
        for name in ('apt-get', 'sudo', 'cmake', 'ninja'):
            self.stub(name, '')
        self.stub('nvidia-smi', '')  # lists none, whatever GPUs are here
        self.has_packages(packages())
        self.environment = dict(os.environ, OUTRIDER_CACHE=str(self.cache),
                                OUTRIDER_ADDRESS='another.invalid:50051',  # not this one's
                                PATH=f'{self.stubs}:{os.environ["PATH"]}')
        for name in ('CUDA_HOME', 'CUDA_PATH', 'CUDACXX', 'CUDA_VISIBLE_DEVICES'):
            self.environment.pop(name, None)

    def has_built(self, preset, program):
        build = self.root / 'build' / preset
        (build / 'bin').mkdir(parents=True)
        (build / 'bin' / 'outrider').symlink_to(program)
        (build / 'build.ninja').touch()
        (build / 'CMakeCache.txt').write_text(f'OUTRIDER_PYTHON:FILEPATH={self.python}\n')

    def serve_model(self, directory):
        (self.root / 'tools' / 'fetch_model.py').write_text(f'print({str(directory)!r})\n')

    def stub(self, name, script):
        path = self.stubs / name
        path.write_text(f'#!/bin/sh\necho "{name} $*" >>"{self.calls}"\n{script}\n')
        path.chmod(0o755)

    def has_packages(self, names):
        """dpkg-query knows these."""
        known = ' '.join(names)
        self.stub('dpkg-query', f'for name; do case " {known} " in *" $name "*) '
                                'echo "installed $name";; esac; done')

    def only(self, names):
        """A system that has these programs and the stubs, and no other."""
        programs = Path(self.stubs.parent, 'programs')
        programs.mkdir()
        for name in names:
            (programs / name).symlink_to(shutil.which(name))
        self.environment['PATH'] = f'{self.stubs}:{programs}'

    def called(self, name):
        return [line for line in self.calls.read_text().splitlines()
                if line.split(' ')[0] == name]


# What setup.sh needs before it knows that something is missing.
BASICS = ['bash', 'cat', 'comm', 'dirname', 'echo', 'env', 'id', 'mkdir', 'realpath', 'sed', 'sort',
          'tail', 'xargs']


class QuickstartTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.tree = Tree(directory.name)

    def start(self, *arguments):
        """In a process group of its own, as a terminal starts it. All that it starts carries a
        mark in its environment."""
        self.mark = f'QUICKSTART_TEST={uuid.uuid4()}'
        name, value = self.mark.split('=')
        process = subprocess.Popen(
            [self.tree.root / 'launcher' / 'quickstart', *arguments],
            env={**self.tree.environment, name: value}, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
            # Whoever runs the tests may have it ignored, and bash could not trap it.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
        self.addCleanup(self.kill_marked)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.stderr.close)
        return process

    def marked(self):
        """The processes that carry the mark, but for the dead."""
        found = []
        for path in Path('/proc').glob('[0-9]*/environ'):
            try:
                if self.mark.encode() in path.read_bytes().split(b'\0'):
                    found.append(int(path.parent.name))
            except OSError:  # it has ended, or is not ours
                continue
        return found

    @staticmethod
    def leads(pid):
        """Whether it lives, and leads a session."""
        try:
            return os.getsid(pid) == pid
        except ProcessLookupError:
            return False

    def kill_marked(self):
        for pid in self.marked():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue


class Interrupted(QuickstartTest):
    """Ctrl-C leaves no process and no port, whenever it comes."""

    @classmethod
    def setUpClass(cls):
        cls.model = subprocess.run([sys.executable, SOURCE_DIR / 'tools' / 'fetch_model.py'],
                                   check=True, capture_output=True, text=True,
                                   timeout=LIMIT_S).stdout.strip()

    def setUp(self):
        super().setUp()
        self.tree.serve_model(self.model)

    def read_until(self, process, pattern):
        log = ''
        for line in process.stderr:
            log += line
            found = re.search(pattern, line)
            if found:
                return found
        self.fail(f'the end came before {pattern!r}: {log}')

    def port_of(self, process):
        return int(self.read_until(process, r'starting a server of 2 ranks on 127\.0\.0\.1:(\d+)')
                   [1])

    def expect_end(self, process, port, status):
        _, log = process.communicate(timeout=LIMIT_S)
        self.assertEqual(process.returncode, status, log)
        self.assertEqual(self.marked(), [], log)
        self.assertNotIn('killed what had not stopped', log)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(('127.0.0.1', port))

    def interrupt(self, process, number=signal.SIGINT):
        # Script, launcher, mpirun, two ranks.
        self.assertGreaterEqual(len(self.marked()), 5)
        os.killpg(process.pid, number)

    def test_while_the_server_starts(self):
        process = self.start('--serve')
        port = self.port_of(process)
        with socket.socket() as other, self.assertRaises(OSError):  # the port is taken already
            other.bind(('127.0.0.1', port))
        os.killpg(process.pid, signal.SIGINT)
        self.expect_end(process, port, 130)

    def test_while_the_model_loads(self):
        process = self.start('--serve')
        port = self.port_of(process)
        self.read_until(process, 'loading model')
        self.interrupt(process)
        self.expect_end(process, port, 130)

    def test_while_the_server_waits(self):
        small = self.tree.root / 'small'  # no other would wait in another way
        copy_with_chat_template(CHECKPOINT, small)
        self.tree.serve_model(small)
        for number, status in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
            process = self.start('--serve')
            port = self.port_of(process)
            self.read_until(process, 'ready; Ctrl-C stops it')
            self.interrupt(process, number)
            self.expect_end(process, port, status)

    def test_while_it_generates(self):
        process = self.start('Write a very long story about the sea.')
        port = self.port_of(process)
        if process.stdout.read(1) == '':
            self.fail(f'the end came before an answer: {process.stderr.read()}')
        self.interrupt(process)
        self.expect_end(process, port, 130)

    def test_nothing_is_done_again(self):
        """And where nobody interrupts it, it answers, ends, and leaves nothing either."""
        process = self.start('Hi')
        port = self.port_of(process)
        self.expect_end(process, port, 0)
        self.assertEqual(self.tree.called('cmake'),
                         ['cmake --build --preset cpu --target outrider -- --quiet'])
        for name in ('apt-get', 'sudo', 'ninja'):
            self.assertEqual(self.tree.called(name), [])


class Ended(QuickstartTest):
    def test_by_one_request(self):
        """A second would end the calls that still run."""
        self.tree.serve_model('model')
        calls = self.tree.calls
        # A server that waits, and a client whom it has answered once it is there.
        self.tree.stub('program', 'case $1 in launch) exec sleep 1000;; esac\n'
                       f'until grep -q "^program launch" "{calls}"; do sleep 0.1; done')
        shutil.rmtree(self.tree.root / 'build')
        self.tree.has_built('cpu', self.tree.stubs / 'program')
        # Bash says whom it signals.
        before = self.tree.stubs.parent / 'before'
        before.write_text(f'kill() {{ echo "kill $*" >>"{calls}"; builtin kill "$@"; }}\n')
        self.tree.environment['BASH_ENV'] = str(before)
        process = self.start('--serve')
        for line in process.stderr:
            if 'ready; Ctrl-C stops it' in line:
                break
        server, = (pid for pid in self.marked() if self.leads(pid) and pid != process.pid)
        process.terminate()
        _, log = process.communicate(timeout=LIMIT_S)
        self.assertEqual(process.returncode, 143, log)
        signalled = ' '.join(line for line in self.tree.called('kill') if '-TERM' in line)
        self.assertEqual(signalled.split().count(str(server)), 1, signalled)


class Configured(QuickstartTest):
    def test_where_the_checkout_is_now(self):
        """One that was moved or copied has the paths of another."""
        self.tree.serve_model('model')
        self.tree.stub('cmake', '[ "$1" = --preset ]')  # nothing is built
        cache = self.tree.root / 'build' / 'cpu' / 'CMakeCache.txt'
        cached = cache.read_text()
        for home, anew in ((self.tree.root, False), ('/elsewhere', True)):
            cache.write_text(f'{cached}CMAKE_HOME_DIRECTORY:INTERNAL={home}\n')
            self.tree.calls.write_text('')
            process = self.start('Hi')
            _, stderr = process.communicate(timeout=LIMIT_S)
            self.assertIn('the build failed', stderr)
            first, *others = self.tree.called('cmake')
            self.assertEqual(first.startswith('cmake --preset cpu -D '), anew, first)
            self.assertEqual(cache.exists(), not anew)
            self.assertEqual(len(others), anew)


class OnGpus(QuickstartTest):
    """Where there are GPUs for all ranks the build is the one for these."""

    def setUp(self):
        super().setUp()
        self.tree.serve_model('model')
        # A server that ends at once: what it was asked for is known by then.
        self.tree.stub('program', f'echo "$0 $*" >>"{self.tree.calls}"\n'
                                  'case $1 in generate) exec sleep 60;; esac; exit 1')
        shutil.rmtree(self.tree.root / 'build')
        for preset in ('cpu', 'cuda', 'cuda-all'):
            self.tree.has_built(preset, self.tree.stubs / 'program')
        self.tree.stub('cmake', f'echo "CUDA_HOME=$CUDA_HOME" >>"{self.tree.calls}"')
        self.has_cuda(13, 22809)

    def has_cuda(self, release, nccl):
        """A toolkit that a variable names; nccl: its version, or none where it has none."""
        self.tree.stub('nvcc', f'echo "Cuda compilation tools, release {release}.0, V{release}.0"')
        toolkit = self.tree.stubs.parent / 'toolkit'
        shutil.rmtree(toolkit, ignore_errors=True)
        for name in ('bin', 'include'):
            (toolkit / name).mkdir(parents=True)
        shutil.copy(self.tree.stubs / 'nvcc', toolkit / 'bin' / 'nvcc')
        if nccl:
            (toolkit / 'include' / 'nccl.h').write_text(f'#define NCCL_VERSION_CODE {nccl}\n')
        self.toolkit = self.tree.environment['CUDA_HOME'] = str(toolkit)

    def run_with(self, gpus, *arguments):
        """What is built, for how many ranks, what is said of it, and with which toolkit."""
        self.tree.stub('nvidia-smi', f"printf '%s\\n' {' '.join(repr(gpu) for gpu in gpus)}")
        self.tree.calls.write_text('')
        _, log = self.start(*arguments).communicate(timeout=LIMIT_S)
        self.assertIn('the server has ended with status 1', log)
        build, = self.tree.called('cmake')
        launch, = (line for line in self.tree.calls.read_text().splitlines()
                   if ' launch ' in line and line.startswith('build/'))
        home, = (line for line in self.tree.calls.read_text().splitlines()
                 if line.startswith('CUDA_HOME='))
        preset = re.search(r'--preset (\S+)', build)[1]
        self.assertEqual(launch.split()[0], f'build/{preset}/bin/outrider')
        self.assertIn(f' --device {"auto" if preset == "cpu" else "cuda"} ', launch)
        said = [line for line in log.splitlines() if 'on the CPU' in line]
        return preset, int(re.search(r'--ranks (\d+)', launch)[1]), said, home[len('CUDA_HOME='):]

    def test_that_the_program_knows(self):
        hopper, ampere = '9.0, 580.65.06', '8.0, 580.65.06'
        for gpus, arguments, preset, ranks in (
                ([hopper], [], 'cuda', 1), ([hopper] * 8, [], 'cuda', 2),
                ([hopper] * 8, ['--ranks', '8'], 'cuda', 8), ([ampere], [], 'cuda-all', 1),
                ([hopper, ampere], [], 'cuda-all', 2)):
            with self.subTest(gpus=gpus):
                self.assertEqual(self.run_with(gpus, *arguments),
                                 (preset, ranks, [], self.toolkit))
        self.tree.environment['CUDA_VISIBLE_DEVICES'] = '3'
        self.assertEqual(self.run_with([hopper] * 8)[:2], ('cuda', 1))
        for none in ('-1', '', '-1,0'):
            self.tree.environment['CUDA_VISIBLE_DEVICES'] = none
            self.assertEqual(self.run_with([hopper] * 8)[:2], ('cpu', 2), none)

    def test_that_are_too_few_or_too_old(self):
        hopper, turing, behind = '9.0, 580.65.06', '7.5, 580.65.06', '9.0, 575.57.08'
        expected = '; expected 8.0 and 580 or more'
        for gpus, arguments, ranks, reason in (
                ([hopper] * 2, ['--ranks', '3'], 3, '2 GPUs for 3 ranks'),
                ([hopper, turing], [], 2,
                 f'a GPU has the compute capability and driver {turing}{expected}'),
                ([behind], [], 2,
                 f'a GPU has the compute capability and driver {behind}{expected}')):
            with self.subTest(gpus=gpus):
                self.assertEqual(self.run_with(gpus, *arguments),
                                 ('cpu', ranks, [f'outrider: on the CPU: {reason}'],
                                  self.toolkit))
        self.tree.stub('nvidia-smi', 'echo "No devices were found"; exit 6')
        _, log = self.start().communicate(timeout=LIMIT_S)
        self.assertIn('outrider: on the CPU: nvidia-smi has failed: No devices were found\n', log)
        self.assertIn('starting a server of 2 ranks', log)

    def test_without_a_toolkit_that_will_do(self):
        """Its parts are PyPI's then; here they have been fetched before."""
        toolkit = self.tree.cache / f'cuda-{PINS}'
        toolkit.mkdir()
        (toolkit / 'complete').touch()
        toolkit.with_suffix('.lock').mkdir()  # as in a cache where nothing can be written
        (self.tree.root / 'tools' / 'requirements-cuda.txt').touch()
        # One in the system's own folders would do.
        system = any(Path(root, 'include', 'nccl.h').exists() for root in ('/usr', '/usr/local'))
        for release, nccl in ((12, 22809), (13, 21805), *([] if system else [(13, None)])):
            with self.subTest(release=release, nccl=nccl):
                self.has_cuda(release, nccl)
                self.assertEqual(self.run_with(['9.0, 580.65.06'])[3], f'{toolkit}/nvidia/cu13')


class CannotInstall(QuickstartTest):
    """One line says what is missing, and nothing has been done."""

    def refuses(self):
        process = self.start('Hi')
        stdout, stderr = process.communicate(timeout=LIMIT_S)
        self.assertEqual(process.returncode, 1, stderr)
        self.assertEqual(stdout, '')
        self.assertEqual(self.tree.called('cmake'), [])
        return stderr

    def has_all_but_the_missing(self):
        self.tree.has_packages([name for name in packages() if name not in MISSING])

    def test_without_apt(self):
        for missing in ('apt-get', 'dpkg-query'):
            (self.tree.stubs / missing).unlink()
            self.tree.only(BASICS) if missing == 'apt-get' else self.tree.stub('apt-get', '')
            line = self.refuses()
            self.assertEqual(line.count('\n'), 1, line)
            self.assertTrue(line.startswith('outrider: this system has no apt-get'), line)
            for name in packages():
                self.assertIn(f' {name}', line)
            self.assertEqual(self.tree.called('sudo') + self.tree.called('apt-get'), [])

    def test_without_root_and_sudo(self):
        self.has_all_but_the_missing()
        self.tree.stub('id', 'echo 1000')
        (self.tree.stubs / 'sudo').unlink()
        self.tree.only([name for name in BASICS if name != 'id'])
        line = self.refuses()
        self.assertEqual(line, 'outrider: only root or sudo can install Debian packages: '
                               f'{" ".join(MISSING)}\n')
        self.assertEqual(self.tree.called('apt-get'), [])

    def test_where_apt_fails(self):
        self.has_all_but_the_missing()
        self.tree.stub('id', 'echo 1000')
        self.tree.stub('sudo', 'exec "$@"')
        self.tree.stub('apt-get', 'echo "E: Temporary failure resolving"; exit 100')
        lines = self.refuses().splitlines()
        self.assertEqual(lines, [
            f'outrider: installing Debian packages: {" ".join(MISSING)}',
            'E: Temporary failure resolving',
            'outrider: could not install (Debian 12 and a network are needed): '
            f'{" ".join(MISSING)}'])
        self.assertEqual(len(self.tree.called('sudo')), 1)


if __name__ == '__main__':
    unittest.main(argv=sys.argv[:1] + sys.argv[4:])

"""Two hosts on one machine: network namespaces joined by a cable, each with a name of its own."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path


def run(*command):
    return subprocess.run(command, capture_output=True, text=True)


class TwoHosts:
    """Hosts outrider-a and outrider-b. `prefix` runs a command on the first; `environment` lets
    mpirun start its agent on the second."""

    NAMES = ('outrider-a', 'outrider-b')

    @staticmethod
    def why_not():
        """Why there can be no namespaces here; empty where there can."""
        if os.geteuid() != 0:
            return 'network namespaces need root'
        for program in ('ip', 'unshare'):
            if shutil.which(program) is None:
                return f'{program} is not installed'
        name = f'outrider-probe-{os.getpid()}'
        probe = run('ip', 'netns', 'add', name)
        if probe.returncode == 0:
            probe = run('ip', 'netns', 'exec', name, 'unshare', '--uts', 'true')
            run('ip', 'netns', 'del', name)
        return '' if probe.returncode == 0 else f'no namespaces here: {probe.stderr.strip()}'

    def __enter__(self):
        self.directory = tempfile.TemporaryDirectory()
        self.spaces = [f'{name}-{os.getpid()}' for name in self.NAMES]
        try:
            self.make()
        except BaseException:
            self.__exit__()
            raise
        return self

    def make(self):
        def ip(*arguments):
            result = run('ip', *arguments)
            if result.returncode != 0:
                raise AssertionError(f'ip {" ".join(arguments)}: {result.stderr}')
        for space in self.spaces:
            ip('netns', 'add', space)
            ip('-n', space, 'link', 'set', 'lo', 'up')
        ip('link', 'add', 'cable', 'netns', self.spaces[0], 'type', 'veth', 'peer', 'name', 'cable',
           'netns', self.spaces[1])
        for number, space in enumerate(self.spaces, 1):
            ip('-n', space, 'addr', 'add', f'10.99.0.{number}/24', 'dev', 'cable')
            ip('-n', space, 'link', 'set', 'cable', 'up')
        enter = ('ip netns exec {space} unshare --uts sh -c '
                 '\'hostname {name}; exec "$0" "$@"\'')
        self.prefix = ['ip', 'netns', 'exec', self.spaces[0], 'unshare', '--uts', 'sh', '-c',
                       f'hostname {self.NAMES[0]}; exec "$0" "$@"']
        agent = Path(self.directory.name, 'agent')
        agent.write_text('#!/bin/sh\n# HOST COMMAND…: what ssh would do\nshift\nexec '
                         + enter.format(space=self.spaces[1], name=self.NAMES[1])
                         + ' sh -c "$*"\n')
        agent.chmod(0o755)
        self.hostfile = Path(self.directory.name, 'hosts')
        self.hostfile.write_text(''.join(f'{name} slots=1\n' for name in self.NAMES))
        self.environment = {'OMPI_MCA_plm_rsh_agent': str(agent)}

    def cable(self, state):
        """'up', or 'down': what is sent is lost, and nobody is told."""
        run('ip', '-n', self.spaces[1], 'link', 'set', 'cable', state)

    def processes(self, host):
        return [int(pid) for pid in run('ip', 'netns', 'pids', self.spaces[host]).stdout.split()]

    def __exit__(self, *_):
        for space in self.spaces:
            for pid in run('ip', 'netns', 'pids', space).stdout.split():
                run('kill', '-KILL', pid)
            run('ip', 'netns', 'del', space)
        self.directory.cleanup()

"""A server of its own for what is measured, and how it is asked."""

import importlib
import math
import re
import signal
import subprocess
import sys
import tempfile
import threading
import urllib.request
from pathlib import Path

import grpc
from grpc_tools import protoc

PROTO_ROOT = Path(__file__).resolve().parent.parent / 'proto'


def import_stubs():
    well_known = Path(protoc.__file__).parent / '_proto'
    with tempfile.TemporaryDirectory() as directory:
        if protoc.main(['protoc', f'-I{PROTO_ROOT}', f'-I{well_known}',
                        f'--python_out={directory}', f'--grpc_python_out={directory}',
                        *map(str, PROTO_ROOT.rglob('*.proto'))]) != 0:
            sys.exit(f'{Path(sys.argv[0]).name}: protoc failed')
        sys.path.insert(0, directory)
        return (importlib.import_module('outrider.v1.generation_pb2'),
                importlib.import_module('outrider.v1.generation_pb2_grpc'))


pb, pb_grpc = import_stubs()


def exit_on_sigterm():
    """In order, with what `with` blocks have to end: a server."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


class Server:
    """`outrider launch`; ends with the block."""

    def __init__(self, program, model, ranks, options):
        self.process = subprocess.Popen(
            [program, 'launch', '--ranks', str(ranks), '--no-restart', '--', 'serve', '--model',
             model, '--port', '0', '--http-port', '0', *options],
            stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)

    def port_in(self, words):
        said = ''
        for line in self.process.stderr:
            found = re.search(words + r' 127\.0\.0\.1:(\d+)', line)
            if found:
                return int(found[1])
            said += line
        sys.exit(f'{said}{Path(sys.argv[0]).name}: the server did not come up')

    def __enter__(self):
        try:
            self.port = self.port_in('listening on')
            self.http_port = self.port_in('metrics and probes on')
        except BaseException:
            self.__exit__()
            raise
        self.address = f'127.0.0.1:{self.port}'
        threading.Thread(target=self.process.stderr.read, daemon=True).start()
        self.stub = pb_grpc.GenerationServiceStub(grpc.insecure_channel(self.address))
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait()

    def steps(self):
        """(number, seconds) of all steps so far."""
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(
                f'http://127.0.0.1:{self.http_port}/metrics') as page:
            text = page.read().decode()
        seconds = sum(map(float, re.findall(r'^outrider_step_seconds_sum\S* (\S+)', text, re.M)))
        return int(re.search(r'^outrider_step_seconds_count\S* (\d+)', text, re.M)[1]), seconds


def percentile(values, share):
    """The smallest of values, ascending, that so large a share of all does not exceed."""
    return values[max(math.ceil(round(share * len(values), 6)), 1) - 1]

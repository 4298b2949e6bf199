#!/usr/bin/env python3
"""How smooth a stream without speculation stays beside a long prompt and beside busy clients.
Prints Markdown tables.

    bench/serving.py --program build/cpu/bin/outrider --model DIR [--ranks 2] [TABLE…]

TABLE: prefill, clients (default: both). Starts a server of its own. Needs the
packages of tools/requirements-test.txt. docs/benchmarks/serving.md has results, and what they mean.
"""

import importlib
import math
import multiprocessing
import os
import re
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from concurrent import futures
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_tools import protoc

from command_line import (LEAST_TOKENS, Parser, add_server, at_least, check_model, check_program,
                          positive)
from page import machine

PROTO_ROOT = Path(__file__).resolve().parent.parent / 'proto'
STREAM = 'Once upon a time there was a lighthouse keeper who'
CLIENTS_S = 8  # their life, the starting of Python included
POLLS_PER_S = 10  # of each of the busy clients: a health check and GetServerInfo


def import_stubs():
    well_known = Path(protoc.__file__).parent / '_proto'
    with tempfile.TemporaryDirectory() as directory:
        if protoc.main(['protoc', f'-I{PROTO_ROOT}', f'-I{well_known}',
                        f'--python_out={directory}', f'--grpc_python_out={directory}',
                        *map(str, PROTO_ROOT.rglob('*.proto'))]) != 0:
            sys.exit('serving.py: protoc failed')
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
        sys.exit(f'{said}serving.py: the server did not come up')

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

    def request(self, max_tokens, **prompt):
        return pb.GenerateRequest(
            **prompt, speculation=pb.SpeculationParams(num_speculative_tokens=0),
            sampling_params=pb.SamplingParams(temperature=0, max_tokens=max_tokens,
                                              ignore_eos=True))

    def chunk_times(self, max_tokens, text=STREAM):
        """When each chunk of a stream without speculation came."""
        return [time.perf_counter() for message in
                self.stub.Generate(self.request(max_tokens, text=text))
                if message.HasField('chunk')]


def gaps_ms(times, begin=0.0, end=float('inf')):
    return sorted(1000 * (b - a) for a, b in zip(times, times[1:]) if begin <= a and b <= end)


def percentile(values, share):
    """The smallest of values, ascending, that so large a share of all does not exceed."""
    return values[max(math.ceil(round(share * len(values), 6)), 1) - 1]


def row(*cells):
    print('| ' + ' | '.join(str(cell) for cell in cells) + ' |', flush=True)


def header(*cells):
    row(*cells)
    row(*['---'] * len(cells))


def gaps_row(name, gaps, median):
    cells = [f'{value:.1f} ({value / median:.2f})' for value in
             (statistics.median(gaps), percentile(gaps, 0.90), percentile(gaps, 0.99), gaps[-1])]
    row(name, len(gaps), *cells)


def prefill(server, arguments):
    print('ms between the chunks of a stream; in brackets: of its median when alone, before and '
          'after, since its own context grows too\n')
    header('', 'chunks', 'median', 'P90', 'P99', 'most')
    model = server.stub.GetModelInfo(pb.GetModelInfoRequest())
    alone, during, took = [], [], []
    for number in range(arguments.rounds):
        times = []
        stream = server.stub.Generate(
            server.request(model.max_position_embeddings // 2, text=STREAM))

        def read():
            try:
                times.extend(time.perf_counter() for message in stream if message.HasField('chunk'))
            except grpc.RpcError:
                pass  # cancelled below

        reader = threading.Thread(target=read)
        reader.start()
        time.sleep(arguments.alone_seconds)
        # A prompt that no prefix cache knows.
        ids = [(i * 7919 + number) % model.vocab_size for i in range(arguments.prompt_tokens)]
        begin = time.perf_counter()
        server.stub.GenerateOnce(
            server.request(1, tokenized=pb.Tokenized(input_ids=ids)))
        end = time.perf_counter()
        time.sleep(arguments.alone_seconds)
        stream.cancel()
        reader.join()
        alone += gaps_ms(times, 0, begin) + gaps_ms(times, end)
        during += gaps_ms(times, begin, end)
        took.append(end - begin)
    if not alone or not during:
        sys.exit('serving.py: expected chunks of the stream alone and beside the prompt, found '
                 f'{len(alone)} and {len(during)} gaps between such')
    alone.sort()
    during.sort()
    median = statistics.median(alone)
    gaps_row('alone', alone, median)
    gaps_row(f'while {arguments.prompt_tokens} tokens are prefilled', during, median)
    print(f'\nThe prefill took {statistics.median(took):.1f} s.')


def poll(address, end, calls):
    channel = grpc.insecure_channel(address, [('grpc.use_local_subchannel_pool', 1)])
    health = health_pb2_grpc.HealthStub(channel)
    service = pb_grpc.GenerationServiceStub(channel)
    while time.time() < end:
        health.Check(health_pb2.HealthCheckRequest())
        service.GetServerInfo(pb.GetServerInfoRequest())
        calls.append(2)
        time.sleep(1 / POLLS_PER_S)


def poll_all(address, count, end, calls):
    os.nice(19)  # what the clients themselves compute is not what is asked
    made = []
    with futures.ThreadPoolExecutor(max(count, 1)) as threads:
        polled = [threads.submit(poll, address, end, made) for _ in range(count)]
    for of_client in polled:
        of_client.result()  # raises what it did
    calls.value += sum(made)


def clients(server, arguments):
    print(f'A stream alone, and beside clients of which each asks for health and GetServerInfo '
          f'{POLLS_PER_S} times a second\n')
    header('clients', 'chunks', 'median', 'P90', 'P99', 'most', 'a step, ms')
    gaps = {count: [] for count in (0, arguments.clients)}
    steps = {count: [0, 0.0] for count in gaps}
    calls = multiprocessing.get_context('spawn').Value('l', 0)
    for _ in range(arguments.rounds):
        for count in gaps:
            pollers = multiprocessing.get_context('spawn').Process(
                target=poll_all, args=(server.address, count, time.time() + CLIENTS_S, calls))
            pollers.start()
            time.sleep(2.5)  # until Python and gRPC are up
            before = server.steps()
            gaps[count] += gaps_ms(server.chunk_times(arguments.poll_tokens))
            after = server.steps()
            steps[count][0] += after[0] - before[0]
            steps[count][1] += after[1] - before[1]
            pollers.join()
            if pollers.exitcode != 0:
                sys.exit('serving.py: a busy client failed, as it says above')
    median = statistics.median(gaps[0])
    for count in gaps:
        gaps[count].sort()
        values = [statistics.median(gaps[count]), percentile(gaps[count], 0.90),
                  percentile(gaps[count], 0.99), gaps[count][-1]]
        row(count, len(gaps[count]), *[f'{v:.1f} ({v / median:.2f})' for v in values],
            f'{1000 * steps[count][1] / steps[count][0]:.2f}')
    print(f'\n{calls.value / arguments.rounds / CLIENTS_S:.0f} calls a second were answered.')


TABLES = {table.__name__: table for table in (prefill, clients)}


def main():
    parser = Parser(description=__doc__.split('\n\n', maxsplit=1)[0])
    parser.add_argument('tables', nargs='*', metavar='TABLE', help=', '.join(TABLES))
    add_server(parser)
    parser.add_argument('--rounds', type=at_least(1), default=1, help='of prefill and clients')
    parser.add_argument('--alone-seconds', type=positive, default=5,
                        help='of prefill, before and after')
    parser.add_argument('--prompt-tokens', type=at_least(1), default=4000, help='of prefill')
    parser.add_argument('--clients', type=at_least(1), default=16)
    parser.add_argument('--poll-tokens', type=at_least(LEAST_TOKENS), default=400,
                        help='of the stream of clients')
    arguments = parser.parse_args()
    for name in arguments.tables:
        if name not in TABLES:
            parser.error(f'{name} is no table; expected {", ".join(TABLES)}')
    check_program(parser, arguments.program)
    check_model(parser, arguments.model)
    print(f'{machine()}; {arguments.ranks} ranks.')
    exit_on_sigterm()
    try:
        with Server(arguments.program, arguments.model, arguments.ranks,
                    shlex.split(arguments.serve)) as server:
            for name in arguments.tables or TABLES:
                print(f'\n{name}\n')
                TABLES[name](server, arguments)
    except grpc.RpcError as error:
        sys.exit(f'serving.py: the server: {error.details()}')


if __name__ == '__main__':
    main()

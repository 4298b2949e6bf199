"""How smooth a stream without speculation stays beside a long prompt, and beside busy clients: what
docs/benchmarks/serving.md says. bench: reproduce's, with a server of its own.
"""

import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

import grpc

from page import table
from paired import time_ratio, with_interval
from serving import pb, percentile

STREAM = 'Once upon a time there was a lighthouse keeper who'
ALONE_S = 5  # of the stream, before the prompt and behind it
PROMPT_TOKENS = 4000
BUSY_CLIENTS = 16
BUSY_TOKENS = 400  # of the stream beside them
BUSY = Path(__file__).resolve().parent / 'busy_clients.py'
SHARES = (0.5, 0.9, 0.99)


def plain_request(max_tokens, **prompt):
    return pb.GenerateRequest(
        **prompt, speculation=pb.SpeculationParams(num_speculative_tokens=0),
        sampling_params=pb.SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True))


def gaps_ms(times, begin=0.0, end=float('inf')):
    """Ascending; of what came between begin and end."""
    return sorted(1000 * (b - a) for a, b in zip(times, times[1:]) if begin <= a and b <= end)


def gaps_row(name, gaps, median):
    cells = [f'{value:.1f} ({value / median:.2f})'
             for value in (*(percentile(gaps, share) for share in SHARES), gaps[-1])]
    return [name, len(gaps), *cells]


def spread(values):
    return f'{min(values):.2f} to {max(values):.2f}'


def prefill(bench):
    info = bench.stub.GetModelInfo(pb.GetModelInfoRequest())
    most = info.max_position_embeddings
    prompt_tokens = min(PROMPT_TOKENS, most // 2)
    alone, beside, rounds, took = [], [], [], []
    for number in range(bench.rounds):
        times, errors = [], []
        stream = bench.stub.Generate(plain_request(None, text=STREAM))

        def read():
            try:
                times.extend(time.perf_counter() for message in stream if message.HasField('chunk'))
            except grpc.RpcError as error:
                errors.append(error)

        reader = threading.Thread(target=read)
        reader.start()
        time.sleep(ALONE_S)
        # A prompt that no prefix cache knows.
        ids = [(i * 7919 + number) % info.vocab_size for i in range(prompt_tokens)]
        begin = time.perf_counter()
        bench.stub.GenerateOnce(plain_request(1, tokenized=pb.Tokenized(input_ids=ids)))
        end = time.perf_counter()
        time.sleep(ALONE_S)
        stream.cancel()
        reader.join()
        for error in errors:
            if error.code() != grpc.StatusCode.CANCELLED:
                raise error
        if not times or times[-1] < end:
            sys.exit('reproduce: the stream ended before the prompt was computed')
        of_round = gaps_ms(times, 0, begin) + gaps_ms(times, end), gaps_ms(times, begin, end)
        if not all(of_round):
            sys.exit('reproduce: expected chunks of the stream alone and beside the prompt, found '
                     f'{len(of_round[0])} and {len(of_round[1])} gaps between such')
        alone += of_round[0]
        beside += of_round[1]
        median = statistics.median(of_round[0])
        rounds.append([percentile(of_round[1], share) / median for share in SHARES])
        took.append(end - begin)
    alone.sort()
    beside.sort()
    median = percentile(alone, 0.5)
    name = f'beside {prompt_tokens} tokens'
    p50, p90, p99 = map(spread, zip(*rounds))
    return (f'{bench.rounds} rounds. Milliseconds between the chunks of a stream; in brackets: of '
            'its median when alone, which is before the prompt and behind it, since its own '
            'context grows too.\n\n'
            + bench.tails('prefill', 'ms between chunks', {'alone': alone, name: beside})
            + table(['', 'gaps', 'median', 'P90', 'P99', 'most'],
                    [gaps_row('alone', alone, median), gaps_row(name, beside, median)])
            + f'\n- By round, of that round’s median alone: the median {p50}, P90 {p90}, '
            f'P99 {p99}.\n'
            f'- The prompt took {min(took):.1f} to {max(took):.1f} s, '
            f'{statistics.median(took):.1f} in the median.\n')


class Busy:
    """Clients that ask while the block runs; then calls_per_s."""

    def __init__(self, address):
        self.process = subprocess.Popen([sys.executable, BUSY, address, str(BUSY_CLIENTS)],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self):
        if self.process.stdout.readline() != 'ready\n':
            self.__exit__()
        return self

    def __exit__(self, *_):
        said, _ = self.process.communicate()
        if self.process.returncode != 0:
            sys.exit('reproduce: a busy client failed, as it says above')
        self.calls_per_s = float(said)


class Streamed:
    """One kind of stream's, over all rounds."""

    def __init__(self):
        self.gaps, self.step_ms = [], []  # of all; [rounds]

    def add(self, bench):
        steps, seconds = bench.server.steps()
        messages = bench.stub.Generate(plain_request(BUSY_TOKENS, text=STREAM))
        self.gaps += gaps_ms([time.perf_counter() for message in messages
                              if message.HasField('chunk')])
        steps_after, seconds_after = bench.server.steps()
        self.step_ms.append(1000 * (seconds_after - seconds) / (steps_after - steps))


def clients(bench):
    alone, beside, calls = Streamed(), Streamed(), []
    alone.add(bench)  # warms up
    alone = Streamed()
    for number in range(bench.rounds):
        # In turns, whatever the machine does meanwhile.
        for busy in (False, True) if number % 2 == 0 else (True, False):
            if not busy:
                alone.add(bench)
                continue
            with Busy(bench.server.address) as polling:
                beside.add(bench)
            calls.append(polling.calls_per_s)
    median = percentile(sorted(alone.gaps), 0.5)
    name = f'beside {BUSY_CLIENTS} clients'
    longer = with_interval(*time_ratio(beside.step_ms, alone.step_ms), 3)
    rows = [[*gaps_row(of, sorted(streamed.gaps), median),
             f'{statistics.mean(streamed.step_ms):.2f}']
            for of, streamed in (('alone', alone), (name, beside))]
    return (f'{bench.rounds} rounds. Milliseconds between the chunks of a stream; in brackets: of '
            'its median when alone.\n\n'
            + bench.tails('clients', 'ms between chunks', {'alone': alone.gaps, name: beside.gaps})
            + table(['', 'gaps', 'median', 'P90', 'P99', 'most', 'a step, ms'], rows)
            + f'\n- {statistics.mean(calls):.0f} calls a second were answered. A step took '
            f'{longer} times as long beside them; in brackets: 95 %, bootstrapped over rounds.\n')

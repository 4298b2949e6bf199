#!/usr/bin/env python3
"""What each drafter brings: for every drafter, way of sampling and kind of text the acceptance, the
predicted and measured speed-up, the time of a token, and the best fixed K beside what is adapted.
Prints a Markdown table.

    bench/speculation.py --program build/cpu/bin/outrider --model DIR [--serve 'FLAGS'] [DRAFTER…]

DRAFTER: one that the server offers, or `default`, which is what a request gets that names none;
all of them unless told. The best fixed K of `default` is that of any drafter. Starts a server of
its own with --serve's flags, asks it each prompt of speculation_prompts.jsonl, one after the other,
once by each arm (no speculation, K fixed, K adapted) in an order drawn anew for each, and leaves
out the arms of a first prompt, by which the server learns. Needs the packages of
tools/requirements-test.txt.
docs/benchmarks/speculation.md has results, and what they mean.
"""

import argparse
import collections
import json
import random
import statistics
import time
import typing
from pathlib import Path

from serving import Server, header, pb, percentile, row

SAMPLING = {'greedy': {'temperature': 0}, 'T 0.8, top-p 0.95': {'temperature': 0.8, 'top_p': 0.95},
            'T 1': {'temperature': 1}}
KINDS = {'chat': 'chat', 'code': 'code', 'summary': 'summarising', 'copy': 'copying edits'}
ADAPTIVE = -1
DEFAULT = 'default'  # no drafter is named


class Prompt(typing.NamedTuple):
    kind: str
    text: str
    reference: str = ''  # of a summary


def read_prompts():
    """By kind."""
    prompts = collections.defaultdict(list)
    for line in Path(__file__).with_name('speculation_prompts.jsonl').open(encoding='utf-8'):
        prompt = Prompt(**json.loads(line))
        prompts[prompt.kind].append(prompt)
    return prompts


def chat_request(text, speculation, sampling, tokens):
    return pb.GenerateRequest(
        messages=pb.Chat(messages=[pb.ChatMessage(role='user', content=text)]),
        speculation=pb.SpeculationParams(**speculation),
        sampling_params=pb.SamplingParams(max_tokens=tokens, ignore_eos=True, **sampling))


class Arm:
    """Answers to requests that differ in their prompt alone."""

    def __init__(self):
        self.decode_ms = self.tokens = self.alpha_sum = self.alpha_weight = self.cost = 0
        self.token_ms, self.steps, self.predicted, self.shift = [], collections.Counter(), [], []
        self.answers_ms = []  # of a token, in the mean, by answer
        self.answers = []  # (prompt, text, log-probabilities of the tokens if asked for)

    def ask(self, stub, request):
        times, sizes, text, logprobs = [], [], '', []
        for message in stub.Generate(request):
            if message.HasField('chunk') and message.chunk.token_ids:
                times.append(time.perf_counter())
                sizes.append(len(message.chunk.token_ids))
                text += message.chunk.text
                logprobs += [token.logprob for token in message.chunk.logprobs]
        complete = message.complete
        for size, begin, end in zip(sizes[1:], times, times[1:]):
            self.token_ms += [1000 * (end - begin) / size] * size
        self.decode_ms += complete.timings.decode_ms
        self.tokens += complete.completion_tokens - 1
        self.answers_ms.append(complete.timings.decode_ms / (complete.completion_tokens - 1))
        self.answers.append((request.messages.messages[0].content, text, logprobs))
        stats = complete.speculation
        self.shift.append(stats.lenience_shift)
        self.alpha_sum += stats.alpha * stats.num_draft_tokens
        self.alpha_weight += stats.num_draft_tokens
        self.predicted.append(stats.predicted_speedup)
        self.cost = stats.draft_cost
        self.steps.update(dict(enumerate(stats.steps_by_lookahead)))

    def ms(self):
        return self.decode_ms / self.tokens

    def alpha(self):
        return self.alpha_sum / self.alpha_weight if self.alpha_weight else 0

    def tokens_a_step(self):
        return self.tokens / self.steps.total()

    def mean_lookahead(self):
        return sum(k * n for k, n in self.steps.items()) / self.steps.total()


def measure(stub, prompts, drafters, sampling, arguments, order):
    """Arms by (drafter, K); the plain one by ('', 0)."""
    kinds = [('', 0)] + [(drafter, k) for drafter in drafters
                         for k in (*(arguments.fixed if drafter != DEFAULT else ()), ADAPTIVE)]
    arms = {kind: Arm() for kind in kinds}
    for prompt in prompts:
        for drafter, k in order.sample(kinds, len(kinds)):
            speculation = {} if k == ADAPTIVE else {'num_speculative_tokens': k}
            if drafter not in ('', DEFAULT):
                speculation['drafter'] = drafter
            arms[drafter, k].ask(
                stub, chat_request(prompt.text, speculation, sampling, arguments.tokens))
    return arms


def print_rows(name, kind, drafter, arms):
    plain, adaptive = arms['', 0].ms(), arms[drafter, ADAPTIVE]
    fixed = [key for key in arms if key[1] > 0 and drafter in (key[0], DEFAULT)]
    best = min(fixed, key=lambda key: arms[key].ms(), default=None)
    of_best = f'{plain / arms[best].ms():.2f} ({best[1]})' if best else ''
    to_best = f'{arms[best].ms() / adaptive.ms():.2f}' if best else ''
    every = [arm for (of, _), arm in arms.items() if of == drafter]
    drafted = sum(arm.alpha_weight for arm in every)
    alpha = sum(arm.alpha_sum for arm in every) / max(drafted, 1)
    times = sorted(adaptive.token_ms)
    row(drafter, name, kind, f'{alpha:.2f}', f'{adaptive.cost:.3f}',
        f'{adaptive.tokens_a_step():.2f}', f'{adaptive.mean_lookahead():.1f}',
        f'{statistics.mean(adaptive.predicted):.2f}', f'{plain / adaptive.ms():.2f}',
        of_best, to_best,
        ' / '.join(f'{percentile(times, share):.1f}' for share in (0.5, 0.9, 0.99)))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split('\n\n', maxsplit=1)[0])
    parser.add_argument('drafters', nargs='*', metavar='DRAFTER')
    parser.add_argument('--program', required=True)
    parser.add_argument('--model', required=True)
    parser.add_argument('--ranks', type=int, default=2)
    parser.add_argument('--serve', default='', help='more flags of serve, in one word')
    parser.add_argument('--fixed', type=int, nargs='+', default=[1, 2, 4, 8], metavar='K')
    parser.add_argument('--tokens', type=int, default=65, help='of an answer')
    parser.add_argument('--prompts', type=int, default=4, help='of a kind')
    parser.add_argument('--seed', type=int, default=0, help='of the order')
    arguments = parser.parse_args()
    prompts = read_prompts()
    order = random.Random(arguments.seed)
    with Server(arguments.program, arguments.model, arguments.ranks,
                arguments.serve.split()) as server:
        offered = list(server.stub.GetServerInfo(pb.GetServerInfoRequest()).drafters)
        offered.append(DEFAULT)
        drafters = arguments.drafters or offered
        for drafter in drafters:
            if drafter not in offered:
                parser.error(f'the server has no drafter {drafter}; expected {", ".join(offered)}')
        header('drafter', 'sampling', 'text', 'alpha', 'c', 'tokens a step', 'K', 'predicted',
               'measured', 'best fixed (K)', 'adaptive / best', 'ms a token, P50 / P90 / P99')
        measure(server.stub, prompts['chat'][:1], drafters, SAMPLING['greedy'], arguments, order)
        for name, sampling in SAMPLING.items():
            for kind, label in KINDS.items():
                arms = measure(server.stub, prompts[kind][:arguments.prompts], drafters, sampling,
                               arguments, order)
                plain = sorted(arms['', 0].token_ms)
                row('none', name, label, '', '', '1.00', '', '', '1.00', '', '', ' / '.join(
                    f'{percentile(plain, share):.1f}' for share in (0.5, 0.9, 0.99)))
                for drafter in drafters:
                    print_rows(name, label, drafter, arms)


if __name__ == '__main__':
    main()

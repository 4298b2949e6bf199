"""K adapted, beside K fixed and an oracle: what each would take on a machine that nobody else uses.

All arms of a prompt give the same answer, greedy or by a seed, so they differ in their steps alone.
A step is priced at the median of what such steps took in the whole run, from the server's trace:
the share of the drafter by drafter and number of tokens, the rest by the number of rows. So what
the machine does beside moves all arms alike.
"""

import bisect
import collections
import itertools
import json
import statistics
import typing

import numpy as np

from page import table
from speculation import ADAPTIVE, DEFAULT, PLAIN

# A step that spends less on drafting, as a share of a plain one, has copied or not drafted.
LEAST_DRAFTING = 0.02
CLOSE = 0.98  # of the best fixed K's speed, at least


class Step(typing.NamedTuple):
    """Of one sequence, without prompts beside it. Milliseconds."""
    drafted: int
    accepted: int
    draft_ms: float
    rest_ms: float


def read_steps(lines):
    """Those of each request, in the order in which they ended. lines: of a trace (JSON Array
    Format, an event a line, its end may be missing), in which a request begins behind the end of
    the one before."""
    steps, drafting, ends = [], {}, []
    for line in lines:
        text = line.strip().strip(',')
        if text in ('[', ']', ''):
            continue
        event = json.loads(text)
        if event['name'] == 'step':
            steps.append(event)
        elif event['name'] == 'draft':
            drafting[event['args']['step']] = event['dur'] / 1000
        elif event['name'] == 'request' and event['ph'] == 'e':
            ends.append(event['ts'])
    requests = [[] for _ in ends]
    for step in steps:
        about = step['args']
        if about['sequences'] == 1 and about['prompt_rows'] == 0 and step['ts'] < ends[-1]:
            draft_ms = drafting[about['step']]
            requests[bisect.bisect_right(ends, step['ts'])].append(
                Step(about['drafted'], about['accepted'], draft_ms,
                     step['dur'] / 1000 - draft_ms))
    return requests


class Prices:
    """arms: {(drafter, K): [Step]}."""

    def __init__(self, arms):
        rest, draft = collections.defaultdict(list), collections.defaultdict(list)
        for step in itertools.chain.from_iterable(arms.values()):
            rest[step.drafted].append(step.rest_ms)
        plain = statistics.median(rest[0])
        self._least_drafting = LEAST_DRAFTING * plain
        for (drafter, _), steps in arms.items():
            for step in steps:
                if self._draws(step):
                    draft[drafter, step.drafted].append(step.draft_ms)
        self._rest = {k: statistics.median(of_k) for k, of_k in rest.items()}
        self._draft = collections.defaultdict(dict)
        for (drafter, k), of_k in draft.items():
            self._draft[drafter][k] = statistics.median(of_k)

    def _draws(self, step):
        return step.draft_ms > self._least_drafting

    def ms(self, drafter, step):
        drawn = self._draft[drafter][step.drafted] if self._draws(step) else 0
        return self._rest[step.drafted] + drawn

    def text(self):
        rows = sorted(self._rest)
        return table(['K', *rows], [
            ['a step without its drafting, ms', *(f'{self._rest[k]:.2f}' for k in rows)],
            *([drafter, *(f'{of_k[k]:.2f}' if k in of_k else '' for k in rows)]
              for drafter, of_k in self._draft.items())])

    def informed_ms(self, drafter, step):
        """What it had taken to draft what was accepted and no more."""
        drawn = 0
        if self._draws(step) and step.accepted > 0:
            known = {0: 0, **{k: ms for k, ms in self._draft[drafter].items() if k > 0}}
            drawn = np.interp(step.accepted, sorted(known), [known[k] for k in sorted(known)])
        rows = sorted(self._rest)
        return np.interp(step.accepted, rows, [self._rest[k] for k in rows]) + drawn


class Figures(typing.NamedTuple):
    ms: float  # of a token, in the mean
    p99: float  # of a token's, where those of a step share its time


def figures(steps, price):
    """price: of a step."""
    priced = [(price(step), step.accepted + 1) for step in steps]
    tokens = sum(number for _, number in priced)
    of_tokens = np.repeat([ms / number for ms, number in priced], [number for _, number in priced])
    return Figures(sum(ms for ms, _ in priced) / tokens, np.quantile(of_tokens, 0.99))


class Lookahead(typing.NamedTuple):
    """What the arms of one drafter come to, with one way of sampling and one kind of text."""
    fixed: dict  # {K: Figures}, K = 0 among them
    adaptive: Figures
    oracle: Figures  # of the largest K, had it drafted what was accepted and no more

    def best(self):
        """Of the fixed ones, the fastest, picked afterwards."""
        return min(self.fixed.values())

    def to_best(self):
        """The speed of what is adapted, as a share of that of the best fixed K."""
        return self.best().ms / self.adaptive.ms


def lookahead_of(arms, prices, drafter):
    """arms: {(drafter, K): [Step]}."""
    def priced(key, price=prices.ms):
        return figures(arms[key], lambda step: price(drafter, step))
    ks = sorted(k for of, k in arms if of == drafter and k > 0)
    return Lookahead({0: priced(PLAIN), **{k: priced((drafter, k)) for k in ks}},
                     priced((drafter, ADAPTIVE)), priced((drafter, ks[-1]), prices.informed_ms))


def beside_best(adaptive, others):
    """The Lookahead of requests that name no drafter, beside the best of what `others` do."""
    return Lookahead({k: min(other.fixed[k] for other in others) for k in others[0].fixed},
                     adaptive, min(other.oracle for other in others))


def lookahead_text(cells, drafters):
    """cells: {(sampling, text): {(drafter, K): [Step]}}: without drafts, of each of drafters with K
    fixed and adapted, and perhaps of requests that name none."""
    every = collections.defaultdict(list)
    for arms in cells.values():
        for key, steps in arms.items():
            every[key] += steps
    prices = Prices(every)
    rows, shares = [], collections.defaultdict(list)
    for (sampling, text), arms in cells.items():
        found = {drafter: lookahead_of(arms, prices, drafter) for drafter in drafters}
        if (DEFAULT, ADAPTIVE) in arms:
            adaptive = figures(arms[DEFAULT, ADAPTIVE], lambda step: prices.ms(DEFAULT, step))
            found[DEFAULT] = beside_best(adaptive, list(found.values()))
        for drafter, of in found.items():
            plain, *fixed = of.fixed.values()
            shares[drafter].append(of.to_best())
            rows.append([drafter, sampling, text,
                         *(f'{plain.ms / arm.ms:.2f}' for arm in (*fixed, of.adaptive)),
                         f'{of.to_best():.3f}', f'{plain.ms / of.oracle.ms:.2f}',
                         ' / '.join(f'{arm.p99:.1f}' for arm in (plain, of.best(), of.adaptive))])
    ks = [k for k in found[drafters[0]].fixed if k > 0]
    return (table(['drafter', 'sampling', 'text', *(f'K = {k}' for k in ks), 'adaptive',
                   'adaptive / best fixed', 'oracle',
                   'ms a token, P99: none / best fixed / adaptive'], rows)
            + '\n' + ''.join(
                f'- {drafter}: adaptive is {statistics.mean(of):.3f} of the best fixed K in the '
                f'mean, {min(of):.3f} at least; {CLOSE} or more in '
                f'{sum(share >= CLOSE for share in of)} of {len(of)} cells.\n'
                for drafter, of in shares.items())
            + '\n' + prices.text())

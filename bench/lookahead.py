"""K adapted, beside K fixed and an oracle: what each would take on a machine that nobody else uses.

All arms of a prompt give the same answer, greedy or by a seed, so they differ in their steps alone.
A step is priced at the median of what such steps took in the whole run, from the server's trace:
the share of the drafter by drafter and number of rounds, the rest by the number of rows and of the
alternatives among them, both by the way of sampling; where the medians say that more rows take
less, it is their mean for both. Before that each step is divided by how slow the machine was just
then, over steps of all kinds. So what the machine does beside moves all arms alike. Steps that
prefill a prompt are left out. Intervals are of other prompts of their kind, at the same prices.
"""

import bisect
import collections
import itertools
import statistics
import typing

import numpy as np

from one_speed import read_trace, slowness
from page import table
from paired import bootstrap, with_interval
from speculation import ADAPTIVE, DEFAULT, PLAIN

COPYING = ('prompt_lookup', 'ngram')
# A step that spends less on drafting, as a share of a plain one, has copied: of requests that name
# no drafter, whose steps draw or copy.
LEAST_DRAWING = 0.03
CLOSE = 0.98  # of the best fixed K's speed, at least
SLOWER = 0.99  # of the speed without drafts, at least
ARMS = 'none / best fixed / adaptive / oracle'


class Step(typing.NamedTuple):
    """Of one sequence, without prompts beside it. Milliseconds."""
    drafted: int
    accepted: int
    draft_ms: float
    rest_ms: float
    at_s: float = 0.0  # when it began
    prompt: int = 0  # of its cell
    alternatives: int = 0  # of the drafted tokens
    refed: int = 0  # positions that it fed again

    def rows(self):
        return self.drafted + self.refed

    def rounds(self):
        return self.drafted - self.alternatives


def read_steps(lines):
    """Those of each request, in the order in which they ended. lines: of a trace in which a request
    begins behind the end of the one before."""
    trace = read_trace(lines)
    requests = [[] for _ in trace.ends_s]
    for step in trace.steps:
        if step.sequences == 1 and step.prompt_rows == 0 and step.begin_s < trace.ends_s[-1]:
            requests[bisect.bisect_right(trace.ends_s, step.begin_s)].append(
                Step(step.drafted, step.accepted, step.draft_ms, step.rest_ms, step.begin_s,
                     alternatives=step.alternatives, refed=step.refed))
    return requests


def at_one_speed(cells):
    """What the steps had taken on a machine always as slow as in the mean. cells: as
    lookahead_text's."""
    steps = [((sampling, step.rows(), step.alternatives), step.at_s, step.rest_ms)
             for (sampling, _), arms in cells.items() for of_arm in arms.values()
             for step in of_arm]
    by = iter(slowness(*zip(*steps)))

    def corrected(step):
        slow = next(by)
        return step._replace(draft_ms=step.draft_ms / slow, rest_ms=step.rest_ms / slow)

    return {cell: {key: [corrected(step) for step in of_arm] for key, of_arm in arms.items()}
            for cell, arms in cells.items()}


def rising(prices):
    """Neighbours of which the one with more rows takes less have their mean, until none does.
    prices: {rows: (ms, how many steps say so)}."""
    pools = []  # [ms, weight, [rows]]
    for rows, (ms, weight) in sorted(prices.items()):
        pools.append([ms, weight, [rows]])
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (ms, weight, of), (last_ms, last_weight, last_of) = pools[-2:]
            total = weight + last_weight
            pools[-2:] = [[(ms * weight + last_ms * last_weight) / total, total, of + last_of]]
    return {rows: ms for ms, _, of in pools for rows in of}


def between(known, at):
    """known: {number: ms}. That at a number, between the nearest where it is not known."""
    numbers = sorted(known)
    return np.interp(at, numbers, [known[number] for number in numbers])


class Prices:
    """Of one way of sampling."""

    def __init__(self, arms, default):
        """arms: {(drafter, K): [Step]}. default: who draws for requests that name no drafter."""
        rest, draft = collections.defaultdict(list), collections.defaultdict(list)
        for (drafter, _), steps in arms.items():
            for step in steps:
                rest[step.alternatives, step.rows()].append(step.rest_ms)
                if drafter not in ('', DEFAULT, *COPYING):
                    draft[drafter, step.rounds()].append(step.draft_ms)
        self._default = default
        # Alternatives cut the pass into segments, which costs beside their rows.
        medians = collections.defaultdict(dict)
        for (alternatives, rows), of in rest.items():
            medians[alternatives][rows] = statistics.median(of), len(of)
        self._rest = {alternatives: rising(of) for alternatives, of in sorted(medians.items())}
        self._draft = collections.defaultdict(dict)
        for (drafter, k), of_k in draft.items():
            # Steps that draft nothing feed a cache or do not: no one of them is like the others.
            self._draft[drafter][k] = statistics.median(of_k) if k else statistics.mean(of_k)

    def _rest_ms(self, rows, alternatives=0):
        """What such a step takes without its drafting; alternatives: as many as one of the arms'
        steps has."""
        return between(self._rest[alternatives], rows)

    def _drawing_ms(self, drafter, step, k):
        """What drawing k tokens takes in such a step."""
        if drafter == DEFAULT and step.draft_ms > LEAST_DRAWING * self._rest_ms(0) and k > 0:
            drafter = self._default
        known = self._draft[drafter]
        return between(known, k) if known else 0.0

    def ms(self, drafter, step):
        return (self._rest_ms(step.rows(), step.alternatives)
                + self._drawing_ms(drafter, step, step.rounds()))

    def informed_ms(self, drafter, step):
        """What it had taken to draft what was accepted and no more."""
        return self._rest_ms(step.accepted) + (
            self._drawing_ms(drafter, step, step.accepted) if step.accepted else 0.0)

    def rows(self):
        """[k, {alternatives: of a step of k drafted rows, without its drafting}, {drafter: of its
        drafting k tokens}]"""
        return [(k, *({name: known[k] for name, known in by.items() if k in known}
                      for by in (self._rest, self._draft)))
                for k in sorted(set().union(*self._rest.values()))]


class Figures(typing.NamedTuple):
    ms: float  # of a token, in the mean
    p99: float  # of a token's, where those of a step share its time


def figures(steps, price):
    """price: of a step."""
    priced = [(price(step), step.accepted + 1) for step in steps]
    tokens = sum(number for _, number in priced)
    of_tokens = np.repeat([ms / number for ms, number in priced], [number for _, number in priced])
    return Figures(sum(ms for ms, _ in priced) / tokens,
                   np.quantile(of_tokens, 0.99, method='inverted_cdf'))


def to_best_interval(arms, prices, drafter, fixed):
    """The interval, by bootstrap(), of the speed of what is adapted, as a share of that of the best
    of the arms `fixed`; each draw of prompts has its own best."""
    keys = [(drafter, ADAPTIVE), *fixed]
    number = 1 + max(step.prompt for step in arms[keys[0]])
    ms, tokens = np.zeros((2, len(keys), number))
    for i, key in enumerate(keys):
        for step in arms[key]:
            ms[i, step.prompt] += prices.ms(key[0], step)
            tokens[i, step.prompt] += step.accepted + 1

    def to_best(drawn):
        of_token = ms[:, drawn].sum(axis=2) / tokens[:, drawn].sum(axis=2)
        return of_token[1:].min(axis=0) / of_token[0]
    return bootstrap(number, to_best)


class Lookahead(typing.NamedTuple):
    """What the arms of one drafter come to, with one way of sampling and one kind of text."""
    fixed: dict  # {K: Figures}, K = 0 among them
    adaptive: Figures
    oracle: Figures  # of the largest K, had it drafted what was accepted and no more
    interval: tuple | None  # of to_best()

    def best(self):
        """Of the fixed ones, the fastest, picked afterwards."""
        return min(self.fixed.values())

    def to_best(self):
        """The speed of what is adapted, as a share of that of the best fixed K."""
        return self.best().ms / self.adaptive.ms


def lookahead_of(arms, prices, drafter):
    """arms: {(drafter, K): [Step]}."""
    def priced(key, price=prices.ms):
        return figures(arms[key], lambda step: price(key[0], step))
    ks = sorted(k for of, k in arms if of == drafter and k > 0)
    interval = to_best_interval(arms, prices, drafter, [PLAIN, *((drafter, k) for k in ks)])
    return Lookahead({0: priced(PLAIN), **{k: priced((drafter, k)) for k in ks}},
                     priced((drafter, ADAPTIVE)), priced((drafter, ks[-1]), prices.informed_ms),
                     interval)


def beside_best(arms, prices, others):
    """The Lookahead of requests that name no drafter, beside the best of what `others` do."""
    key = (DEFAULT, ADAPTIVE)
    fixed = [of for of in arms if of[1] != ADAPTIVE]
    ks = sorted({k for other in others for k in other.fixed})
    return Lookahead({k: min(other.fixed[k] for other in others if k in other.fixed) for k in ks},
                     figures(arms[key], lambda step: prices.ms(DEFAULT, step)),
                     min(other.oracle for other in others),
                     to_best_interval(arms, prices, DEFAULT, fixed))


def prices_by_sampling(cells, default):
    samplings = collections.defaultdict(lambda: collections.defaultdict(list))
    for (sampling, _), arms in cells.items():
        for key, steps in arms.items():
            samplings[sampling][key] += steps
    return {sampling: Prices(arms, default) for sampling, arms in samplings.items()}


def summary(drafter, founds):
    """founds: [Lookahead], of all cells."""
    to_best = [of.to_best() for of in founds]
    to_plain = [of.fixed[0].ms / of.adaptive.ms for of in founds]
    known = [of.interval for of in founds if of.interval is not None]
    reach = sum(high >= CLOSE for _, high in known) if known else 'n/a'
    return (f'- {drafter}: adapted, {statistics.mean(to_best):.3f} of the best fixed K in the mean '
            f'of {len(founds)} cells, {min(to_best):.3f} at least, {CLOSE} or more in '
            f'{sum(share >= CLOSE for share in to_best)}, within the interval in {reach}; '
            f'{min(to_plain):.3f} of no drafts at least, {SLOWER} or more in '
            f'{sum(share >= SLOWER for share in to_plain)}.\n')


def lookahead_text(cells, drafters, default):
    """cells: {(sampling, text): {(drafter, K): [Step]}}: without drafts, of each of drafters with K
    fixed and adapted, and perhaps of requests that name none. default: who draws for those.
    Returns Markdown, and {sampling: {text: {drafter: Lookahead.to_best}}}."""
    cells = at_one_speed(cells)
    ks = sorted({k for arms in cells.values() for _, k in arms if k > 0})
    prices = prices_by_sampling(cells, default)
    rows, founds = [], collections.defaultdict(list)
    to_best = collections.defaultdict(dict)
    for (sampling, text), arms in cells.items():
        found = {drafter: lookahead_of(arms, prices[sampling], drafter) for drafter in drafters}
        if (DEFAULT, ADAPTIVE) in arms:
            found[DEFAULT] = beside_best(arms, prices[sampling], list(found.values()))
        to_best[sampling][text] = {drafter: of.to_best() for drafter, of in found.items()}
        for drafter, of in found.items():
            plain = of.fixed[0]
            founds[drafter].append(of)
            rows.append([drafter, sampling, text,
                         *(f'{plain.ms / of.fixed[k].ms:.2f}' if k in of.fixed else '' for k in ks),
                         f'{plain.ms / of.adaptive.ms:.3f}',
                         with_interval(of.to_best(), of.interval, 3, ', '),
                         f'{plain.ms / of.oracle.ms:.2f}',
                         *(' / '.join(f'{figure:.1f}' for figure in by_arm) for by_arm in
                           zip(*((1000 / arm.ms, arm.p99)
                                 for arm in (plain, of.best(), of.adaptive, of.oracle))))])
    of_sampling = {sampling: of.rows() for sampling, of in prices.items()}
    branching = sorted({n for of in of_sampling.values() for _, rest, _ in of for n in rest if n})
    drawing = [of for of in drafters if of not in COPYING]
    priced = [[sampling, k, *(f'{of[key]:.2f}' if key in of else '' for of, keys in
                              ((rest, [0, *branching]), (draft, drawing)) for key in keys)]
              for sampling, rows_of in of_sampling.items() for k, rest, draft in rows_of]
    said = (table(['drafter', 'sampling', 'text', *(f'K = {k}' for k in ks), 'adaptive',
                   'adaptive / best fixed', 'oracle', f'tokens/s: {ARMS}',
                   f'ms a token, P99: {ARMS}'], rows) + '\n'
            + ''.join(itertools.starmap(summary, founds.items()))
            + '\nThe prices, ms of a step that drafts K tokens for one sequence:\n\n'
            + table(['sampling', 'K', 'without its drafting',
                     *(f'… {n} of them alternatives' for n in branching), *drawing], priced))
    return said, to_best

"""What steps, and answers under load, had taken on a machine that is always as fast.

A shared machine is faster in one minute than in the next, and not as fast for both of two arms that
take turns. So a step is taken for the price of its kind times how slow the machine was just then.
"""

import bisect
import collections
import json
import sys
import typing

import numpy as np

SPAN_S = 2  # within which the machine is as slow for all steps: longer than an answer alone
FITS = 20  # of prices and slowness together, each against what the one before left unexplained
HELD_UP = 0.5  # of a step's logarithm, at most, is taken for news
NOTHING = 1e-6  # weight of spans being alike: where no kind of step joins them, it decides
LEAST_STEPS = 20  # of a kind, or each takes its own time
RESAMPLES = 200


def numbered(values):
    """A small integer for each, the same for equal ones."""
    return np.unique(np.array([repr(value) for value in values]), return_inverse=True)[1]


def slowness(kinds, at_s, ms, weights=None):
    """How many times as slow as in the mean the machine was at each step, of these kinds, begun at
    at_s. In logarithms a step is the price of its kind and the slowness of its span of time: least
    squares, weights of steps given or alike. Spans are compared by kinds of step that both have."""
    kind, span = numbered(kinds), numbered(np.asarray(at_s) // SPAN_S)
    logs = np.log(ms)
    weights = np.ones(len(logs)) if weights is None else np.asarray(weights, dtype=float)
    of_kind = np.maximum(np.bincount(kind, weights), NOTHING)
    counts = np.zeros((span.max() + 1, kind.max() + 1))
    np.add.at(counts, (span, kind), weights)
    # What is left of the normal equations once the prices are taken out of them.
    left = np.diag(counts.sum(axis=1) + NOTHING) - counts / of_kind @ counts.T
    fitted = logs
    for _ in range(FITS):
        news = fitted + np.clip(logs - fitted, -HELD_UP, HELD_UP)
        price = np.bincount(kind, weights * news) / of_kind
        slow = np.linalg.solve(left, np.bincount(span, weights * (news - price[kind])))
        fitted = (np.bincount(kind, weights * (news - slow[span])) / of_kind)[kind] + slow[span]
    slow = slow[span]
    return np.exp(slow - np.average(slow, weights=weights))


class TracedStep(typing.NamedTuple):
    begin_s: float
    prompt_rows: int
    sequences: int
    drafted: int
    accepted: int
    draft_ms: float
    rest_ms: float
    alternatives: int = 0  # of the drafted tokens
    refed: int = 0  # positions that it fed again

    def end_s(self):
        return self.begin_s + (self.draft_ms + self.rest_ms) / 1000

    def kind(self):
        """What it computes, to the row, and how many of these are alternatives, which cost more:
        arms whose prompts fill steps more or less may not pass for a machine that is slower or
        faster."""
        return self.prompt_rows, self.sequences, self.drafted + self.refed, self.alternatives


class Trace(typing.NamedTuple):
    steps: list  # [TracedStep], in the order in which they began
    ends_s: list  # of requests, in that order
    decoding: dict  # of each answer, by the request's id: when its first token came, and its last


def read_trace(lines):
    """lines: JSON Array Format, an event a line, whose end may be missing."""
    events = [json.loads(text) for line in lines
              if (text := line.strip().strip(',')) not in ('[', ']', '')]
    drafting = {event['args']['step']: event['dur'] / 1000 for event in events
                if event['name'] == 'draft'}
    steps = []
    for event in events:
        if event['name'] == 'step':
            about = event['args']
            draft_ms = drafting[about['step']]
            steps.append(TracedStep(event['ts'] / 1e6, about['prompt_rows'], about['sequences'],
                                    about['drafted'], about['accepted'], draft_ms,
                                    event['dur'] / 1000 - draft_ms, about['alternatives'],
                                    about['refed']))
    names = {event['id']: event['args']['request_id'] for event in events
             if event['name'] == 'request' and event['ph'] == 'b'}
    spans = collections.defaultdict(dict)
    for event in events:
        if event['name'] == 'decode':
            spans[names[event['id']]][event['ph']] = event['ts'] / 1e6
    ends_s = [event['ts'] / 1e6 for event in events
              if event['name'] == 'request' and event['ph'] == 'e']
    numbers = sorted(event['args']['step'] for event in events if event['name'] == 'step')
    if numbers and numbers[-1] - numbers[0] + 1 != len(numbers):
        sys.exit(f'reproduce: the trace has {len(numbers)} steps of {numbers[0]} … {numbers[-1]}')
    return Trace(sorted(steps), sorted(ends_s),
                 {name: (span['b'], span['e']) for name, span in spans.items()})


def step_prices(steps, weights=None):
    """Milliseconds of each: without prompts and its drafting, the median of its kind. weights:
    whole numbers, how often each counts."""
    weights = np.ones(len(steps), dtype=int) if weights is None else weights
    rest = np.array([step.rest_ms for step in steps])
    slow = slowness([step.kind() for step in steps], [step.begin_s for step in steps], rest,
                    weights)
    rest /= slow
    by_kind = collections.defaultdict(list)
    for number, step in enumerate(steps):
        by_kind[step.kind()].append(number)
    for kind, numbers in by_kind.items():
        of_kind = np.repeat(rest[numbers], weights[numbers])
        if kind[0] == 0 and len(of_kind) >= LEAST_STEPS:
            rest[numbers] = np.median(of_kind)
    return rest + np.array([step.draft_ms for step in steps]) / slow


class Answers:
    """Of a load under which two arms took turns."""

    def __init__(self, trace, arms):
        """arms: [(id, tokens) of a round's answers], of both arms. The same number of rounds."""
        self._steps = trace.steps
        ends_s = [step.end_s() for step in trace.steps]
        self._arms, self._round = [], np.full(len(ends_s), -1)
        for rounds in arms:
            self._arms.append([])
            for number, answers in enumerate(rounds):
                # An answer has its steps behind the one that ended in its first token. It is
                # delivered a little later than a step ends, so ends tell better than begins.
                spans = [(*(bisect.bisect_right(ends_s, at) for at in trace.decoding[name]),
                          tokens - 1) for name, tokens in answers]
                self._arms[-1].append(spans)
                if spans:
                    self._round[min(span[0] for span in spans):
                                max(span[1] for span in spans)] = number

    def num_rounds(self):
        return len(self._arms[0])

    def times(self, rounds):
        """[ms a token behind the first of each answer of these rounds], of both arms, by the prices
        that these rounds' steps show."""
        counts = np.bincount(rounds, minlength=self.num_rounds())
        known = self._round >= 0
        weights = np.where(known, counts[self._round], 0)
        used = np.flatnonzero(weights)
        prices = np.zeros(len(self._steps))
        prices[used] = step_prices([self._steps[i] for i in used], weights[used])
        until = np.concatenate([[0], np.cumsum(prices)])
        return [[(until[last] - until[first]) / tokens for number in rounds
                 for first, last, tokens in arm[number]] for arm in self._arms]

    def shared_steps(self):
        """Of the second arm's steps, the share whose kind the first has, too: what tells how fast
        the machine was for the one and for the other."""
        kinds = [collections.Counter(
            self._steps[i].kind() for i in set().union(*(
                range(first, last) for spans in arm for first, last, _ in spans)))
            for arm in self._arms]
        return sum(n for kind, n in kinds[1].items() if kind in kinds[0]) / kinds[1].total()

    def p99(self):
        """Milliseconds, of both arms."""
        return [p99(times) for times in self.times(range(self.num_rounds()))]

    def p99_ratio(self):
        """The P99 of the second arm over that of the first, and its 95 % interval: rounds are
        drawn, each brings both arms, and prices are those that the drawn ones show."""
        def of(rounds):
            first, second = self.times(rounds)
            return p99(second) / p99(first)
        drawn = np.random.default_rng(0).integers(self.num_rounds(),
                                                  size=(RESAMPLES, self.num_rounds()))
        low, high = np.quantile([of(rounds) for rounds in drawn], (0.025, 0.975))
        return of(range(self.num_rounds())), low, high


def p99(values):
    """The nearest rank."""
    return np.quantile(values, 0.99, method='inverted_cdf')

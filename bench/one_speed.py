"""What steps, and answers under load, had taken on a machine that is always as fast.

A shared machine is faster in one minute than in the next, and not as fast for both of two arms that
take turns. So a step is taken for the price of its kind times how slow the machine was just then.
"""

import bisect
import collections
import json
import typing

import numpy as np

SPAN_S = 2  # within which the machine is as slow for all steps: longer than an answer alone
PASSES = 100  # of fitting the prices, then the slowness
HELD_UP = 0.5  # of a step's logarithm, at most, is taken for news
LEAST_STEPS = 20  # of a kind, or each takes its own time
RESAMPLES = 2000


def effects(groups, values):
    """The mean of the values of each group, for each value. groups: small integers."""
    return (np.bincount(groups, values) / np.maximum(np.bincount(groups), 1))[groups]


def slowness(kinds, at_s, ms):
    """How many times as slow as in the mean the machine was at each step, of these kinds, begun at
    at_s: fitted by turns with the prices to logarithms."""
    of_kind = np.unique(np.array([repr(kind) for kind in kinds]), return_inverse=True)[1]
    of_span = np.unique(np.asarray(at_s) // SPAN_S, return_inverse=True)[1]
    logs = np.log(ms)
    price = slow = np.zeros(len(logs))
    for _ in range(PASSES):
        price = price + effects(of_kind, np.clip(logs - price - slow, -HELD_UP, HELD_UP))
        slow = slow + effects(of_span, np.clip(logs - price - slow, -HELD_UP, HELD_UP))
    return np.exp(slow - slow.mean())


class TracedStep(typing.NamedTuple):
    begin_s: float
    prompt_rows: int
    sequences: int
    drafted: int
    accepted: int
    draft_ms: float
    rest_ms: float

    def kind(self):
        """Prompts' rows are more or less alike."""
        return self.prompt_rows.bit_length(), self.sequences, self.drafted


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
                                    event['dur'] / 1000 - draft_ms))
    names = {event['id']: event['args']['request_id'] for event in events
             if event['name'] == 'request' and event['ph'] == 'b'}
    spans = collections.defaultdict(dict)
    for event in events:
        if event['name'] == 'decode':
            spans[names[event['id']]][event['ph']] = event['ts'] / 1e6
    ends_s = [event['ts'] / 1e6 for event in events
              if event['name'] == 'request' and event['ph'] == 'e']
    return Trace(sorted(steps), sorted(ends_s),
                 {name: (span['b'], span['e']) for name, span in spans.items()})


def step_prices(steps):
    """Milliseconds of each: without prompts and its drafting, the median of its kind."""
    slow = slowness([step.kind() for step in steps], [step.begin_s for step in steps],
                    [step.rest_ms for step in steps])
    rest = [step.rest_ms / by for step, by in zip(steps, slow)]
    by_kind = collections.defaultdict(list)
    for step, ms in zip(steps, rest):
        by_kind[step.kind()].append(ms)
    median = {kind: np.median(of) for kind, of in by_kind.items()
              if kind[0] == 0 and len(of) >= LEAST_STEPS}
    return np.array([median.get(step.kind(), ms) + step.draft_ms / by
                     for step, ms, by in zip(steps, rest, slow)])


def token_times(trace, answers):
    """answers: (id, tokens). Milliseconds a token of each behind its first, by the prices of the
    steps from its first token to its last."""
    begins = [step.begin_s for step in trace.steps]
    until = np.concatenate([[0], np.cumsum(step_prices(trace.steps))])
    times = []
    for name, tokens in answers:
        first, last = (bisect.bisect_left(begins, at) for at in trace.decoding[name])
        times.append((until[last] - until[first]) / (tokens - 1))
    return times


def p99(values):
    """The nearest rank."""
    return np.quantile(values, 0.99, method='inverted_cdf')


def p99_ratio(ours, theirs):
    """[values of a round], of both. The P99 over all rounds of ours over that of theirs, and its
    95 % interval: rounds are drawn, and each brings both."""
    def of(rounds):
        return (p99(np.concatenate([ours[i] for i in rounds]))
                / p99(np.concatenate([theirs[i] for i in rounds])))
    drawn = np.random.default_rng(0).integers(len(ours), size=(RESAMPLES, len(ours)))
    low, high = np.quantile([of(rounds) for rounds in drawn], (0.025, 0.975))
    return of(range(len(ours))), low, high

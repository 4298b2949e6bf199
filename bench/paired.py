"""What was measured on the same few prompts: ratios and means with intervals, and where answers
part."""

import collections

import numpy as np

RESAMPLES = 10_000
LEAST_UNITS = 10  # as kLeastUnits of bench/statistics.h: draws of few differ too little


def bootstrap(number, statistic):
    """The ends of a 95 % interval, bootstrapped over `number` prompts or other units (percentiles);
    None of fewer than LEAST_UNITS. statistic: of drawn units, [resamples, number] to
    [resamples]."""
    if number < LEAST_UNITS:
        return None
    drawn = np.random.default_rng(0).integers(number, size=(RESAMPLES, number))
    return tuple(np.quantile(statistic(drawn), (0.025, 0.975)))


def with_interval(value, ends, digits=2, between=' to '):
    """'1.23 (1.20 to 1.26)'. ends: as bootstrap() gives them."""
    said = between.join(f'{end:.{digits}f}' for end in ends) if ends else 'n/a'
    return f'{value:.{digits}f} ({said})'


def ratio(theirs, ours):
    """theirs and ours: positive, [prompts]. The geometric mean over prompts of theirs / ours, and
    its interval by bootstrap()."""
    logs = np.log(np.divide(theirs, ours))
    ends = bootstrap(len(logs), lambda drawn: logs[drawn].mean(axis=1))
    return np.exp(logs.mean()), ends and tuple(np.exp(ends))


def time_ratio(plain, ours):
    """plain and ours: positive times, [prompts], of as many tokens. The time of all prompts over
    that with ours, and its interval by bootstrap()."""
    plain, ours = np.asarray(plain), np.asarray(ours)
    ends = bootstrap(len(plain),
                     lambda drawn: plain[drawn].sum(axis=1) / ours[drawn].sum(axis=1))
    return plain.sum() / ours.sum(), ends


def student_t(degrees):
    """The 97.5 % quantile of Student's t. In x = sqrt(degrees) tan(angle) its density is that of
    the angle, cos(angle)^(degrees - 1)."""
    angles = np.linspace(-np.pi / 2, np.pi / 2, 200_001)
    below = np.cumsum(np.cos(angles) ** (degrees - 1))
    return np.sqrt(degrees) * np.tan(np.interp(0.975, below / below[-1], angles))


def mean_over_prompts(scores):
    """scores: (prompt, value) of each answer, of two prompts at least. The mean of the prompts'
    means, and half of its 95 % interval (Student's t): answers to one prompt are no independent
    values."""
    values = collections.defaultdict(list)
    for prompt, value in scores:
        values[prompt].append(value)
    means = np.array([np.mean(of) for of in values.values()])
    half = student_t(len(means) - 1) * means.std(ddof=1) / np.sqrt(len(means))
    return means.mean(), half


def differences(scores, others):
    """(prompt, value) of each answer: those of scores less those of others, whose answers are to
    the same prompts in the same order. Whatever makes a prompt easy for both cancels out."""
    pairs = list(zip(scores, others, strict=True))
    if any(prompt != same for (prompt, _), (same, _) in pairs):
        raise ValueError('expected answers to the same prompts in the same order')
    return [(prompt, value - other) for (prompt, value), (_, other) in pairs]


def first_difference(a, b):
    """The first place where two answers of one length differ; None where they do not."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x != y), None)

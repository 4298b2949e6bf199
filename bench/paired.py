"""What was measured on the same few prompts: ratios and means with intervals, and where answers
part."""

import collections

import numpy as np

RESAMPLES = 10_000


def ratio(theirs, ours):
    """theirs and ours: positive, [prompts]. The geometric mean over prompts of theirs / ours, and
    the ends of its 95 % interval, bootstrapped over prompts (percentiles)."""
    logs = np.log(np.divide(theirs, ours))
    drawn = np.random.default_rng(0).integers(len(logs), size=(RESAMPLES, len(logs)))
    low, high = np.quantile(logs[drawn].mean(axis=1), (0.025, 0.975))
    return np.exp(logs.mean()), np.exp(low), np.exp(high)


def time_ratio(plain, ours):
    """plain and ours: positive times, [prompts], of as many tokens. The time of all prompts over
    that with ours, and the ends of its 95 % interval, bootstrapped over prompts (percentiles)."""
    plain, ours = np.asarray(plain), np.asarray(ours)
    drawn = np.random.default_rng(0).integers(len(plain), size=(RESAMPLES, len(plain)))
    low, high = np.quantile(plain[drawn].sum(axis=1) / ours[drawn].sum(axis=1), (0.025, 0.975))
    return plain.sum() / ours.sum(), low, high


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


def first_difference(a, b):
    """The first place where two answers of one length differ; None where they do not."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x != y), None)

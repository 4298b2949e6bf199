"""Programs that answered the same prompts: their ratio with an interval, and where they part."""

import numpy as np

RESAMPLES = 10_000


def ratio(theirs, ours):
    """theirs and ours: positive, [prompts]. The geometric mean over prompts of theirs / ours, and
    the ends of its 95 % interval, bootstrapped over prompts (percentiles)."""
    logs = np.log(np.divide(theirs, ours))
    drawn = np.random.default_rng(0).integers(len(logs), size=(RESAMPLES, len(logs)))
    low, high = np.quantile(logs[drawn].mean(axis=1), (0.025, 0.975))
    return np.exp(logs.mean()), np.exp(low), np.exp(high)


def first_difference(a, b):
    """The first place where two answers of one length differ; None where they do not."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x != y), None)

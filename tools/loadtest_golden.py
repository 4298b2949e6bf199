#!/usr/bin/env python3
"""Writes samples, and what NumPy and SciPy say about them: the golden file of the load test's
statistics.

  loadtest_golden.py --output FILE   (tests/bench/testdata/loadtest_statistics.json)

Percentiles are NumPy's `inverted_cdf`. Each end of a bootstrap interval is a range. An interval of
B = 1000 resamples takes its ends at levels 0.025 and 0.975 of the resamples' distribution, which are
off by a standard deviation of sqrt(0.025 * 0.975 / B) = 0.0049; the range goes from the level five
deviations below to the one five above, both taken from 40 times as many resamples, or, for
percentiles of independent samples, from the binomial distribution that their resamples follow.
"""

import argparse
import json
from pathlib import Path

import numpy as np
from scipy import stats

RESAMPLES = 1000  # of the load test
MANY = 40 * RESAMPLES
LEVELS = {'p50': 0.5, 'p90': 0.9, 'p99': 0.99, 'p999': 0.999}
FIVE_DEVIATIONS = 5 * np.sqrt(0.025 * 0.975 / RESAMPLES)
ENDS = {end: np.clip([level - FIVE_DEVIATIONS, level + FIVE_DEVIATIONS], 0, 1)
        for end, level in (('low', 0.025), ('high', 0.975))}


def percentile(values, level):
    return float(np.quantile(values, level, method='inverted_cdf'))


def statistics(values):
    return {'mean': float(np.mean(values)),
            **{name: percentile(values, level) for name, level in LEVELS.items()}}


def ranges(resamples):
    return {end: [float(np.quantile(resamples, level)) for level in levels]
            for end, levels in ENDS.items()}


def percentile_ranges(values, level):
    """The r-th of n resampled values is at most the j-th sample with P[Binomial(n, j/n) >= r]."""
    n = len(values)
    rank = int(np.ceil(np.round(level * n, 9)))
    at_most = stats.binom.sf(rank - 1, n, np.arange(1, n + 1) / n)
    ordered = np.sort(values)
    return {end: [float(ordered[min(np.searchsorted(at_most, one), n - 1)]) for one in levels]
            for end, levels in ENDS.items()}


def independent(values):
    result = stats.bootstrap((values,), np.mean, n_resamples=MANY, method='percentile', batch=1000,
                             rng=np.random.default_rng(1))
    return {'mean': ranges(result.bootstrap_distribution),
            **{name: percentile_ranges(values, level) for name, level in LEVELS.items()}}


def clustered(values, units):
    """Whole units are drawn."""
    random = np.random.default_rng(2)
    names = np.unique(units)
    of_unit = [values[units == name] for name in names]
    drawn = [statistics(np.concatenate([of_unit[i] for i in
                                        random.integers(len(names), size=len(names))]))
             for _ in range(MANY // 4)]
    return {name: ranges([one[name] for one in drawn]) for name in drawn[0]}


def paired(a, b):
    """Of ratios, where sample i of both is drawn together."""
    random = np.random.default_rng(3)
    draws = [random.integers(len(a), size=len(a)) for _ in range(MANY // 4)]
    drawn = [(statistics(a[draw]), statistics(b[draw])) for draw in draws]
    return {name: ranges([x[name] / y[name] for x, y in drawn]) for name in drawn[0][0]}


def rounded(values):
    return np.round(values, 6)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split('\n\n')[0])
    parser.add_argument('--output', type=Path, required=True)
    output = parser.parse_args().output
    random = np.random.default_rng(0)

    summaries = []
    for name, values in (('ten', [3.0, 1.0, 4.0, 1.5, 9.0, 2.0, 6.0, 5.0, 3.5, 8.0]),
                         ('ties', random.integers(1, 9, size=57)),
                         ('normal', random.normal(50, 5, size=137)),
                         ('long tail', random.lognormal(3, 1, size=1000)),
                         ('thousand and one', random.exponential(20, size=1001))):
        values = rounded(np.asarray(values, dtype=float))
        summaries.append({'name': name, 'values': values.tolist(),
                          'units': list(range(len(values))), 'statistics': statistics(values),
                          'intervals': independent(values)})
    units = np.repeat(np.arange(40), random.integers(1, 30, size=40))
    values = rounded(random.lognormal(2, 0.2, size=len(units)) + random.exponential(9, 40)[units])
    summaries.append({'name': 'units of many samples', 'values': values.tolist(),
                      'units': units.tolist(), 'statistics': statistics(values),
                      'intervals': clustered(values, units)})

    questions = random.lognormal(3, 0.7, size=200)
    a = rounded(questions * random.normal(0.8, 0.05, size=200))
    b = rounded(questions * random.normal(1, 0.05, size=200))
    of_a, of_b = statistics(a), statistics(b)
    comparison = {'a': a.tolist(), 'b': b.tolist(),
                  'statistics': {name: of_a[name] / of_b[name] for name in of_a},
                  'intervals': paired(a, b)}
    output.write_text(json.dumps({'summaries': summaries, 'comparison': comparison}) + '\n')


if __name__ == '__main__':
    main()

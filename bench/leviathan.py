"""What Leviathan et al. 2023 measured with T5-XXL, repeated: every drafter, and lenience."""

import collections
import itertools
import statistics

from page import table
from paired import with_interval
from speculation import off_line

# Of table 2 and section 4.2, as (task, T, drafter, α where the text has it, speed-up); and of
# appendix A.5, as {T: {lenience: (α where the text has it, speed-up)}}.
PAPERS_DRAFTERS = [('summarising', 0, 'T5-small', '', '3.1'),
                   ('summarising', 1, 'T5-small', '', '2.3'),
                   ('translation', 0, 'T5-small', '0.75', '3.4'),
                   ('translation', 1, 'T5-small', '', '2.6'),
                   ('translation', '', 'bigram', '0.2', '1.25')]
LENIENT = {1: {1: ('', 2.5), 0.5: ('', 3.1), 0.3: ('', 3.6), 0.1: ('', 5)},
           0: {1: (0.75, 3.3), 0.5: (0.75, 3.3), 0.3: (0.8, 3.9), 0.1: (0.87, 4.9)}}


def drafters(bench):
    tasks = {'summarising': ['summary'], 'copying edits': ['copy'], 'code': ['code']}
    rows, points = [], collections.defaultdict(list)
    for (task, kinds), temperature in itertools.product(tasks.items(), (0, 1)):
        sampling = {'temperature': temperature}
        arms = {'plain': ({'num_speculative_tokens': 0}, sampling)} | {
            (drafter, k): ({'drafter': drafter, 'num_speculative_tokens': k}, sampling)
            for drafter in bench.drafters for k in (2, 4)}
        results = bench.run(arms, kinds, bench.rounds)
        for drafter, k in itertools.product(bench.drafters, (2, 4)):
            arm = results[drafter, k]
            alpha, cost = arm.alpha(), arm.cost()
            measured = arm.speedup_over(results['plain'])
            predicted = {'theorem 3.8': sum(alpha**i for i in range(k + 1)) / (k * cost + 1),
                         'with the cost of rows': arm.predicted_speedup()}
            for by, speedup in predicted.items():
                points[by].append((speedup, measured[0]))
            rows.append([task, temperature, drafter, k, f'{alpha:.2f}', f'{cost:.3f}',
                         *(f'{speedup:.2f}' for speedup in predicted.values()),
                         with_interval(*measured)])
    for task, temperature, drafter, alpha, speedup in PAPERS_DRAFTERS:
        rows.append([f'{task}, the paper’s', temperature, drafter, '', alpha, '', '', '', speedup])
    return (bench.scatter('drafters', 'predicted speed-up', 'measured speed-up', points)
            + table(['task', 'T', 'drafter', 'γ', 'α', 'c', 'theorem 3.8', 'with the cost of rows',
                     'measured'], rows) + '\n' + ''.join(itertools.starmap(off_line,
                                                                        points.items())))


def lenience(bench):
    rows, speedups = [], collections.defaultdict(dict)
    for temperature, paper in LENIENT.items():
        sampling = {'temperature': temperature}
        arms = {'plain': ({'num_speculative_tokens': 0}, sampling)} | {
            value: ({'num_speculative_tokens': 4, 'lenience': value}, sampling) for value in paper}
        results = bench.run(arms, ['chat', 'code', 'summary', 'copy'], bench.rounds)
        for value, (alpha, theirs) in paper.items():
            arm = results[value]
            speedup = arm.speedup_over(results['plain'])
            speedups[value] |= {f'T {temperature}': speedup[0],
                                f'T {temperature}, the paper’s': theirs}
            rows.append([temperature, value, f'{arm.alpha():.2f}', alpha,
                         f'{statistics.mean(arm.shift):.3f}', f'{arm.tokens_a_step():.2f}',
                         with_interval(*speedup), theirs])
    return (bench.dots('lenience', 'speed-up', {'by lenience': speedups}, 1)
            + table(['T', 'lenience', 'α', 'the paper’s α', 'shift', 'tokens a step', 'speed-up',
                     'the paper’s speed-up'], rows))

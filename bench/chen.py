"""What Chen et al. 2023 measured with Chinchilla 70B, and its figure 1 repeated."""

import statistics

from page import table
from serving import percentile

FIGURE1_TOKENS = 129  # of an answer: 128 behind the first, as in the paper
NUCLEUS_TEXT, NUCLEUS_CODE = {'temperature': 1, 'top_p': 0.8}, {'temperature': 0.8, 'top_p': 0.95}
GREEDY = {'temperature': 0}
# (name, kind of prompt, sampling), and what table 1 has of them, as {name: {arm: (score, ms a
# token, speed-up)}}, scores being ROUGE-2 and, of HumanEval, solved problems.
SETTINGS = [('summaries, nucleus 0.8', 'summary', NUCLEUS_TEXT),
            ('summaries, greedy', 'summary', GREEDY),
            ('HumanEval, nucleus 0.95 at T 0.8', 'humaneval', NUCLEUS_CODE)]
TABLE1 = {'summaries, nucleus 0.8': {'plain': ('0.112', '14.1', '1'),
                                     'K = 4': ('0.114', '7.52', '1.92')},
          'summaries, greedy': {'plain': ('0.157', '14.1', '1'),
                                'K = 4': ('0.156', '7.00', '2.01')},
          'HumanEval, nucleus 0.95 at T 0.8': {'plain': ('45.1 % solved', '14.1', '1'),
                                               'K = 4': ('47.0 % solved', '5.73', '2.46')}}
# Of figure 1: emitted / (K + 1), as the post behind gpt2.py reads it off, by (name, K); the K in
# its caption that is best; and that the deviation consistently rises with K.
EMITTED = {('summaries, nucleus 0.8', 4): '0.62', ('HumanEval, nucleus 0.95 at T 0.8', 4): '0.8'}
BEST_K = {'summaries, nucleus 0.8': 3}


def figure1(bench):
    """bench: reproduce's. The page's text."""
    ks = [*range(bench.arguments.most + 1), 'adaptive']
    tokens = bench.arguments.tokens - 1  # behind the first
    rows, lines, series = [], '', {}
    for name, kind, sampling in SETTINGS:
        arms = {k: ({} if k == 'adaptive' else {'num_speculative_tokens': k}, sampling) for k in ks}
        results = bench.run(arms, [kind], bench.rounds)
        of_k = {k: figures(arm, k, tokens) for k, arm in results.items()}
        series[name] = of_k
        for k, of in of_k.items():
            rows.append([name, k, f'{of["mean"]:.0f} ± {of["deviation"]:.0f}',
                         '' if of['emitted'] is None else f'{of["emitted"]:.2f}',
                         EMITTED.get((name, k), ''), f'{of["loop"]:.2f}',
                         *(f'{of[share]:.1f}' for share in ('P50', 'P90', 'P99'))])
        lines += line(name, of_k)
    of_tokens = f'ms for {tokens} tokens'
    return (bench.by_k('figure1', f'Time for {tokens} tokens, emitted over K + 1, time a loop, and '
                       'the P90 and P99 of a token',
                       {'mean': of_tokens, 'emitted': 'emitted / (K + 1)', 'loop': 'ms a loop',
                        'P90': 'ms a token, P90', 'P99': 'ms a token, P99'}, series)
            + table(['setting', 'K', of_tokens, 'emitted / (K + 1)', 'the paper’s', 'ms a loop',
                     'ms a token, P50', 'P90', 'P99'], rows) + '\n' + lines)


def figures(arm, k, tokens):
    """Milliseconds: for so many tokens, with the deviation over answers, of a loop and of a token;
    emitted: over K + 1, None where K is adapted."""
    all_ms, token_ms = [tokens * ms for ms in arm.answers_ms], sorted(arm.token_ms)
    return {'mean': statistics.mean(all_ms), 'deviation': statistics.stdev(all_ms),
            'emitted': None if k == 'adaptive' else arm.tokens_a_step() / (k + 1),
            'loop': arm.ms_a_step(),
            **{f'P{100 * share:.0f}': percentile(token_ms, share) for share in (0.5, 0.9, 0.99)}}


def line(name, of_k):
    """What the table says of a setting beside what the paper says, in Markdown."""
    *fixed, adaptive = of_k.values()
    most = len(fixed) - 1
    best = min(range(most + 1), key=lambda k: fixed[k]['mean'])
    rises = sum(fixed[k]['deviation'] < fixed[k + 1]['deviation'] for k in range(most))
    theirs = f', the paper’s at K = {BEST_K[name]}' if name in BEST_K else ''
    tails = '; '.join(f'{share} of a token over that without drafts '
                      f'{fixed[most][share] / fixed[0][share]:.2f} at K = {most}, '
                      f'{adaptive[share] / fixed[0][share]:.2f} adapted'
                      for share in ('P90', 'P99'))
    return (f'- {name}: fastest at K = {best}{theirs}; the deviation rises from K to K + 1 in '
            f'{rises} of {most}, the paper’s in all; {tails}.\n')

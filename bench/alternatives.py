"""Other candidates for a step's first drafted token: what they bring in tokens, and in time."""

import itertools
import sys

import numpy as np

from page import table
from paired import time_ratio, with_interval
from speculation import KINDS

# A seed's answers are coupled, others that are not greedy are drawn by rejection.
MODES = {'greedy': {'temperature': 0}, 'T 1, coupled': {'temperature': 1, 'seed': 0},
         'T 1, by rejection': {'temperature': 1}}
SAME_ANSWERS = ('greedy', 'T 1, coupled')  # whatever is drafted
PLAIN = (0, 0)  # as (K, alternatives)


def alternatives(bench):
    """bench: reproduce's. The page's text."""
    keys = [PLAIN, *itertools.product(bench.arguments.k, bench.arguments.alternatives)]
    rows, lines, panels = [], '', {}
    for mode, sampling in MODES.items():
        arms = {(k, number): ({'num_speculative_tokens': k, 'num_alternatives': number}, sampling)
                for k, number in keys}
        by_kind = []
        for kind in KINDS:
            print(f'{mode}, {KINDS[kind]}', file=sys.stderr, flush=True)
            by_kind.append(bench.run(arms, [kind], bench.rounds))
            if mode in SAME_ANSWERS:
                check_same(mode, by_kind[-1])
        of_mode = {key: figures([results[key] for results in by_kind],
                                [results[PLAIN] for results in by_kind]) for key in arms}
        rows += [[mode, *key, *cells(of, key)] for key, of in of_mode.items()]
        lines += line(mode, of_mode)
        panels[mode] = {f'K = {k}': {number: of_mode[k, number]['tokens']
                                     for number in sorted(bench.arguments.alternatives)}
                        for k in bench.arguments.k}
    answers = bench.rounds * sum(len(bench.prompts[kind]) for kind in KINDS)
    return (f'{bench.arguments.tokens} tokens an answer, {answers} answers to an arm. '
            'Greedy and coupled answers are the same in all arms.\n\n'
            + bench.lines('alternatives', 'alternatives', 'tokens a step', panels)
            + table(['drawn', 'K', 'alternatives', 'tokens a step', *KINDS.values(), 'tried',
                     'taken', 'ms a token', 'speed-up'], rows) + '\n' + lines)


def check_same(mode, results):
    """Exits where an arm has another answer than without drafts. results: {key: Arm}."""
    for key, arm in results.items():
        for (prompt, *_), ids, plain in zip(arm.answers, arm.token_ids, results[PLAIN].token_ids,
                                            strict=True):
            if ids != plain:
                sys.exit(f'reproduce: the answers of (K, alternatives) {key} and {PLAIN} differ, '
                         f'{mode}: {prompt.text}')


def figures(arms, plain):
    """arms, and those without drafts: an Arm for each of KINDS. Tokens are those of a step; what
    was tried and taken, alternatives of one that drafted."""
    def total(name):
        return sum(getattr(arm, name) for arm in arms)

    def times(of):
        return np.concatenate([arm.ms_by_prompt() for arm in of])
    drafted = max(total('num_spec_steps'), 1)
    return {'tokens': total('num_behind') / total('num_steps'),
            'by kind': [arm.tokens_a_step() for arm in arms],
            'tried': total('num_alternatives') / drafted,
            'taken': total('num_accepted_alternatives') / drafted,
            'ms': total('decode_ms') / total('num_behind'),
            'speed-up': time_ratio(times(plain), times(arms))}


def cells(of, key):
    return [*(f'{tokens:.2f}' for tokens in (of['tokens'], *of['by kind'])), f'{of["tried"]:.2f}',
            f'{of["taken"]:.3f}', f'{of["ms"]:.2f}',
            with_interval(*of['speed-up']) if key != PLAIN else '']


def line(mode, of_mode):
    """Which arms that draft have the most, in Markdown."""
    def named(key):
        return f'K = {key[0]} with {key[1]} alternatives'
    drafting = [key for key in of_mode if key != PLAIN]
    most = max(drafting, key=lambda key: of_mode[key]['tokens'])
    fastest = max(drafting, key=lambda key: of_mode[key]['speed-up'][0])
    return (f'- {mode}: most tokens a step, {of_mode[most]["tokens"]:.2f}, at {named(most)}; '
            f'fastest, {with_interval(*of_mode[fastest]["speed-up"])} times as fast as without '
            f'drafts, at {named(fastest)}.\n')

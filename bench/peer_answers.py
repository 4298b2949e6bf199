"""Answers of Outrider and its peers, and their times as a table."""

import statistics
import sys
import time

from page import table
from paired import ratio, with_interval

PLAIN, ADAPTIVE = 'Outrider, K = 0', 'Outrider, adaptive'
OURS = (PLAIN, ADAPTIVE)


class Answer:
    """What came, and when."""

    def __init__(self, program, prompt, count):
        self.prompt, self.tokens, self.times, self.sizes = prompt, [], [], []
        begin = time.perf_counter()
        program.answer(prompt, count, self.put)
        if len(self.tokens) != count:
            sys.exit(f'peers: {type(program).__name__}: expected {count} tokens, '
                     f'found {len(self.tokens)}')
        self.ttft_ms = 1000 * (self.times[0] - begin)
        self.token_ms = 1000 * (self.times[-1] - self.times[0]) / (count - self.sizes[0])

    def put(self, tokens):
        self.times.append(time.perf_counter())
        self.sizes.append(len(tokens))
        self.tokens += tokens


def medians(answers, what):
    """[prompts], each over its rounds."""
    return [statistics.median(getattr(answer, what) for answer in rounds) for rounds in answers]


def ratio_cell(theirs, ours):
    return with_interval(*ratio(theirs, ours), between=', ')


def times_table(answers):
    rows = []
    for name, theirs in answers.items():
        token_ms, ttft_ms = medians(theirs, 'token_ms'), medians(theirs, 'ttft_ms')
        cells = ['' if name == ours else ratio_cell(token_ms, medians(answers[ours], 'token_ms'))
                 for ours in OURS]
        to_ttft = '' if name == PLAIN else ratio_cell(ttft_ms, medians(answers[PLAIN], 'ttft_ms'))
        rows.append([name, f'{statistics.median(token_ms):.2f}', *cells,
                     f'{statistics.median(ttft_ms):.0f}', to_ttft])
    return table(['', 'ms a token', *(f'× {ours}' for ours in OURS), 'TTFT, ms',
                  f'TTFT × {PLAIN}'], rows)

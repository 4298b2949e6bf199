"""How long things took, as a table of percentiles beside what is promised."""

import math


class Figures:
    # What is measured, in the order of the table. `check` asserts `slack` times what is promised:
    # promises are for a machine with cores to spare, and the tests' may have none.
    def __init__(self, slack):
        self.slack = slack
        self.samples = {}   # (fault, what) -> [ms]
        self.promises = {}  # (fault, what) -> ms

    def check(self, test, fault, what, ms, promise_ms):
        self.samples.setdefault((fault, what), []).append(ms)
        self.promises[fault, what] = promise_ms
        test.assertLessEqual(ms, promise_ms * self.slack, f'{fault}: {what}')

    @staticmethod
    def percentile(values, share):
        ordered = sorted(values)
        return ordered[max(math.ceil(share * len(ordered)) - 1, 0)]

    def table(self):
        lines = [f'{"fault":<22}{"until":<24}{"n":>5}{"P50 ms":>9}{"P99 ms":>9}{"promise":>9}']
        for (fault, what), values in self.samples.items():
            lines.append(f'{fault:<22}{what:<24}{len(values):>5}'
                         f'{self.percentile(values, 0.5):>9.0f}'
                         f'{self.percentile(values, 0.99):>9.0f}'
                         f'{self.promises[fault, what]:>9.0f}')
        return '\n'.join(lines)

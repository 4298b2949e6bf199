"""Load tests at one speed of the machine, from traces of steps that are made up.

    one_speed_test.py SOURCE_DIR
"""

import json
import sys
import unittest
from pathlib import Path

import numpy as np

sys.path.append(str(Path(sys.argv.pop()) / 'bench'))

from one_speed import Answers, p99, read_trace, step_prices  # noqa: E402


def load_events(number, begin_s, ms, prompt_rows=0, sequences=2, drafted=0, draft_ms=0.0,
                alternatives=0):
    """Of a step of a trace, as lines of it."""
    about = {'step': number}
    return [json.dumps({'ph': 'X', 'name': name, 'ts': 1e6 * begin_s, 'dur': 1e3 * of,
                        'args': args})
            for name, of, args in (('step', ms + draft_ms, about | {
                'prompt_rows': prompt_rows, 'sequences': sequences, 'drafted': drafted,
                'alternatives': alternatives, 'accepted': 0, 'refed': 0}),
                                   ('draft', draft_ms, about))]


def answer_events(number, name, first_s, last_s):
    return [json.dumps({'ph': phase, 'name': span, 'id': number, 'ts': 1e6 * at}
                       | ({'args': {'request_id': name}} if phase == 'b' else {}))
            for span, begin_s in (('request', 0.0), ('decode', first_s))
            for phase, at in (('b', begin_s), ('e', last_s))]


class OneSpeed(unittest.TestCase):
    def load(self, lines, *arms):
        """arms: of each, of each round, [(id, tokens)]."""
        return Answers(read_trace(['[', *(line + ',' for line in lines)]), arms)

    def test_arms_in_turns_are_joined_by_the_steps_that_both_have(self):
        # Plain steps take 6 ms, those that draft 8 and 1 of drafting; 1 of 20 in the second arm's
        # turns is plain. The machine is 1.4 times as slow in these, and one step is held up.
        lines, arms, at_s, number = [], [[], []], 0.0, 0
        for turn in range(4):
            for arm in range(2):
                first_s, name = at_s + 0.001, f'loadtest-{2 * turn + arm}'
                for i in range(401):
                    drafts = arm == 1 and i % 20 > 0
                    slow = 1.4 if arm == 1 else 1.0
                    ms = slow * (8 if drafts else 6) * (30 if i == 150 else 1)
                    lines += load_events(number, at_s, ms, drafted=4 * drafts,
                                         draft_ms=slow * drafts)
                    at_s, number = at_s + (ms + slow * drafts) / 1000, number + 1
                    if i == 0:
                        first_s = at_s + 0.002  # it is delivered while the next step runs
                lines += answer_events(2 * turn + arm, name, first_s, at_s + 0.002)
                arms[arm].append([(name, 401)])
                at_s += 3
        answers = self.load(lines, *arms)
        self.assertEqual(answers.num_rounds(), 4)
        self.assertAlmostEqual(answers.shared_steps(), 0.05, places=3)
        plain, drafting = answers.p99()
        self.assertAlmostEqual(drafting / plain, (0.95 * 9 + 0.05 * 6) / 6, delta=0.005)
        ratio, low, high = answers.p99_ratio()
        self.assertEqual(ratio, drafting / plain)
        self.assertLessEqual(low, ratio + 1e-9)
        self.assertLess(high - low, 0.01)

    def test_a_rare_step_or_one_with_prompts_has_its_own_time(self):
        lines = [line for i in range(100) for line in load_events(i, 0.01 * i, 6)]
        lines += load_events(100, 1.0, 90, prompt_rows=100) + load_events(101, 1.1, 70, 65)
        lines += load_events(102, 1.2, 9, sequences=3)
        prices = step_prices(read_trace(lines).steps)
        np.testing.assert_allclose(prices[[0, 99, 102]], [6, 6, 9], rtol=0.02)
        self.assertGreater(prices[100], prices[101])

    def test_alternatives_have_prices_of_their_own(self):
        lines = [line for i in range(100) for line in load_events(
            i, 0.01 * i, 8 + i % 2, drafted=4, alternatives=i % 2)]
        prices = step_prices(read_trace(lines).steps)
        np.testing.assert_allclose(prices, [8, 9] * 50, rtol=1e-3)

    def test_rounds_are_drawn_for_the_interval(self):
        self.assertEqual(p99(list(range(1, 101))), 99)
        self.assertEqual(p99(list(range(1, 102))), 100)
        # Two answers a round, of one step each behind the first; in one round of three of the
        # second arm the step has a prompt beside it, and takes half as long again.
        lines, arms = [], [[], []]
        for number in range(6):
            turn, arm = divmod(number, 2)
            ms = 9 if (turn, arm) == (2, 1) else 6
            for i in range(30):
                lines += load_events(30 * number + i, number + i / 100, 6 if i < 29 else ms,
                                     prompt_rows=int(i == 29 and ms == 9))
            lines += answer_events(number, f'a{number}', number + 0.287, number + 0.301)
            arms[arm].append([(f'a{number}', 2)])
        ratio, low, high = self.load(lines, *arms).p99_ratio()
        np.testing.assert_allclose([ratio, low, high], [1.5, 1, 1.5], rtol=0.01)

    def test_longer_prompts_are_no_slower_machine(self):
        """The second arm feeds 100 rows at a time in half as long again as the first feeds 64."""
        lines, arms = [], [[], []]
        for number in range(8):
            for i in range(30):
                is_prompt = i % 3 > 0
                rows, ms, drafted = ((64, 9, 0), (100, 13.5, 0))[number % 2] if is_prompt else (
                    (0, 6, 0), (0, 8, 1))[number % 2]
                lines += load_events(30 * number + i, 2 * number + i / 20, ms, prompt_rows=rows,
                                     drafted=drafted)
            lines += answer_events(number, f'a{number}', 2 * number - 0.001, 2 * number + 1.49)
            arms[number % 2].append([(f'a{number}', 31)])
        ratio = self.load(lines, *arms).p99_ratio()[0]
        self.assertAlmostEqual(ratio, (2 * 13.5 + 8) / (2 * 9 + 6), delta=0.01)

    def test_a_trace_with_gaps_is_refused(self):
        lines = load_events(1, 0.0, 6) + load_events(3, 0.1, 6)
        with self.assertRaisesRegex(SystemExit, 'has 2 steps of 1 … 3'):
            read_trace(lines)


if __name__ == '__main__':
    unittest.main()

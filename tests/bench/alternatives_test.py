"""What bench/reproduce alternatives says of answers that are made up.

    alternatives_test.py SOURCE_DIR
"""

import argparse
import sys
import unittest
from pathlib import Path
from unittest import mock

sys.path.append(str(Path(sys.argv.pop()) / 'bench'))

from alternatives import MODES, PLAIN, alternatives  # noqa: E402
from speculation import KINDS, Arm, Prompt  # noqa: E402


def arm(answers_ms, steps, taken=0, ids=(1, 2)):
    """Of answers that take so many ms a token, each 10 behind the first in so many steps, of which
    all but one drafted with two alternatives; each of these tokens."""
    made = Arm()
    for number, ms in enumerate(answers_ms):
        made.answers.append((Prompt('chat', f'prompt {number}'), '', []))
        made.answers_ms.append(ms)
        made.decode_ms += 10 * ms
        made.num_behind += 10
        made.num_steps += steps
    made.num_spec_steps = (steps - 1) * len(answers_ms)
    made.num_alternatives = 2 * made.num_spec_steps
    made.num_accepted_alternatives = taken
    made.token_ids = [ids] * len(answers_ms)
    return made


def bench(run, k, numbers):
    """A stand-in for reproduce's; what is drawn is left out."""
    return argparse.Namespace(
        run=run, rounds=1, lines=mock.Mock(return_value=''), prompts={kind: 'ab' for kind in KINDS},
        arguments=argparse.Namespace(k=k, alternatives=numbers, tokens=11))


def rows(text):
    return [[cell.strip() for cell in row.split('|')[1:-1]]
            for row in text.splitlines() if row.startswith('| ')]


class Alternatives(unittest.TestCase):
    def test_steps_and_times_are_summed_over_kinds(self):
        def run(arms, kinds, _):
            self.assertEqual(list(arms), [PLAIN, (2, 4), (2, 0)])
            steps = 5 if kinds == ['chat'] else 4
            return {PLAIN: arm([8, 8], 10), (2, 4): arm([2, 4], steps, taken=3),
                    (2, 0): arm([2, 3], 8)}
        asked = bench(run, [2], [4, 0])
        text = alternatives(asked)
        header, _, plain, branching, chain, *_ = rows(text)
        self.assertEqual(header, ['drawn', 'K', 'alternatives', 'tokens a step', 'chat', 'code',
                                  'summarising', 'copying edits', 'tried', 'taken', 'ms a token',
                                  'speed-up'])
        self.assertEqual(plain[:4] + plain[-2:], ['greedy', '0', '0', '1.00', '8.00', ''])
        # 80 tokens in 34 steps, of which 26 drafted; eight prompts are too few for an interval.
        self.assertEqual(branching, ['greedy', '2', '4', '2.35', '2.00', '2.50', '2.50', '2.50',
                                     '2.00', '0.462', '3.00', '2.67 (n/a)'])
        self.assertEqual(chain[:4], ['greedy', '2', '0', '1.25'])
        self.assertIn('- greedy: most tokens a step, 2.35, at K = 2 with 4 alternatives; fastest, '
                      '3.20 (n/a) times as fast as without drafts, at K = 2 with 0 alternatives.\n',
                      text)
        _, _, _, panels = asked.lines.call_args.args
        self.assertEqual(list(panels), list(MODES))
        self.assertEqual(panels['greedy'], {'K = 2': {0: 1.25, 4: 80 / 34}})

    def test_answers_that_no_draft_may_change_are_compared(self):
        def run(differ):
            def of(arms, *_):
                *_, (_, sampling) = arms.values()
                other = (1, 3) if sampling == MODES[differ] else (1, 2)
                return {key: arm([5], 5, ids=(1, 2) if key == PLAIN else other) for key in arms}
            return of
        alternatives(bench(run('T 1, by rejection'), [3], [2]))
        for mode in ('greedy', 'T 1, coupled'):
            with self.subTest(mode=mode), self.assertRaises(SystemExit) as raised:
                alternatives(bench(run(mode), [3], [2]))
            self.assertEqual(str(raised.exception),
                             'reproduce: the answers of (K, alternatives) (3, 2) and (0, 0) '
                             f'differ, {mode}: prompt 0')


if __name__ == '__main__':
    unittest.main()

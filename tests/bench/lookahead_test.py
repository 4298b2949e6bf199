"""K adapted beside K fixed, by the prices of steps, as bench/reproduce lookahead has it.

    lookahead_test.py SOURCE_DIR PROGRAM CHECKPOINT
"""

import sys
import tempfile
import unittest
from pathlib import Path

CHECKPOINT, PROGRAM = Path(sys.argv.pop()), sys.argv.pop()
sys.path.append(str(Path(sys.argv.pop()) / 'bench'))

from lookahead import (Prices, Step, at_one_speed, lookahead_text, read_steps,  # noqa: E402
                       rising, to_best_interval)
from serving import Server  # noqa: E402
from speculation import (ADAPTIVE, DEFAULT, PLAIN, Prompt, generate_request,  # noqa: E402
                         speculation_params)


def step(drafted, accepted, draft_ms=0.0):
    return Step(drafted, accepted, draft_ms, 10 + drafted)


class Lookahead(unittest.TestCase):
    def test_steps_are_those_that_decode_one_answer(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        path = Path(folder.name) / 'trace.json'
        with Server(PROGRAM, CHECKPOINT, 1, ['--trace', path]) as server:
            for drafter, k in (PLAIN, ('prompt_lookup', 3), ('random', 2)):
                prompt = Prompt('copy', 'ab ab ab', chat=False)  # it has no chat template
                request = generate_request(prompt, speculation_params(drafter, k),
                                           {'temperature': 0}, 33)
                answer = server.stub.GenerateOnce(request)
                self.assertEqual(len(answer.token_ids), 33)
        plain, copied, guessed = read_steps(path.read_text(encoding='utf-8').splitlines())
        self.assertEqual([(s.drafted, s.accepted) for s in plain], [(0, 0)] * 32)
        for steps, most in ((plain, 0), (copied, 3), (guessed, 2)):
            self.assertLessEqual(sum(s.accepted + 1 for s in steps), 32)
            self.assertGreater(len(steps), 6)
            self.assertEqual(max(s.drafted for s in steps), most)
            self.assertTrue(all(s.draft_ms >= 0 and s.rest_ms > 0 for s in steps))

    def test_a_step_has_the_median_price_of_its_kind(self):
        held_up, refeeding = Step(2, 0, 3.0, 400.0), Step(3, 0, 7.0, 16, refed=4)
        branching = Step(6, 1, 7.0, 18, alternatives=3, refed=1)
        prices = Prices({PLAIN: [step(0, 0)] * 3, ('head', 2): [step(2, 1, 2.0)] * 2 + [held_up],
                         ('head', ADAPTIVE): [step(0, 0, 1.0), step(0, 0), branching, refeeding],
                         ('ngram', 2): [step(2, 2, 5.0)],
                         (DEFAULT, ADAPTIVE): [step(2, 2), step(2, 0, 2.5)]}, 'head')
        self.assertEqual(prices.ms('', step(0, 0, 5.0)), 10)  # held up
        self.assertEqual(prices.ms('head', held_up), 14)
        self.assertEqual(prices.ms('head', step(0, 0)), 10.5)  # in the mean
        # Seven rows and three rounds each, but one pass is cut into segments.
        self.assertEqual(prices.ms('head', branching), 18 + 7)
        self.assertEqual(prices.ms('head', refeeding), 16 + 7)
        self.assertEqual(prices.ms('head', Step(2, 0, 0, 0, refed=2)), (3 * 12 + 2 * 16) / 5 + 2)
        self.assertEqual(prices.ms('ngram', step(2, 2, 5.0)), 12)
        self.assertEqual(prices.ms(DEFAULT, step(2, 2)), 12)  # copied
        self.assertEqual(prices.ms(DEFAULT, step(2, 0, 2.5)), 14)  # drawn, by the head
        self.assertEqual(prices.informed_ms('head', step(2, 1, 2.0)), 11 + 1.25)
        self.assertEqual(prices.informed_ms('head', held_up), 10)
        self.assertEqual(prices.rows(), [(0, {0: 10}, {'head': 0.5}), (2, {0: 12}, {'head': 2}),
                                         (7, {0: 16, 3: 18}, {})])

    def test_the_machine_is_taken_to_be_as_fast_at_any_time(self):
        # Half as fast for a third of the time, in which most of what drafts runs.
        arms = {PLAIN: [step(0, 0)._replace(at_s=at) for at in (0.1, 0.2, 2.1, 2.2, 2.3, 4.1, 4.5)],
                ('head', 2): [step(2, 1, 2.0)._replace(at_s=at) for at in (1, 3, 4.2, 4.3, 4.4)]}
        slow = {key: [s._replace(draft_ms=2 * s.draft_ms, rest_ms=2 * s.rest_ms)
                      if s.at_s >= 4 else s for s in steps] for key, steps in arms.items()}
        found = at_one_speed({('greedy', 'chat'): slow})['greedy', 'chat']
        scale = found[PLAIN][0].rest_ms / 10  # the mean is what it is
        for key, steps in arms.items():
            for had, expected in zip(found[key], steps, strict=True):
                self.assertAlmostEqual(had.rest_ms / scale, expected.rest_ms, places=3)
                self.assertAlmostEqual(had.draft_ms / scale, expected.draft_ms, places=3)

    def test_dear_alternatives_are_no_slower_machine(self):
        arms = {PLAIN: [step(0, 0)._replace(at_s=at) for at in (0.1, 2.1)],
                ('head', 2): [step(2, 0)._replace(at_s=0.2)],
                ('head', ADAPTIVE): [Step(2, 0, 0, 18, 2.2, alternatives=1)]}
        found = at_one_speed({('greedy', 'chat'): arms})['greedy', 'chat']
        for key, steps in arms.items():
            for had, expected in zip(found[key], steps, strict=True):
                self.assertAlmostEqual(had.rest_ms, expected.rest_ms, places=3)

    def test_alternatives_have_prices_of_their_own_in_the_table(self):
        arms = {PLAIN: [step(0, 0)], ('head', 1): [step(1, 1, 1.0)],
                ('head', ADAPTIVE): [step(1, 1, 1.0), Step(2, 1, 1.0, 15, alternatives=1)]}
        lines = lookahead_text({('greedy', 'chat'): arms}, ['head'], 'head')[0].splitlines()
        self.assertIn('| sampling | K | without its drafting | … 1 of them alternatives | head |',
                      lines)
        self.assertIn('| greedy | 1 | 11.00 |  | 1.00 |', lines)
        self.assertIn('| greedy | 2 |  | 15.00 |  |', lines)

    def test_more_rows_never_take_less(self):
        self.assertEqual(rising({0: (10, 9), 1: (9, 3), 3: (11, 1)}), {0: 9.75, 1: 9.75, 3: 11})
        self.assertEqual(rising({2: (1, 1), 1: (2, 1), 0: (3, 2)}), {0: 2.25, 1: 2.25, 2: 2.25})

    def test_ways_of_sampling_have_prices_of_their_own(self):
        arms = {PLAIN: [step(0, 0)], ('head', 1): [step(1, 1, 1.0)],
                ('head', ADAPTIVE): [step(1, 1, 1.0)]}
        slow = {key: [Step(s.drafted, s.accepted, 2 * s.draft_ms, 2 * s.rest_ms) for s in steps]
                for key, steps in arms.items()}
        text, _ = lookahead_text({('greedy', 'chat'): arms, ('T 1', 'chat'): slow}, ['head'],
                                 'head')
        self.assertIn('| greedy | 1 | 11.00 | 1.00 |', text.splitlines())
        self.assertIn('| T 1 | 1 | 22.00 | 2.00 |', text.splitlines())

    def test_adapted_is_beside_the_best_fixed_of_its_text(self):
        arms = {PLAIN: [step(0, 0)] * 6, ('head', 1): [step(1, 1, 1.0)] * 3,
                ('head', 2): [step(2, 1, 2.0)] * 3,
                ('head', ADAPTIVE): [step(1, 1, 1.0)] * 2 + [step(0, 0)] * 2,
                (DEFAULT, ADAPTIVE): [step(2, 2)] * 2}
        text, to_best = lookahead_text({('greedy', 'chat'): arms}, ['head'], 'head')
        lines = text.splitlines()
        # Plain 60 ms; K = 1: 36; K = 2: 42; adapted 44; informed: 1 of 2 drafted, 36.
        self.assertEqual(lines[2], '| head | greedy | chat | 1.67 | 1.43 | 1.364 | '
                                   '0.818 (n/a) | 1.67 | 100.0 / 166.7 / 136.4 / 166.7 | '
                                   '10.0 / 6.0 / 10.0 / 6.0 |')
        self.assertEqual(lines[3], '| default | greedy | chat | 1.67 | 1.43 | 2.500 | '
                                   '1.500 (n/a) | 1.67 | 100.0 / 166.7 / 250.0 / 166.7 | '
                                   '10.0 / 6.0 / 4.0 / 6.0 |')
        self.assertIn('- head: adapted, 0.818 of the best fixed K in the mean of 1 cells, 0.818 at '
                      'least, 0.98 or more in 0, within the interval in n/a; 1.364 of no drafts at '
                      'least, 0.99 or more in 1.', lines)
        of_text = to_best['greedy']['chat']
        self.assertAlmostEqual(of_text['head'], 36 / 44)
        self.assertAlmostEqual(of_text[DEFAULT], 1.5)

    def test_drafters_need_not_have_the_same_fixed_ones(self):
        arms = {PLAIN: [step(0, 0)] * 6, ('head', 1): [step(1, 1, 1.0)] * 3,
                ('ngram', 2): [step(2, 2)] * 2, ('head', ADAPTIVE): [step(1, 1, 1.0)] * 3,
                ('ngram', ADAPTIVE): [step(2, 2)] * 2, (DEFAULT, ADAPTIVE): [step(2, 2)] * 2}
        text, _ = lookahead_text({('greedy', 'chat'): arms}, ['ngram', 'head'], 'head')
        lines = text.splitlines()
        self.assertTrue(lines[2].startswith('| ngram | greedy | chat |  | 2.50 | 2.500 | 1.000 '))
        self.assertTrue(lines[3].startswith('| head | greedy | chat | 1.67 |  | 1.667 | 1.000 '))
        self.assertTrue(lines[4].startswith('| default | greedy | chat | 1.67 | 2.50 | 2.500 '))

    def test_the_interval_picks_the_best_anew_for_each_draw_of_prompts(self):
        # Milliseconds by prompt, five of each kind: plain 20, 20; K = 1: 13, 26; adapted 20, 13.
        def of_prompts(*steps):
            return [step._replace(prompt=2 * pair + prompt) for pair in range(5)
                    for prompt, of in enumerate(steps) for step in of]
        free, cheap = step(0, 0), Step(1, 1, 0, 13)
        arms = {PLAIN: of_prompts([free] * 2, [free] * 2),
                ('head', 1): of_prompts([cheap], [Step(1, 0, 0, 13)] * 2),
                ('head', ADAPTIVE): of_prompts([free] * 2, [cheap])}
        prices = Prices(arms, 'head')
        low, high = to_best_interval(arms, prices, 'head', [PLAIN, ('head', 1)])
        # B(10, 1/2) draws are of the first kind. P(B <= 1) = 0.011 and P(B <= 2) = 0.055 hold 0.025
        # between. With 8 K = 1 is the best, with 2 plain is.
        self.assertAlmostEqual(low, (8 * 13 + 2 * 26) / (8 * 20 + 2 * 13))
        self.assertAlmostEqual(high, 200 / (2 * 20 + 8 * 13))
        text, _ = lookahead_text({('greedy', 'chat'): arms}, ['head'], 'head')
        self.assertIn('| 1.212 | 1.182 (0.839, 1.389) |', text)
        nine = {key: [step for step in steps if step.prompt < 9] for key, steps in arms.items()}
        self.assertIsNone(to_best_interval(nine, prices, 'head', [PLAIN, ('head', 1)]))


if __name__ == '__main__':
    unittest.main()

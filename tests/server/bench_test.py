"""`outrider bench comm`, `bench serve` and `bench load` from outside: what they measure is there and
adds up; nothing is said of how fast it is.

    bench_test.py PROGRAM CHECKPOINT [unittest arguments]

PROGRAM is the built `outrider`; CHECKPOINT a tiny model's directory.
"""

import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).parents[1] / 'testing'))
from program import CHECKPOINT, LIMIT_S, MPIRUN, PROGRAM  # noqa: E402

DRAFT = str(Path(CHECKPOINT).with_name('tiny-draft'))


def bench(ranks, *arguments):
    starter = [*MPIRUN, '-np', str(ranks)] if ranks > 1 else []
    return subprocess.run([*starter, PROGRAM, 'bench', *map(str, arguments)], text=True,
                          stdin=subprocess.DEVNULL, capture_output=True, timeout=LIMIT_S)


class Bench(unittest.TestCase):
    def report(self, ranks, *arguments):
        """(what it printed, the report's context, its entries by name)."""
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, 'bench.json')
            done = bench(ranks, *arguments, '--json', file)
            self.assertEqual(done.returncode, 0, done.stderr)
            report = json.loads(file.read_text())
        entries = {entry['name']: entry for entry in report['benchmarks']}
        self.assertEqual(len(entries), len(report['benchmarks']))
        self.assertEqual(report['context'].get('ranks', '1'), str(ranks))
        return done.stdout, report['context'], entries

    def refuses(self, why, ranks, *arguments):
        done = bench(ranks, *arguments)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn(why, done.stderr)
        self.assertEqual(done.stdout, '')


class Report(Bench):
    def test_a_file_that_cannot_be_written_is_refused_before_anything_is_measured(self):
        for ranks, name, flags in ((1, 'op', []), (2, 'comm', []),
                                   (1, 'decode', ['--model', CHECKPOINT]),
                                   (2, 'serve', ['--model', CHECKPOINT])):
            for file, why in (('/no/such/folder/x', 'No such file'), ('/', 'found a folder')):
                with self.subTest(name=name, file=file):
                    self.refuses(f'{file}: ', ranks, name, *flags, '--json', file)
                    self.refuses(why, ranks, name, *flags, '--json', file)


class Comm(Bench):
    def test_every_exchange_has_a_time_and_a_bound(self):
        for ranks in (2, 3):
            with self.subTest(ranks=ranks):
                printed, context, entries = self.report(
                    ranks, 'comm', '--rows', '1,5', '--hidden', 100, '--repeats', 3)
                self.assertEqual(list(entries), ['comm/line'] + [
                    f'comm/{name}/rows:{rows}' for rows in (1, 5)
                    for name in ('all_reduce_sum', 'all_gather', 'broadcast')] + [
                    f'comm/plan_round_trip/sequences:{n}' for n in (1, 8, 64)])
                for entry in entries.values():
                    self.assertGreater(entry['real_time'], 0)
                self.assertEqual(entries['comm/all_gather/rows:5']['bytes'], 4 * 5 * 100)
                self.assertEqual(entries['comm/all_gather/rows:5']['iterations'], 3)
                # A line, and of each other rank a block of its part and one of the sum, read; a
                # part's worth of the sum written.
                read, write = (float(context[f'core_{way}_bytes_per_second'])
                               for way in ('read', 'write'))
                bound_us = entries['comm/line']['real_time'] + 1e6 * max(
                    2000 / write, 2 * (ranks - 1) * 2000 / ranks / read)
                self.assertAlmostEqual(
                    entries['comm/all_reduce_sum/rows:5']['bound_us'] / bound_us, 1, places=6)
                self.assertIn('| broadcast | 5 | 2000 |', printed)

    def test_what_cannot_be(self):
        self.refuses('expected at least 2', 1, 'comm')
        self.refuses('expected at least 2', 1, 'comm', '--device', 'cuda')
        self.refuses('--numerics fast is for GPUs alone', 2, 'comm', '--numerics', 'fast')
        with mock.patch.dict(os.environ, CUDA_VISIBLE_DEVICES=''):
            self.refuses('outrider: --device cuda: ', 2, 'comm', '--device', 'cuda')


class Op(Bench):
    def test_each_kernel_has_a_time(self):
        for table, *rows in (('ops', '| embed', '| rms_norm', '| rope_and_cache'),
                             ('verify', '| verify_summary, greedy')):
            with self.subTest(table=table):
                printed, _, entries = self.report(1, 'op', '--only', table, '--repeats', 1)
                self.assertGreater(len(entries), 4)
                for name, entry in entries.items():
                    self.assertGreater(entry['real_time'], 0, name)
                for row in rows:
                    self.assertIn(row, printed)

    def test_what_cannot_be(self):
        self.refuses('--only', 1, 'op', '--only', 'nothing')
        self.refuses('expected --shape', 1, 'op', '--device', 'cuda')
        self.refuses('--isas sse names an instruction set', 1, 'op', '--isas', 'sse')


class Decode(Bench):
    def test_every_part_has_a_time(self):
        for ranks in (1, 2):
            with self.subTest(ranks=ranks):
                _, _, entries = self.report(ranks, 'decode', '--model', CHECKPOINT, '--draft', DRAFT,
                                            '--rows', '1,5', '--repeats', 2, '--context', 20)
                self.assertGreater(entries['decode/draft']['real_time'], 0)
                for part in ('target', 'verify_greedy', 'verify_rejection', 'verify_coupled'):
                    for rows in (1, 5):
                        self.assertGreater(entries[f'decode/{part}/rows:{rows}']['real_time'], 0)
                self.assertGreater(entries['decode/draft']['draft_cost'], 0)

    def test_a_cycle_is_its_parts(self):
        _, _, entries = self.report(1, 'decode', '--model', CHECKPOINT, '--draft', DRAFT,
                                    '--rows', '5,1', '--repeats', 1, '--context', 20)
        draft, target, verify, one, verify_one = (
            entries[f'decode/{part}']['real_time']
            for part in ('draft', 'target/rows:5', 'verify_greedy/rows:5', 'target/rows:1',
                         'verify_greedy/rows:1'))
        cycle = entries['decode/cycle/k:4']
        self.assertAlmostEqual(cycle['real_time'] / (4 * draft + target + verify), 1, places=6)
        self.assertAlmostEqual(
            cycle['of_ideal'] * cycle['real_time'] / (4 * draft + one + verify_one), 1, places=6)
        self.assertAlmostEqual(entries['decode/draft']['draft_cost'] * one / draft, 1, places=6)

    def test_without_one_row_there_is_no_c(self):
        said, _, entries = self.report(1, 'decode', '--model', CHECKPOINT, '--draft', DRAFT,
                                       '--rows', '5', '--repeats', 1, '--context', 20)
        self.assertNotIn('draft_cost', entries['decode/draft'])
        self.assertNotIn('c = ', said)
        self.assertNotIn('decode/cycle/k:4', entries)


class Serve(Bench):
    PARTS = ('plan', 'draft', 'target', 'all_reduce', 'verify', 'exchange', 'host',
             'between_steps')

    def check(self, entries, k):
        step = entries[f'serve/step/k:{k}']
        parts = [entries[f'serve/{part}/k:{k}'] for part in self.PARTS]
        for name, part in zip(self.PARTS, parts):
            self.assertGreaterEqual(part['real_time'], 0, name)
        # The parts are all of the step, and of its ideal.
        self.assertAlmostEqual(sum(part['real_time'] for part in parts) / step['profile_us'], 1,
                               places=6)
        self.assertAlmostEqual(sum(part['ideal_us'] for part in parts) / step['ideal_us'], 1,
                               places=6)
        self.assertGreater(entries[f'serve/target/k:{k}']['real_time'], 0)
        self.assertGreater(entries[f'serve/all_reduce/k:{k}']['real_time'], 0)
        self.assertGreaterEqual(step['p99_us'], step['p90_us'])
        self.assertGreaterEqual(step['p90_us'], step['real_time'])
        return step

    def test_steps_without_drafts_and_with(self):
        for ranks in (1, 2):
            with self.subTest(ranks=ranks):
                printed, context, entries = self.report(
                    ranks, 'serve', '--model', CHECKPOINT, '--draft', DRAFT, '--concurrency', 3,
                    '--num-speculative-tokens', 2, '--prompt-tokens', 8, '--max-tokens', 30,
                    '--rounds', 2)
                self.assertEqual(context['drafter'], 'model')
                self.assertEqual(context['sequences'], '3')
                self.assertEqual(len(entries), 2 * (1 + len(self.PARTS)))
                plain = self.check(entries, 0)
                # Three sequences in each step. Of 30 tokens, a round's first comes with the prompt
                # and its last from a step that no other follows.
                self.assertEqual((plain['tokens_per_step'], plain['drafted_per_step']), (3, 0))
                self.assertGreaterEqual(plain['iterations'], 2 * 20)
                self.assertLessEqual(plain['iterations'], 2 * 29)
                self.assertEqual(entries['serve/draft/k:0']['ideal_us'], 0)
                drafted = self.check(entries, 2)
                self.assertGreaterEqual(drafted['tokens_per_step'], 3)
                self.assertGreater(drafted['drafted_per_step'], 4)
                self.assertLessEqual(drafted['drafted_per_step'], 6)
                self.assertGreater(entries['serve/draft/k:2']['ideal_us'], 0)
                self.assertIn('A step at K = 2:', printed)
                # What is lost of the ideal is what a verified step takes beyond a plain one.
                step, plain_us = entries['serve/step/k:2'], plain['profile_us']
                draft_us = entries['serve/draft/k:2']['real_time']
                self.assertAlmostEqual(2 * step['draft_cost'] * plain_us / draft_us, 1, places=6)
                self.assertAlmostEqual(step['speedup'] / step['ideal_speedup'] /
                                       ((plain_us + draft_us) / step['profile_us']), 1, places=6)
                self.assertNotIn('speedup', plain)
                self.assertNotIn('alpha', plain)
                self.assertIn(f'K = 2: c = {step["draft_cost"]:.3f}, alpha = {step["alpha"]:.3f}; ',
                              printed)

    def test_alpha_is_what_is_accepted_of_what_is_verified(self):
        # A draft of one token is always verified. Of a round, three steps at most are in no table:
        # the prompt's, the first behind it and the last.
        _, _, entries = self.report(1, 'serve', '--model', CHECKPOINT, '--drafter', 'ngram',
                                    '--num-speculative-tokens', 1, '--prompt-tokens', 8,
                                    '--max-tokens', 60, '--rounds', 2)
        step = entries['serve/step/k:1']
        drafted = step['drafted_per_step'] * step['iterations']
        accepted = (step['tokens_per_step'] - 1) * step['iterations']
        self.assertGreater(accepted, 20)
        self.assertGreaterEqual(step['alpha'], accepted / (drafted + 2 * 3))
        self.assertLessEqual(step['alpha'], (accepted + 2 * 3) / (drafted + 2 * 3))

    def test_what_cannot_be(self):
        self.refuses('nothing: is no directory', 1, 'serve', '--model', 'nothing')
        self.refuses('--drafter head: expected --draft-head', 1, 'serve', '--model', CHECKPOINT,
                     '--drafter', 'head')
        self.refuses('bench serve: ', 1, 'serve', '--model', CHECKPOINT, '--max-positions', 64,
                     '--max-tokens', 100)
        self.refuses('no step in which all sequences decode', 1, 'serve', '--model', CHECKPOINT,
                     '--max-tokens', 1)


class Load(Bench):
    FLAGS = ('load', '--model', CHECKPOINT, '--drafter', 'random', '--prompt-tokens', '4,8',
             '--max-tokens', '4,8')

    def test_both_arms_have_latencies_at_each_load(self):
        said, context, entries = self.report(2, *self.FLAGS, '--rates', '0.5,5', '--users', '2',
                                             '--requests', '100')
        self.assertEqual(context['drafter'], 'random')
        self.assertEqual(list(entries), [
            f'load/{load}/{arm}/{quantity}' for load in ('rate:0.5', 'rate:5', 'users:2')
            for arm in ('plain', 'adaptive') for quantity in ('ttft', 'tpot', 'e2e')])
        for name, entry in entries.items():
            with self.subTest(name=name):
                self.assertEqual(entry['iterations'], 10 * 95)
                self.assertGreaterEqual(entry['p99_us'], entry['real_time'])
                if '/adaptive/' in name:
                    plain = entries[name.replace('adaptive', 'plain')]
                    self.assertAlmostEqual(entry['p99_to_plain'],
                                           entry['p99_us'] / plain['p99_us'])
                    self.assertLessEqual(entry['p99_to_plain_low'], entry['p99_to_plain_high'])
        self.assertEqual(len(said.strip().splitlines()), 2 + 2 + 6)

    def test_what_cannot_be_simulated_is_refused(self):
        for why, *flags in (('--drafter is prompt_lookup', '--drafter', 'prompt_lookup'),
                            ('--drafter is model', '--draft', DRAFT, '--drafter', 'model'),
                            ('--users is 6; expected at most 5', '--drafter', 'random', '--users',
                             '6', '--requests', '100'),
                            ('have 4192 tokens at most', '--max-tokens', '8,4096'),
                            ('--alpha', '--alpha', 'nan,0.5'), ('--alpha', '--alpha', '0.5,0.4'),
                            ('--alpha', '--alpha', '0.5,1.5'), ('--rates', '--rates', '0'),
                            ('--rates', '--rates', 'nan'), ('--rounds', '--rounds', '9'),
                            ('--max-tokens', '--max-tokens', '1,8')):
            with self.subTest(flags=flags):
                self.refuses(why, 1, *self.FLAGS[:3], *flags)


if __name__ == '__main__':
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])

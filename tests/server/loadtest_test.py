"""`outrider loadtest` from outside, against a tiny server.

    loadtest_test.py PROGRAM CHECKPOINT [unittest arguments]
"""

import json
import re
import signal
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / 'testing'))
from program import CHECKPOINT, GREEDY, LIMIT_S, PROGRAM, Refusals, Server, outrider  # noqa: E402

PROMPTS = [f'{name} said' + ' once more' * times for name, times in
           (('Ada', 0), ('Bert', 2), ('Cleo', 10), ('Dora', 1), ('Emil', 60))]


def percentile(samples, per_mille):
    """Nearest rank, in whole numbers."""
    return sorted(samples)[-(-len(samples) * per_mille // 1000) - 1]


class Loadtest(Refusals, unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.directory = Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        cls.prompts = cls.directory / 'prompts.jsonl'
        cls.prompts.write_text(''.join(json.dumps({'text': text}) + '\n' for text in PROMPTS))
        cls.server = cls.enterClassContext(Server())

    def run_test(self, *arguments, code=0, report_every='0', builtin_prompts=False):
        """Runs it; the report and what was recorded of each request."""
        report, samples = self.directory / 'report.json', self.directory / 'samples.jsonl'
        result = outrider('loadtest', '--address', self.server.address, '--json', str(report),
                          '--samples', str(samples), '--report-every', report_every,
                          *([] if builtin_prompts else ['--prompts', str(self.prompts)]),
                          *arguments)
        self.assertEqual(result.returncode, code, result.stderr)
        self.last = result
        return (json.loads(report.read_text()),
                [json.loads(line) for line in samples.read_text().splitlines()])

    def test_the_report_follows_from_the_samples(self):
        report, samples = self.run_test('--concurrency', '6', '--requests', '90', '--output-length',
                                        'uniform:1:30', *GREEDY)
        self.assertEqual(self.last.stderr, '')
        self.assertEqual(len(samples), 90)
        self.assertEqual((report['requests'], report['errors'], report['errors_by_code']),
                         (90, 0, {}))
        long = [s for s in samples if len(s['token_ids']) > 1]
        gaps = [b[0] - a[0] for s in samples for a, b in zip(s['chunks'], s['chunks'][1:])]
        expected = {
            'ttft_ms': [1e3 * (s['chunks'][0][0] - s['due_s']) for s in samples],
            'e2e_ms': [1e3 * (s['end_s'] - s['due_s']) for s in samples],
            'itl_ms': [1e3 * gap for gap in gaps],
            'itl_amortised_ms': [1e3 * (b[0] - a[0]) / b[1] for s in samples
                                 for a, b in zip(s['chunks'], s['chunks'][1:])
                                 for _ in range(b[1])],
            'tpot_ms': [1e3 * (s['end_s'] - s['chunks'][0][0]) / (len(s['token_ids']) - 1)
                        for s in long],
            'queue_ms': [s['queue_ms'] for s in samples]}
        for name, values in expected.items():
            self.assertEqual(report[name]['count'], len(values))
            self.assertAlmostEqual(report[name]['mean'], sum(values) / len(values), 6)
            self.assertAlmostEqual(report[name]['max'], max(values), 6)
            for key in ('mean', 'p50', 'p90', 'p99', 'p999'):
                low, high = report[name]['ci95'][key]
                self.assertLessEqual(low, report[name][key])
                self.assertGreaterEqual(high, report[name][key])
            for key, per_mille in (('p50', 500), ('p90', 900), ('p99', 990), ('p999', 999)):
                self.assertAlmostEqual(report[name][key], percentile(values, per_mille), 6)
        for sample in samples:
            self.assertEqual(len(sample['token_ids']), sample['max_tokens'])
            self.assertEqual(sum(tokens for _, tokens in sample['chunks']), sample['max_tokens'])
        tokens = sum(len(s['token_ids']) for s in samples)
        self.assertEqual(report['completion_tokens'], tokens)
        for key in ('prompt_tokens', 'cached_tokens'):
            self.assertEqual(report[key], sum(s[key] for s in samples))
        # The long prompt comes again and again; a prompt's last token is always computed.
        self.assertGreater(report['cached_tokens'], 0)
        self.assertTrue(all(s['cached_tokens'] < s['prompt_tokens'] for s in samples))
        self.assertIn(f'prompts: {report["prompt_tokens"]} tokens, {report["cached_tokens"]} of '
                      'them (', self.last.stdout)
        self.assertEqual(report['server']['model'], Path(CHECKPOINT).name)
        self.assertEqual(report['server']['numerics'], 'exact')
        self.assertAlmostEqual(report['tokens_per_second'] * report['measured_s'], tokens, 3)
        self.assertEqual(report['speculation']['num_draft_tokens'],
                         sum(s['num_draft_tokens'] for s in samples))
        self.assertGreater(report['speculation']['num_draft_tokens'], 0)
        self.assertEqual(report['server_afterwards'],
                         {'num_requests_running': 0, 'num_requests_waiting': 0,
                          'kv_pages_used': 0})

    def test_greedy_answers_are_those_of_generate(self):
        report, samples = self.run_test('--concurrency', '8', '--requests', '40', '--output-length',
                                        'uniform:5:25', *GREEDY)
        self.assertEqual(report['greedy'], {'num_compared': 35, 'differences': []})
        self.assertIn('greedy: 35 answers', self.last.stdout)
        for index, prompt in enumerate(PROMPTS):
            alone = json.loads(outrider('generate', '--address', self.server.address, '--format',
                                        'json', '--max-tokens', '25', *GREEDY, prompt).stdout)
            answers = [s['token_ids'] for s in samples if s['prompt'] == index]
            self.assertEqual(len(answers), 8)
            for answer in answers:
                self.assertEqual(answer, alone['token_ids'][:len(answer)])

    def test_an_open_loop_is_repeated_by_its_seed(self):
        def asked(*arguments):
            report, samples = self.run_test('--rate', '40', '--duration', '1', '--raw', *arguments,
                                            '--output-length', 'uniform:1:20', '--ignore-eos',
                                            '--num-speculative-tokens', '2')
            self.assertEqual(report['errors'], 0)
            self.assertIsNone(report['greedy'])  # these are sampled
            return [[s[key] for key in ('due_s', 'prompt', 'max_tokens', 'token_ids')]
                    for s in samples]
        first = asked('--seed', '3')
        self.assertGreater(len(first), 10)
        self.assertEqual(first, asked('--seed', '3'))
        self.assertNotEqual(first, asked('--seed', '4'))

    def test_the_warm_up_is_cut(self):
        report, samples = self.run_test('--rate', '60', '--duration', '1', '--warmup', '0.5',
                                        '--max-tokens', '4', *GREEDY)
        late = [s for s in samples if s['due_s'] >= 0.5]
        self.assertEqual(report['requests'], len(late))
        self.assertEqual(report['warmup_requests'], len(samples) - len(late))
        self.assertGreater(report['warmup_requests'], 0)
        self.assertEqual(report['measured_s'], 0.5)

    def test_prompts_of_random_tokens(self):
        report, samples = self.run_test('--rate', '40', '--requests', '20', '--prompt-length',
                                        'lognormal:20:1:60', '--max-tokens', '3', *GREEDY,
                                        builtin_prompts=True)
        self.assertEqual(report['errors'], 0, report['first_error_by_code'])
        self.assertEqual(report['settings']['prompt_length'], 'lognormal:20:1:60')
        self.assertEqual(len({s['prompt'] for s in samples}), 20)
        lengths = [s['prompt_tokens'] for s in samples]
        self.assertGreater(len(set(lengths)), 5)
        self.assertLessEqual(max(lengths), 61)  # with a token for the beginning, where there is one

    def test_speculation_is_compared_and_changes_no_answer(self):
        report, samples = self.run_test('--compare', 'K=0,3', '--rounds', '10', '--concurrency',
                                        '2', '--requests', '4', '--max-tokens', '12', *GREEDY)
        self.assertEqual([arm['name'] for arm in report['compare']['arms']], ['K=0', 'K=3'])
        plain, speculative = report['compare']['arms']
        self.assertEqual(plain['speculation']['num_draft_tokens'], 0)
        self.assertGreater(speculative['speculation']['num_draft_tokens'], 0)
        self.assertEqual(plain['requests'], 40)
        self.assertEqual(report['greedy'], {'num_compared': 75, 'differences': []})
        for what in ('tpot_ms', 'e2e_ms'):
            for key in ('p50', 'p90', 'p99'):
                ratio = report['compare']['ratios'][0][what][key]
                self.assertAlmostEqual(ratio['ratio'], speculative[what][key] / plain[what][key])
                self.assertLessEqual(ratio['ci95'][0], ratio['ci95'][1])

    def test_answers_are_drawn_as_is_asked(self):
        for flags, mode in (((), 'coupled'), (('--mode', 'rejection'), 'rejection'),
                            (('--lenience', '0.5'), 'rejection'), (GREEDY, 'greedy')):
            with self.subTest(flags=flags):
                report, samples = self.run_test('--concurrency', '2', '--requests', '6',
                                                '--max-tokens', '8', '--raw', *flags)
                self.assertEqual(report['errors'], 0, report['first_error_by_code'])
                self.assertEqual(report['speculation']['answers_by_mode'], {mode: 6})
                self.assertEqual(report['speculation']['answers_by_drafter'],
                                 {samples[0]['drafter']: 6})
                self.assertIn(f'answers by {mode} 6; ', self.last.stdout)
                self.assertEqual(report['greedy'] is None, mode != 'greedy')
        report, _ = self.run_test('--compare', 'K=0,adaptive', '--rounds', '2', '--concurrency',
                                  '1', '--requests', '3', '--max-tokens', '8', '--raw', '--mode',
                                  'rejection')
        self.assertEqual([arm['speculation']['answers_by_mode']
                          for arm in report['compare']['arms']], [{'off': 6}, {'rejection': 6}])
        _, samples = self.run_test('--concurrency', '2', '--requests', '6', '--max-tokens', '8',
                                   '--lenience', '0.5', *GREEDY)
        self.assertEqual(len(samples), 6)

    def test_a_trace_is_compared_whole_in_each_round(self):
        trace = self.directory / 'compared.jsonl'
        trace.write_text(''.join(json.dumps({'timestamp': 20 * i, 'text': f'Once {i}'}) + '\n'
                                 for i in range(4)))
        report, _ = self.run_test('--trace', str(trace), '--compare', 'K=0,2', '--rounds', '3',
                                  '--max-tokens', '6', *GREEDY, builtin_prompts=True)
        self.assertEqual([arm['requests'] for arm in report['compare']['arms']], [12, 12])
        self.assertEqual(report['greedy']['differences'], [])

    def test_a_sweep(self):
        page = self.directory / 'sweep.html'
        report, samples = self.run_test('--sweep', 'users=1,3', '--requests', '12', '--max-tokens',
                                        '8', '--html', str(page), *GREEDY)
        self.assertEqual([step['value'] for step in report['sweep']['steps']], [1, 3])
        self.assertIn(report['sweep']['knee'], (1, 3))
        self.assertEqual({s['run'] for s in samples}, {'users=1', 'users=3'})
        self.assertIn('Knee at users=', self.last.stdout)
        self.assertIn('</html>', page.read_text())

    def test_a_sweep_of_comparisons(self):
        page = self.directory / 'both.html'
        report, samples = self.run_test(
            '--sweep', 'users=1,2', '--compare', 'K=0,3', '--rounds', '10', '--requests', '2',
            '--max-tokens', '8', '--html', str(page), *GREEDY)
        steps = report['sweep']['steps']
        self.assertEqual([step['value'] for step in steps], [1, 2])
        for step in steps:
            compare = step['compare']
            plain, speculative = compare['arms']
            self.assertEqual([plain['name'], speculative['name']], ['K=0', 'K=3'])
            self.assertEqual([plain['requests'], speculative['requests']], [20, 20])
            self.assertEqual(plain['speculation']['num_draft_tokens'], 0)
            self.assertGreater(speculative['speculation']['num_draft_tokens'], 0)
            for what in ('ttft_ms', 'tpot_ms', 'e2e_ms'):
                for key in ('p50', 'p90', 'p99'):
                    ratio = compare['ratios'][0][what][key]
                    self.assertAlmostEqual(ratio['ratio'],
                                           speculative[what][key] / plain[what][key])
                    self.assertLessEqual(ratio['ci95'][0], ratio['ci95'][1])
        self.assertEqual([knee['arm'] for knee in report['sweep']['knees']], ['K=0', 'K=3'])
        for knee in report['sweep']['knees']:
            self.assertIn(knee['knee'], (1, 2))
        self.assertEqual({s['run'] for s in samples},
                         {f'users={users}, {arm}, round {turn}' for users in (1, 2)
                          for arm in ('K=0', 'K=3') for turn in range(10)})
        self.assertEqual(report['greedy'], {'num_compared': 75, 'differences': []})
        self.assertIn('K=3: Knee at users=', self.last.stdout)
        self.assertIn('</html>', page.read_text())

    def test_it_says_how_it_goes_on(self):
        self.run_test('--rate', '20', '--duration', '1', '--max-tokens', '4', *GREEDY,
                      report_every='0.2')
        lines = self.last.stderr.splitlines()
        self.assertGreaterEqual(len(lines), 2)
        for line in lines:
            self.assertRegex(line, r'^outrider: \d+ s: \d+ running, \d+ done, 0 errors, '
                                   r'\d+\.\d tokens/s$')

    def test_the_built_in_prompts(self):
        report, samples = self.run_test('--concurrency', '4', '--requests', '40', '--max-tokens',
                                        '2', *GREEDY, builtin_prompts=True)
        self.assertEqual(report['errors'], 0, report['first_error_by_code'])
        self.assertEqual(report['settings']['prompts'], 'built-in')
        self.assertEqual(len({s['prompt'] for s in samples}), report['settings']['num_prompts'])

    def test_wrong_flags(self):
        self.assertEqual(outrider('loadtest', '--help').returncode, 0)
        one = ['loadtest', '--concurrency', '1']
        self.refuses(['loadtest'], '--concurrency', '--rate')
        self.refuses([*one, '--rate', '1'], '--concurrency', '--rate')
        self.refuses(['loadtest', '--concurrency', '0'], '--concurrency')
        for rate in ('0', '-1', 'nan', 'inf', 'much'):
            self.refuses(['loadtest', '--rate', rate], '--rate')
        self.refuses([*one, '--duration', '5', '--requests', '5'], '--duration', '--requests')
        self.refuses([*one, '--duration', 'nan'], '--duration')
        self.refuses([*one, '--duration', '5', '--warmup', '5'], '--warmup')
        self.refuses([*one, '--requests', '0'], '--requests')
        self.refuses(['loadtest', '--rate', '1e6', '--duration', '1e6'], '--rate')
        self.refuses([*one, '--seed', '-1'], '--seed')
        self.refuses([*one, '--output-length', 'fixed:0'], '--output-length', 'uniform:A:B')
        self.refuses([*one, '--output-length', 'fixed:3', '--max-tokens', '3'], '--max-tokens')
        self.refuses([*one, '--prompt-length', 'normal:3'], '--prompt-length', 'lognormal:MEDIAN')
        for load in (one, ['loadtest', '--sweep', 'rate=1,2']):
            self.refuses([*load, '--n', '2'], '--n: is 2; expected 1: a load test asks for one')
        self.refuses([*one, '--trace', 'x'], '--trace', '--concurrency')
        self.refuses([*one, '--sweep', 'rate=1'], '--sweep', '--concurrency')
        self.refuses([*one, '--rounds', '3'], '--rounds', '--compare')
        self.refuses([*one, '--compare', 'K=0'], '--compare', 'K=0,4,adaptive')
        self.refuses([*one, '--compare', 'K=0,1', '--num-speculative-tokens', '1'], '--compare')
        self.refuses(['loadtest', '--compare', 'K=0,1'], '--concurrency', '--rate')
        self.refuses(['loadtest', '--sweep', 'rate=2,1'], '--sweep', 'ascending')
        self.refuses(['loadtest', '--sweep', 'rate=1,1e6', '--duration', '1e6'], '--rate')
        both = ['loadtest', '--sweep', 'rate=1,1e6']
        self.refuses([*both, '--rounds', '3'], '--rounds', '--compare')
        self.refuses([*both, '--compare', 'K=0'], '--compare', 'K=0,4,adaptive')
        self.refuses([*both, '--compare', 'K=0,1', '--duration', '1e6'], '--rate')
        self.refuses([*both, '--compare', 'K=0,1', '--requests', '9', '--trace', 'x'], '--sweep',
                     '--trace')
        self.refuses(['loadtest', '--sweep', 'rate=2,1', '--compare', 'K=0,1'], '--sweep',
                     'ascending')
        self.refuses([*one, '--slo', 'ttft=5'], '--slo', 'ttft=5', 'ttft=500ms')
        self.refuses([*one, '--concurency', '3'], '--concurrency')
        self.refuses([*one, '--json', 'x', '--html', './x'], '--json', '--html', 'x')

    def test_wrong_files(self):
        broken = self.directory / 'broken.jsonl'
        broken.write_text('{"text": "x"}\n{"text": 7}\n')
        one = ['loadtest', '--address', self.server.address, '--concurrency', '1']
        self.refuses([*one, '--prompts', str(broken)], f'{broken}:2:', 'number', code=1)
        broken.write_text('')
        self.refuses([*one, '--prompts', str(broken)], f'{broken}:', 'no prompt', code=1)
        self.refuses([*one, '--prompts', '/no/such/file'], '/no/such/file', code=1)
        trace = ['loadtest', '--address', self.server.address, '--trace', str(broken)]
        self.refuses(trace, f'{broken}:', 'no request', code=1)
        broken.write_text('{"timestamp": 0, "text": "x"}\n{"timestamp": 1}\n')
        self.refuses(trace, f'{broken}:2:', 'input_length', code=1)
        for flag in ('--html', '--json', '--samples'):
            self.refuses([*one, flag, '/no/such/directory/x'], '/no/such/directory/x',
                         'No such file', code=1)
        self.refuses([*one, '--json', str(self.directory)], str(self.directory), 'directory',
                     code=1)

    def test_an_unreachable_server(self):
        self.refuses(['loadtest', '--address', '127.0.0.1:1', '--concurrency', '2'],
                     'UNAVAILABLE', '127.0.0.1:1', code=1)

    def test_a_server_that_refuses_everything(self):
        report, samples = self.run_test('--concurrency', '4', '--duration', '600', '--top-p', '7',
                                        code=1)
        self.assertRegex(self.last.stderr,
                         r'^outrider: the test is void: .*INVALID_ARGUMENT: .*top_p.*\n$')
        self.assertEqual(report['requests'], report['errors'])
        self.assertEqual(report['errors_by_code'], {'INVALID_ARGUMENT': len(samples)})
        self.assertIsNone(report['ttft_ms']['p50'])
        self.assertNotIn('nan', self.last.stdout)
        self.assertNotIn('speculation:', self.last.stdout)

    def start(self, server, *arguments):
        """A test of ten minutes that is under way: the server has answered many."""
        process = subprocess.Popen(
            [PROGRAM, 'loadtest', '--address', server.address, '--prompts', str(self.prompts),
             '--concurrency', '4', '--duration', '600', '--report-every', '0.05', *GREEDY,
             *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True)
        for line in process.stderr:
            if int(re.search(r'(\d+) done,', line)[1]) >= 50:
                return process
        self.fail(f'it ended: {process.communicate()}')

    def test_interrupted(self):
        path = self.directory / 'interrupted.json'
        process = self.start(self.server, '--json', str(path))
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=LIMIT_S)
        self.assertEqual(process.returncode, 0, stderr)
        report = json.loads(path.read_text())
        self.assertTrue(report['interrupted'])
        self.assertGreater(report['requests'], 0)
        self.assertEqual(report['errors'], 0)
        self.assertLess(report['measured_s'], 600)
        self.assertIn('requests/s', stdout)
        self.assertIn('The test was interrupted.', stdout)

    def test_a_server_that_dies_under_load(self):
        path = self.directory / 'died.json'
        with Server() as server:
            process = self.start(server, '--json', str(path))
            server.process.kill()
            for line in process.stderr:
                done, errors = map(int, re.search(r'(\d+) done, (\d+) errors', line).groups())
                if errors > done / 5:
                    break
            process.send_signal(signal.SIGINT)
            stderr = process.communicate(timeout=LIMIT_S)[1]
        self.assertEqual(process.returncode, 1, stderr)
        report = json.loads(path.read_text())  # there is something to report
        self.assertRegex(report['failure'], 'the server failed|the test is void')
        self.assertGreater(report['errors'], 0)
        self.assertLess(report['errors'], report['requests'])
        self.assertEqual(set(report['errors_by_code']), {'UNAVAILABLE'})
        self.assertIn('UNAVAILABLE', report['server_afterwards']['error'])


if __name__ == '__main__':
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])

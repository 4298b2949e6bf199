"""The program's command line: flags, files, the environment, and what is refused before it serves.

    command_line_test.py PROGRAM CHECKPOINT [unittest arguments]

PROGRAM is the built `outrider`; CHECKPOINT a tiny model's directory.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / 'testing'))
from program import (CHECKPOINT, GREEDY, LIMIT_S, MPIRUN, PROGRAM, Refusals,  # noqa: E402
                     Server, free_port, outrider)

HEAD = Path(CHECKPOINT).with_name('tiny-head')
# Of the deep model they take 17 TB.
MOST_TOKENS = ['--model', str(Path(CHECKPOINT).with_name('tiny-deep')), '--kv-cache-tokens',
               str(2**30)]
NO_MEMORY = ' positions of KV cache, as --kv-cache-tokens says'


class CommandLine(Refusals, unittest.TestCase):
    def test_version(self):
        self.assertRegex(outrider('version').stdout, r'^outrider \d+\.\d+\.\d+\n$')
        self.assertEqual(outrider('--version').stdout, outrider('version').stdout)

    def test_output_that_finds_no_room_is_an_error(self):
        for arguments in (['version'], ['theory', '--alpha', '0.5'], ['inspect', CHECKPOINT],
                          ['--version'], ['--help'], ['generate', '--help'],
                          ['launch', '--ranks', '1', '--', 'serve', '--help']):
            with self.subTest(arguments=arguments), open('/dev/full', 'w') as full:
                done = subprocess.run([PROGRAM, *arguments], stdout=full, stderr=subprocess.PIPE,
                                      text=True, timeout=LIMIT_S)
                self.assertEqual((done.returncode, done.stderr),
                                 (1, 'outrider: standard output could not be written\n'))

    def test_help(self):
        for command in ('serve', 'launch', 'generate', 'chat', 'health', 'run', 'bench', 'inspect'):
            result = outrider(command, '--help')
            self.assertEqual(result.returncode, 0)
            self.assertIn('--help', result.stdout)
        measured = outrider('bench', 'serve', '--help').stdout
        self.assertIn('--drafter', measured)
        self.assertNotIn('--default-drafts', measured)

    def test_theory(self):
        # (1 - 0.8^6) / (1 - 0.8) = 3.68928, over 1 + 5 * 0.05
        table = outrider('theory', '--alpha', '0.5,0.8', '--k', '5', '--c', '0.05', '--table').stdout
        # Read once a step, 1 / 3.68928; an oracle: 1 / (1 - 0.8 + 0.8 * 0.05).
        self.assertIn('| 0.8 | 5 | 0.05 | 3.689 | 2.951 | 1.694 | 0.271 | 4.167 |\n', table)
        report = outrider('theory', '--alpha', '0.8', '--c', '0.05', '--max-k', '9').stdout
        self.assertIn('\n   5          3.689     2.951       1.694         0.271\n', report)
        # 1.8 / 1.05 and 1 / 0.2.
        self.assertIn('best K of 0 to 9: 8, 3.092 times as fast\nsome K: at least 1.714 times, '
                      'none more than 5.000; an oracle for K: 4.167\n', report)
        # Rows at a half: 3.68928 / 1.75.
        dear = outrider('theory', '--alpha', '0.8', '--c', '0.05', '--target-cost', '1.5').stdout
        self.assertIn('\n   0          1.000     1.000       1.000         1.000\n', dear)
        self.assertIn('\n   5          3.689     2.108       1.694         0.271\n', dear)
        self.assertIn('at least 1.161 times, none more than 5.000\n', dear)
        for k, best in (('4', 'best K of 0 to 15: 15,'), ('4,20', 'best K of 0 to 20: 20,')):
            self.assertIn(best, outrider('theory', '--alpha', '0.8', '--k', k).stdout)

    def test_a_prompt_that_is_not_quoted(self):
        for command in (['generate'], ['run', '--model', CHECKPOINT]):
            self.refuses([*command, 'Why', 'is', 'it'], 'is behind the prompt; quote a prompt')

    def test_wrong_flags_name_the_nearest(self):
        self.refuses(['generate', '--tempreature', '1', 'x'], '--tempreature', '--temperature')
        self.refuses(['generate', '--max_tokens', '1', 'x'], '--max-tokens')
        self.refuses(['serve', '--modle', 'x'], '--model')
        self.refuses(['genrate', 'x'], 'genrate', 'generate')
        self.refuses([], 'subcommand')
        self.refuses(['generate', '--zzzzzzzz', 'x'], '--zzzzzzzz')
        self.refuses(['launch', '--ranks', '2', '--', 'serve', '--modle', 'x'], '--model')
        self.refuses(['launch', '--ranks', '2', '--', 'generate'], 'serve')
        self.refuses(['launch', '--ranks', '2', 'serve', '--model', 'x'], '--model',
                     'put -- before serve')
        self.refuses(['launch', '--rank', '2', '--', 'serve', '--model', 'x'], '--ranks?')

    def test_behind_two_dashes_is_no_flag(self):
        for behind in (['--help', '--address'], ['hi', '--address', 'x']):
            self.refuses(['generate', '--', *behind],
                         'found --address behind the prompt; quote a prompt of several words\n')
        self.refuses(['generate', '--adress', 'x', '--', '--address'], 'unknown flag --adress; did')
        # As a flag's value they mean nothing else.
        self.refuses(['generate', '--stop', '--', '--adress', 'x'], 'unknown flag --adress; did')
        self.refuses(['generate', '--port', '1', '--', '--help'], 'UNAVAILABLE', code=1)

    def test_nothing_behind_an_equals_sign_is_an_empty_value(self):
        for command, flag, why in (
                (['generate'], '--request-id', 'is empty; expected a name'),
                (['generate'], '--max-tokens', 'is ""; expected a whole number'),
                (['generate'], '--input-ids', 'is ""; expected token ids'),
                (['generate'], '--address', 'is empty; expected HOST'),
                (['generate'], '--config', 'is empty; expected a file'),
                (['generate'], '--raw', 'is ""; expected true or false'),
                (['serve', '--model', 'x'], '--trace', 'is empty; expected a file'),
                (['launch', '--ranks', '1', '--', 'serve', '--model', 'x'], '--trace',
                 'is empty; expected a file'),
                (['serve', '--model', 'x'], '--reflection', 'is ""; expected true or false'),
                (['bench', 'op'], '--json', 'is empty; expected a file'),
                (['bench', 'op'], '--config', 'is empty; expected a file')):
            for following in ([], ['2'], ['--help=false']):
                self.refuses([*command, flag + '=', *following], f'{flag}: {why}')
        self.refuses(['serve', '--model=', 'x'], '--model: is empty; expected a directory\n')
        # Another flag's value, or behind --: a text like any other.
        for prompt in (['--stop', '--max-tokens=', 'x'], ['--', '--max-tokens=']):
            self.refuses(['generate', '--port', '1', *prompt], 'UNAVAILABLE', code=1)

    def test_wrong_values_name_their_flag(self):
        for number in ('many', '', '1.5', '0x5', '99999999999'):
            for flag in ('--max-tokens', '--port'):
                self.refuses(['generate', flag, number, 'x'],
                             f'{flag}: is "{number}"; expected a whole number')
        self.refuses(['generate', '--port', '0100000', 'x'], '--port: Value 100000 not in range')
        for number in ('abc', '', '0,5'):
            self.refuses(['generate', '--temperature', number, 'x'],
                         f'--temperature: is "{number}"; expected a number\n')
        plan, theory = ['plan', '--model', 'x'], ['theory', '--alpha', '0.5']
        for command, flag in ((['generate', 'x'], '--temperature'), (theory[:1], '--alpha'),
                              (theory, '--c'), (theory, '--operations'),
                              (theory, '--target-cost'), (plan, '--alpha'),
                              (plan, '--exchange-us'), (plan, '--gpu-memory-utilization'),
                              (['serve', '--model', 'x'], '--gpu-memory-utilization')):
            for number in ('nan', '-inf', '1e999'):
                self.refuses([*command, flag, number],
                             f'{flag}: is "{number}"; expected a number\n')
        for command in (['generate', 'x'], ['loadtest']):
            for seed in ('-1', '1.5', '18446744073709551616'):
                self.refuses([*command, '--seed', seed], f'--seed: is "{seed}"; expected a whole '
                             'number from 0 to 18446744073709551615\n')
        for command, flag in ((['generate', 'x'], '--timeout'), (['generate', 'x'], '--wait-for-ready'),
                              (['health'], '--timeout')):
            self.refuses([*command, flag, '-1'], f'{flag}: -1 is not a number from', '1e+07')
        for flag in ('--draft', '--draft-head'):
            self.refuses(['serve', '--model', 'x', flag, ''],
                         f'{flag}: is empty; expected a directory\n')
        self.refuses(['serve', '--model', ''], '--model: is empty; expected a directory\n')
        for command, flags in (
                (['serve', '--model', 'x'], ('--tls-cert', '--tls-key', '--tls-client-ca',
                                             '--auth-token-file', '--trace', '--config',
                                             '--draft-counts')),
                (['generate', 'x'], ('--tls-ca', '--tls-cert', '--tls-key', '--auth-token-file')),
                (['loadtest'], ('--trace', '--prompts', '--json', '--html', '--samples'))):
            for flag in flags:
                self.refuses([*command, flag, ''], f'{flag}: is empty; expected a file\n')
        self.refuses(['launch', '--ranks', '2', '--', 'serve', '--model', 'x', '--tls-cert', '',
                      '--tls-key', ''], '--tls-cert: is empty; expected a file\n')
        self.refuses(['health', '--address', ''], '--address: is empty; expected HOST')
        for address in ('127.0.0.1:99999', '[::1]:65536', 'localhost:0', 'localhost:', 'host:x'):
            self.refuses(['health', '--address', address],
                         f'--address: is "{address}"; expected a port from 1 to 65535')
        for address in (':51234', '[]:51234', '[]', ':'):
            for command in (['generate', 'x'], ['health'], ['loadtest', '--rate', '1']):
                self.refuses([*command, '--address', address],
                             f'--address: is "{address}"; expected HOST or HOST:PORT\n')
        for flag, *arguments in (('prompt', b'\xff'), ('--stop', '--stop', b'a\xc3', 'x'),
                                 ('--request-id', '--request-id', b'\x80', 'x'),
                                 ('--drafter', '--drafter', b'\xff', 'x')):
            self.refuses(['generate', *arguments],
                         f'{flag}: holds bytes that are not UTF-8; expected text\n')
        self.refuses(['generate', '--mode', 'quick', 'x'], '--mode', 'coupled')
        for flag in ('--color', '--colour'):
            self.refuses(['generate', flag, 'sometimes', 'x'], '--color', 'always')
        self.refuses(['generate', '--raw=maybe', 'x'],
                     '--raw: is "maybe"; expected true or false\n')
        for truth in ('true', 'off', '1'):
            self.refuses(['generate', '--port', '1', f'--raw={truth}', 'x'], 'UNAVAILABLE', code=1)
        self.refuses(['generate', '--input-ids', '1', 'x'], '--input-ids')
        self.refuses(['generate', '--input-ids', '1,two'], '--input-ids')
        for flag in ('--input-ids', '--emitted-token-ids', '--stop-token-ids'):
            for ids in ('', '1,,2', '1,', '0x5', '1.5', '99999999999'):
                self.refuses(['generate', flag, ids], flag, f'"{ids}"', '1,2,3')
        for flag in ('--top-p', '--n', '--timeout'):
            self.refuses(['generate', flag, '', 'x'], flag)
        for command in (['generate'], ['run', '--model', CHECKPOINT]):
            self.refuses(command, 'prompt', '--input-ids')
        self.refuses(['generate', '--logit-bias', '5:1', '--logit-bias', '05:-100', 'x'],
                     '--logit-bias: names token 5 twice')
        waiting = ['serve', '--model', 'x', '--max-waiting-tokens']
        self.refuses([*waiting, str(2**40), '--drafter', 'model'], '--draft DIR')
        self.refuses([*waiting, str(2**40 + 1)], '--max-waiting-tokens',
                     f'not in range 1 to {2**40}')
        self.refuses([*waiting, str(2**63)], f'--max-waiting-tokens: is "{2**63}"; expected a '
                     f'whole number of at most {2**63 - 1}\n')
        self.refuses(['serve'], '--model')
        self.refuses(['serve', '--model', 'x', '--port', '70000'], '--port')
        self.refuses(['serve', '--model', 'x', '--lookahead', 'fixed:16'], '--lookahead', '15')
        self.refuses(['serve', '--model', 'x', '--lookahead', '4'], '--lookahead', 'fixed:K')
        self.refuses(['serve', '--model', 'x', '--max-speculative-tokens', '16'],
                     '--max-speculative-tokens', '15')
        self.refuses(['serve', '--model', 'x', '--lookahead', 'table:1=2,2=5',
                      '--max-speculative-tokens', '4'],
                     '--lookahead table:1=2,2=5 drafts 5 tokens; expected at most '
                     '--max-speculative-tokens, 4')
        self.refuses(['serve', '--model', 'x', '--lookahead', 'table:8=1,4=2'], '--lookahead', 'table')
        self.refuses(['serve', '--model', 'x', '--tpot-slo', '0'], '--tpot-slo',
                     '0 is not a number from 0.001')
        self.refuses(['serve', '--model', 'x', '--drafter', 'nobody'], '--drafter')
        too_long = 5000 * 'x'  # for the system to say whether it is there
        self.refuses(['serve', '--model', 'x', '--default-drafts', too_long], '--default-drafts')
        self.refuses(['launch', '--ranks', '0', '--', 'serve'], '--ranks')
        self.refuses(['theory', '--alpha', '1.5'], '--alpha')
        self.refuses(['theory', '--alpha', '0.5', '--k', '65'], '--k')
        self.refuses(['theory', '--alpha', '0.5', '--target-cost', '0.9'], '--target-cost')
        self.refuses(['theory', '--alpha', '0.5', '--k', '3', '--max-k', '4'], '--max-k')
        self.refuses(['theory', '--c', '0.1'], '--alpha')

    def test_flags_that_do_not_go_together(self):
        for starter in (['serve'], ['launch', '--ranks', '2', '--', 'serve']):
            for flags, *parts in (
                    (['--default-drafts', 'none', '--drafter', 'head'], '--draft-head DIR'),
                    (['--drafter', 'model'], '--draft DIR'),
                    (['--default-drafts', 'none', '--drafter', 'bigram'], '--draft-counts FILE'),
                    (['--address', '0.0.0.0'], '--insecure'),
                    (['--address', 'no.such.invalid', '--insecure'], 'no.such.invalid'),
                    (['--port', '23456', '--http-port', '23456'],
                     '--http-port and --port are both 23456'),
                    (['--http-port', '50051'], '--http-port and --port are both 50051'),
                    (['--tls-cert', 'x'], '--tls-key'),
                    (['--tls-key', 'x'], '--tls-cert'),
                    (['--tls-client-ca', 'x'], '--tls-cert', '--tls-key'),
                    (['--reflection', '--auth-token-file', 'x'], '--reflection', 'token')):
                self.refuses([*starter, '--model', 'x', *flags], *parts)
        for command in (['generate', 'x'], ['chat'], ['health'], ['loadtest', '--rate', '1']):
            self.refuses([*command, '--tls-cert', 'c', '--tls-key', 'k'], '--tls-ca')
            self.refuses([*command, '--tls-ca', 'a', '--tls-cert', 'c'], '--tls-key')
            self.refuses([*command, '--tls-ca', 'a', '--tls-key', 'k'], '--tls-cert')

    def test_the_environment_and_a_file_give_flags(self):
        where = dict(os.environ, OUTRIDER_PORT='1')
        self.refuses(['generate', 'x'], 'UNAVAILABLE', '127.0.0.1:1:', code=1, env=where)
        where = dict(os.environ, OUTRIDER_N='abc')
        self.refuses(['generate', 'x'], '--n: is "abc"', '(OUTRIDER_N)\n', env=where)
        where = dict(os.environ, OUTRIDER_RAW='maybe')
        self.refuses(['generate', 'x'],
                     '--raw: is "maybe"; expected true or false (OUTRIDER_RAW)\n', env=where)
        where = dict(os.environ, OUTRIDER_TLS_KEY='x')
        self.refuses(['generate', 'x'], '--tls-key requires --tls-', '(OUTRIDER_TLS_KEY)\n',
                     env=where)
        where = dict(os.environ, OUTRIDER_INPUT_IDS='1')
        self.refuses(['generate', 'x'], 'excludes', '--input-ids', '(OUTRIDER_INPUT_IDS)\n',
                     env=where)
        with tempfile.NamedTemporaryFile('w', suffix='.toml') as file:
            def write(text):
                file.truncate(0)
                file.seek(0)
                file.write(text)
                file.flush()
            arguments = ['generate', '--config', file.name, 'x']
            write('[generate]\nport = 1\nmax_tokens = 0x40\nstop = ["a", "b"]\n')
            self.refuses(arguments, 'UNAVAILABLE', '127.0.0.1:1:', code=1)
            self.refuses(arguments + ['--port', '2'], 'UNAVAILABLE', '127.0.0.1:2:', code=1)
            where = dict(os.environ, OUTRIDER_CONFIG=file.name, OUTRIDER_PORT='3')
            self.refuses(['generate', 'x'], 'UNAVAILABLE', '127.0.0.1:1:', code=1, env=where)
            where['OUTRIDER_CONFIG'] = '/no/such/file'
            self.refuses(['generate', 'x'], '--config: is "/no/such/file"; expected a file that '
                         'can be read (OUTRIDER_CONFIG)\n', env=where)
            self.refuses(arguments, 'UNAVAILABLE', '127.0.0.1:1:', code=1, env=where)
            for text, line, why in (
                    ('[generate]\n\ntemprature = 1\n', 3,
                     'unknown key temprature; did you mean temperature?'),
                    ('[generate]\nmax_tokns = 1', 2, 'unknown key max_tokns; did you mean max_tokens?'),
                    ('[serve]\nzzzzzzzz = 1', 2, 'unknown key zzzzzzzz\n'),
                    ('[genrate]\nport = 1\n', 1, 'unknown table genrate; did you mean generate?'),
                    ('[bench.decod]\nrows = 1', 1, 'unknown table decod; did you mean decode?'),
                    ('port = 1\n', 1, 'unknown key port'),
                    ('[generate\n', 1, ''),
                    ('[generate]\nport = 1979-05-27\n', 2, 'port is no text'),
                    ('[generate]\nraw = ""\n', 2,
                     'raw is no truth value; expected true or false\n'),
                    ('[generate]\nport = 1\nignore_eos = []\n', 3,
                     'ignore_eos is no truth value; expected true or false\n'),
                    ('[generate]\nmax_tokens = 2\nport = 1\nmax-tokens = 3\n', 4,
                     '--max-tokens is given twice, on line 2 too\n'),
                    ('[generate]\nmax-tokens = 2\nport = 1\nmax_tokens = 2\n', 4,
                     '--max-tokens is given twice, on line 2 too\n'),
                    ('[generate]\ncolour = "never"\ncolor = "never"\n', 3,
                     '--color is given twice, on line 2 too\n')):
                write(text)
                self.refuses(arguments, f'--config {file.name}: line {line}: {why}')
            write('[generate]\nraw = "maybe"\n')
            self.refuses(arguments, '--raw: is "maybe"; expected true or false '
                         f'(--config {file.name})\n')
            write('[serve]\nmax_rows = 600\n[generate]\nport = 1\n[chat]\nport = 2\n')
            self.refuses(arguments, 'UNAVAILABLE', '127.0.0.1:1:', code=1)
            for key in ('tls_cert', 'tls_key', 'tls_client_ca', 'auth_token_file', 'draft_counts'):
                write(f'[serve]\nmodel = "x"\n{key} = ""\n')
                self.refuses(['serve', '--config', file.name],
                             f'--{key.replace("_", "-")}: is empty; expected a file '
                             f'(--config {file.name})\n')
            where = dict(os.environ, OUTRIDER_TLS_CA='', OUTRIDER_PORT='1')  # not given
            self.refuses(['generate', 'x'], 'UNAVAILABLE', code=1, env=where)
        for directory in ('/no/such/file', '/'):
            self.refuses(['generate', '--config', directory, 'x'],
                         f'--config: is "{directory}"; expected a file that can be read\n')

    def test_launch_hands_its_file_on(self):
        with tempfile.TemporaryDirectory() as directory:
            file, other = Path(directory, 'launch.toml'), Path(directory, 'serve.toml')
            launch = ['launch', '--config', os.path.relpath(file), '--']
            serve = '[serve]\nmodel = "x"\ndefault_drafts = "none"\n'
            file.write_text(f'[launch]\nranks = 2\n{serve}drafter = "head"\n')
            other.write_text(f'{serve}drafter = "bigram"\n')
            self.refuses([*launch, 'serve'], '--draft-head DIR')
            self.refuses([*launch, 'serve', '--drafter', 'model'], '--draft DIR')
            self.refuses([*launch, 'serve', '--config', str(other)], '--draft-counts FILE')
            where = dict(os.environ, OUTRIDER_CONFIG=str(other))
            self.refuses([*launch, 'serve'], '--draft-head DIR', env=where)
            file.write_text('[launch]\nranks = 2\n[serve]\nhttp_port = 0\n')
            with Server(*launch) as server:
                self.assertEqual(len(server.ranks), 2)
                self.assertGreater(int(server.http_address.rpartition(':')[2]), 0)

    def test_the_environment_of_other_commands_does_not_matter(self):
        # generate's --port and --n refuse these; launch's --ranks is at most 64, inspect's is not
        where = dict(os.environ, OUTRIDER_PORT='0', OUTRIDER_N='abc', OUTRIDER_RANKS='100')
        result = outrider('version', env=where)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.refuses(['generate', '--port', '1', '--n', '1', 'x'], 'UNAVAILABLE', code=1, env=where)
        serve = ['serve', '--model', 'x', '--lookahead', '4']
        self.refuses(['launch', '--ranks', '1', '--', *serve], '--lookahead', env=where)
        self.refuses(['launch', '--', *serve], '--ranks', '100', env=where)

    def test_run_needs_no_server(self):
        arguments = ['run', '--model', CHECKPOINT, '--max-tokens', '8', '--format', 'json', *GREEDY]
        answers = [json.loads(outrider(*arguments, 'Hello').stdout) for _ in range(2)]
        self.assertEqual(answers[0]['token_ids'], answers[1]['token_ids'])
        self.assertEqual(len(answers[0]['token_ids']), 8)
        self.refuses(arguments + ['--top-p', '7', 'x'], 'INVALID_ARGUMENT', 'top_p', code=1)
        self.refuses(arguments + ['--n', str(2**31 - 1), 'x'], 'INVALID_ARGUMENT',
                     f'sampling_params.n is {2**31 - 1}', code=1)
        self.refuses(['run', '--model', '/no/such/model', 'x'], '/no/such/model', code=1)
        for flags, code in (([], 1), (['--default-drafts', 'none'], 2)):
            self.refuses(['run', '--model', CHECKPOINT, '--drafter', 'unigram', *flags, 'x'],
                         '--drafter unigram: expected --draft-counts FILE, found none', code=code)

    def test_where_no_server_is(self):
        port = free_port()
        hint = (f'is a server running at 127.0.0.1:{port}, without TLS? outrider launch starts '
                'one, --address names another\n')
        for command in (['generate', 'x'], ['generate', '--wait-for-ready', '0.5', 'x'], ['health'],
                        ['loadtest', '--concurrency', '1', '--duration', '1']):
            self.refuses([*command, '--port', str(port)], 'UNAVAILABLE: ', hint, code=1)

    def test_errors_before_serving(self):
        for starter in ([], [*MPIRUN, '--quiet', '-np', '2']):
            def serve(*arguments):
                return subprocess.run([*starter, PROGRAM, 'serve', *arguments], text=True,
                                      capture_output=True, timeout=LIMIT_S,
                                      stdin=subprocess.DEVNULL)
            with (socket.create_server(('127.0.0.1', 0)) as taken,
                  tempfile.TemporaryDirectory() as broken,
                  tempfile.TemporaryDirectory() as trained):
                port = str(taken.getsockname()[1])
                shutil.copytree(CHECKPOINT, broken, dirs_exist_ok=True)
                Path(broken, 'tokenizer.json').write_text('{"model": 3}')
                shutil.copytree(CHECKPOINT, trained, dirs_exist_ok=True)
                Path(trained, 'tokenizer.json').unlink()
                right = ['--model', CHECKPOINT, '--port', '0']
                for result, part in (
                        (serve(*right, '--draft', '/no/such/draft'), '/no/such/draft'),
                        (serve(*right, '--draft', str(HEAD)), 'goes to --draft-head'),
                        (serve(*right, '--draft', trained), 'tools/complete_draft.py'),
                        (serve(*right, '--draft-counts', '/no/such'), '/no/such'),
                        (serve(*right, '--draft-counts', __file__), __file__),
                        (serve(*right, '--draft-head', CHECKPOINT), 'goes to --draft)'),
                        (serve('--model', broken, '--port', '0'), 'tokenizer.json'),
                        (serve('--model', CHECKPOINT, '--port', port), f'127.0.0.1:{port}'),
                        (serve('--model', '/no/such/model', '--port', '0'), '/no/such/model'),
                        (serve('--model', '+nosuch', '--port', '0'), 'outrider: +nosuch'),
                        (serve(*MOST_TOKENS, '--port', '0', '--device', 'cpu'), NO_MEMORY),
                        (serve('--model', CHECKPOINT, '--port', '0', '--tls-cert', '/no/such.pem',
                               '--tls-key', '/no/such.key'), '/no/such.pem'),
                        (serve('--model', CHECKPOINT, '--port', '0', '--auth-token-file',
                               '/dev/null'), '/dev/null')):
                    self.assertNotEqual(result.returncode, 0)
                    lines = [line for line in result.stderr.splitlines()
                             if line.startswith('outrider: ')]
                    self.assertEqual(len(lines), 1, result.stderr)
                    self.assertIn(part, lines[0])
                    self.assertNotIn('loading', result.stderr)

    def test_serves_other_machines_where_that_is_asked_for(self):
        with tempfile.TemporaryDirectory() as directory:
            cert, key = f'{directory}/cert.pem', f'{directory}/key.pem'
            subprocess.run(['openssl', 'req', '-x509', '-newkey', 'ec', '-pkeyopt',
                            'ec_paramgen_curve:P-256', '-nodes', '-days', '1', '-subj', '/CN=server',
                            '-addext', 'subjectAltName=IP:127.0.0.1', '-keyout', key, '-out', cert],
                           check=True, timeout=LIMIT_S, capture_output=True)
            os.chmod(key, 0o600)
            for served, asked in ((['--insecure'], []),
                                  (['--tls-cert', cert, '--tls-key', key], ['--tls-ca', cert])):
                with Server(options=['--address', '0.0.0.0', *served]) as server:
                    self.assertIn('whoever reaches 0.0.0.0 may ask', server.log)
                    answer = outrider('generate', '--address', server.address, *asked,
                                      '--max-tokens', '4', *GREEDY, 'Hello')
                    self.assertEqual(answer.returncode, 0, answer.stderr)

    def test_launch_says_once_why_it_cannot_serve(self):
        with tempfile.TemporaryDirectory() as broken:
            shutil.copytree(CHECKPOINT, broken, dirs_exist_ok=True)
            Path(broken, 'tokenizer_config.json').write_text('[]')
            for ranks, options, part in (
                    (5, [], '5 ranks: it has 4 query heads'),
                    (3, ['--kv-cache-tokens', '1'], '--kv-cache-tokens is 1;'),
                    (2, ['--max-positions', '999999'], '--max-positions is 999999;'),
                    (2, [*MOST_TOKENS, '--device', 'cpu'], NO_MEMORY),
                    (2, ['--model', broken], 'tokenizer_config.json')):
                if '--model' not in options:
                    options = ['--model', CHECKPOINT, *options]
                result = outrider('launch', '--ranks', str(ranks), '--', 'serve', '--port', '0',
                                  '--default-drafts', 'none', *options)
                self.assertEqual(result.returncode, 1)
                lines = [line for line in result.stderr.splitlines() if 'outrider: ' in line]
                self.assertEqual(len(lines), 1, result.stderr)
                self.assertIn(part, lines[0])
                self.assertNotIn('loading', result.stderr)


if __name__ == '__main__':
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])

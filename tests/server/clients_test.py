"""generate and chat from outside: what they print, on a terminal too, and how they wait.

    clients_test.py PROGRAM CHECKPOINT [unittest arguments]

PROGRAM is the built `outrider`; CHECKPOINT a tiny model's directory.
"""

import contextlib
import json
import os
import pty
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / 'testing'))
from chat_checkpoint import copy_with_chat_template  # noqa: E402
from program import (CHECKPOINT, GREEDY, LIMIT_S, PROGRAM, Lines, Server,  # noqa: E402
                     free_port, outrider)

ESCAPE = '\x1b'
DRAFTED = (r'; alpha \d\.\d\d, c \d+\.\d{3}: \d+\.\d\d times as fast as without drafts, '
           r'predicted \d+\.\d\d(; copied \d+ of the drafted tokens)?')


def without_colours(text):
    return re.sub(ESCAPE + r'\[\d+m', '', text)


def is_connected(pid, port):
    """Whether that process has a TCP connection to that port of this machine's."""
    sockets = set()
    for fd in Path(f'/proc/{pid}/fd').iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            sockets.add(os.readlink(fd))
    tables = Path(f'/proc/{pid}/net').glob('tcp*')  # gRPC's sockets are of IPv6 where there is one
    lines = [line.split() for table in tables for line in table.read_text().splitlines()]
    for _, _, remote, state, *_, inode in (line[:10] for line in lines):
        established = state == '01' and int(remote.partition(':')[2], 16) == port
        if established and f'socket:[{inode}]' in sockets:
            return True
    return False


class WaitForReady(unittest.TestCase):
    """Clients that are there before their server."""

    def answers(self, *arguments):
        port = free_port()
        command = [PROGRAM, *arguments, '--address', f'127.0.0.1:{port}', '--wait-for-ready',
                   str(LIMIT_S), *GREEDY]
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True) as client:
            with socket.create_server(('127.0.0.1', port)) as nobody:
                nobody.settimeout(LIMIT_S)
                nobody.accept()[0].close()
            with Server(port=port) as server:
                output, log = client.communicate(timeout=LIMIT_S)
        self.assertEqual(client.returncode, 0, log)
        self.assertNotIn('UNAVAILABLE', server.log)  # it was not asked for an answer before
        return output

    def test_generate(self):
        answer = json.loads(self.answers('generate', '--format', 'json', '--max-tokens', '3', 'Hi'))
        self.assertEqual(answer['completion_tokens'], 3)

    def test_while_another_server_drains(self):
        port = free_port()
        generate = [PROGRAM, 'generate', '--address', f'127.0.0.1:{port}', *GREEDY, '--no-stats']
        with Server(port=port, options=['--drain-seconds', str(LIMIT_S)]) as server:
            with subprocess.Popen([*generate, '--n', '8', '--max-tokens', '1900', '--mode', 'off',
                                   'Hi'],
                                  stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as running:
                running.stdout.read(1)
                # Its call cannot end meanwhile: half a MB, of which gRPC buffers 64 KiB.
                running.send_signal(signal.SIGSTOP)
                try:
                    server.process.send_signal(signal.SIGTERM)
                    while (health := outrider('health', '--port', str(port)).stdout) == 'SERVING\n':
                        pass
                    self.assertEqual(health, 'NOT_SERVING\n')
                    waiting = subprocess.Popen(
                        [*generate, '--max-tokens', '3', '--wait-for-ready', str(LIMIT_S), 'Hi'],
                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
                    while not is_connected(waiting.pid, port):
                        self.assertIsNone(waiting.poll())
                finally:
                    running.send_signal(signal.SIGCONT)
                running.stdout.read()
            self.assertEqual(server.wait_for_end(), 0)
            self.assertNotIn('UNAVAILABLE', server.log)
        with Server(port=port), waiting:
            output, log = waiting.communicate(timeout=LIMIT_S)
        self.assertEqual(waiting.returncode, 0, log)
        self.assertNotEqual(output, '')

    def test_loadtest(self):
        self.assertIn('2 requests, 0 errors', self.answers(
            'loadtest', '--concurrency', '1', '--requests', '2', '--max-tokens', '3'))


class Generate(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = cls.enterClassContext(Server())
        cls.where = ['generate', '--address', cls.server.address, '--max-tokens', '12', *GREEDY]

    def ask(self, *arguments):
        result = outrider(*self.where, *arguments)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result

    def test_json_is_one_object(self):
        result = self.ask('--format', 'json', '--seed', '18446744073709551615', 'Hello')
        self.assertEqual(result.stderr, '')
        self.assertEqual(result.stdout.count('\n'), 1)
        answer = json.loads(result.stdout)
        self.assertEqual(set(answer), {
            'text', 'token_ids', 'finish_reason', 'prompt_tokens', 'cached_tokens',
            'completion_tokens', 'timings', 'speculation'})
        self.assertEqual(set(answer['timings']),
                         {'queue_ms', 'prefill_ms', 'decode_ms', 'total_ms', 'ttft_ms'})
        self.assertEqual(set(answer['speculation']), {
            'num_spec_steps', 'num_draft_tokens', 'num_accepted_draft_tokens', 'num_copied_draft_tokens',
            'num_alternative_draft_tokens', 'num_accepted_alternatives', 'mean_acceptance_length',
            'draft_acceptance_rate', 'acceptance_by_position', 'alpha', 'lenience', 'lenience_shift',
            'draft_cost', 'predicted_speedup', 'measured_speedup', 'steps_by_lookahead', 'tpot_slo_ms',
            'tpot_slo_missed', 'mode', 'drafter', 'seed',
            'numerics_fingerprint'})
        self.assertEqual(answer['finish_reason'], 'LENGTH')
        self.assertEqual(answer['completion_tokens'], 12)
        self.assertEqual(len(answer['token_ids']), 12)
        self.assertEqual(answer['cached_tokens'], 0)
        self.assertEqual(answer['speculation']['seed'], 2**64 - 1)
        self.assertEqual(answer['speculation']['mode'], 'greedy')

    def test_text_is_the_same_text(self):
        text = json.loads(self.ask('--format', 'json', 'Hello').stdout)['text']
        plain = self.ask('Hello')
        self.assertEqual(plain.stdout, text + '\n')
        self.assertRegex(plain.stderr, r'^accepted \d+ of \d+ drafted tokens \(\d+\.\d %\), ')
        self.assertEqual(self.ask('--no-stats', 'Hello').stderr, '')

    def test_colours_tell_where_tokens_come_from(self):
        plain = self.ask('--no-stats', '--drafter', 'random', 'Hello')
        self.assertNotIn(ESCAPE, plain.stdout)  # it is no terminal
        self.assertEqual(plain.stderr, '')
        always = self.ask('--color', 'always', '--drafter', 'random', '--num-speculative-tokens', '3',
                          '--no-stats', 'Hello')
        self.assertIn(ESCAPE + '[33m', always.stdout)  # a random draft is refused soon
        self.assertEqual(without_colours(always.stdout), plain.stdout)
        self.assertRegex(always.stderr, '^[^\n]*refused draft[^\n]*\n$')
        json_text = self.ask('--color', 'always', '--format', 'json', 'Hello')
        self.assertNotIn(ESCAPE, json_text.stdout + json_text.stderr)

    def test_a_terminal_gets_colours_unless_told_otherwise(self):
        def on_a_terminal(*options, **environment):
            terminal, stdout = pty.openpty()
            with open(terminal, 'rb', buffering=0) as output:
                try:
                    result = subprocess.run(
                        [PROGRAM, *self.where, '--drafter', 'random', '--num-speculative-tokens', '3',
                         *options, 'Hello'], stdin=subprocess.DEVNULL, stdout=stdout,
                        stderr=subprocess.PIPE, text=True, timeout=LIMIT_S,
                        env={**os.environ, **environment})
                finally:
                    os.close(stdout)
                self.assertEqual(result.returncode, 0, result.stderr)
                # A legend that no terminal shows has escapes where they were asked for.
                self.assertEqual(ESCAPE in result.stderr, 'always' in options)
                return ESCAPE in output.read(1 << 16).decode()

        self.assertTrue(on_a_terminal(NO_COLOR='', TERM='xterm'))
        self.assertFalse(on_a_terminal(NO_COLOR='', TERM='dumb'))
        self.assertFalse(on_a_terminal(NO_COLOR='1'))
        self.assertTrue(on_a_terminal('--color', 'always', NO_COLOR='1'))
        self.assertFalse(on_a_terminal('--color', 'never', NO_COLOR=''))

    def test_a_failed_call_names_status_and_field(self):
        for field, arguments in (('temperature', ['--temperature', '-1', 'x']),
                                 ('top_p', ['--top-p', '0', 'x']),
                                 ('max_tokens', ['--max-tokens', '100000000', 'x']),
                                 ('min_p', ['--min-p', '1.5', 'x']),
                                 ('repetition_penalty', ['--repetition-penalty', '0', 'x']),
                                 ('presence_penalty', ['--presence-penalty', '2.5', 'x']),
                                 ('frequency_penalty', ['--frequency-penalty', '-2.5', 'x']),
                                 ('logit_bias', ['--logit-bias', '5:101', 'x']),
                                 ('min_tokens', ['--min-tokens', '-1', 'x']),
                                 ('sampling_params.n is', ['--n', '2147483647', 'x']),
                                 ('num_speculative_tokens',
                                  ['--num-speculative-tokens', '100000', 'x']),
                                 ('drafter', ['--drafter', 'no_such_drafter', 'x']),
                                 ('input_ids', ['--input-ids', '5000000']),
                                 ('lenience', ['--lenience', '0', 'x'])):
            base = [a for a in self.where if a not in ('--temperature', '0', '--max-tokens', '12')]
            result = outrider(*base, *arguments)
            self.assertEqual(result.returncode, 1)
            self.assertEqual(result.stdout, '')
            self.assertRegex(result.stderr, f'^INVALID_ARGUMENT: .*{field}.*\n$')

    def test_sampling_options(self):
        def token_ids(*options):
            return json.loads(self.ask('--format', 'json', *options, 'Hello').stdout)['token_ids']

        plain = token_ids()
        first = plain[0]
        self.assertEqual(token_ids('--logit-bias', f'{first}:100'), [first] * 12)
        banned = token_ids('--logit-bias', f'{first}:-100', '--logit-bias', '5:-1e1')
        self.assertNotIn(first, banned)
        self.assertNotEqual(token_ids('--repetition-penalty', '1.8', '--presence-penalty', '1',
                                      '--frequency-penalty', '1'), plain)
        self.assertEqual(len(token_ids('--logit-bias', f'{first}:100', '--stop-token-ids',
                                       str(first), '--min-tokens', '4')), 5)
        hot = outrider('generate', '--address', self.server.address, '--max-tokens', '12',
                       '--ignore-eos', '--raw', '--temperature', '2', '--min-p', '1',
                       '--format', 'json', 'Hello')
        self.assertEqual(json.loads(hot.stdout)['token_ids'], plain)
        for wrong in ('5', '5:', 'x:1', '5:1:2', ':1', '5:nan', '5:-inf'):
            result = outrider(*self.where, '--logit-bias', wrong, 'Hello')
            self.assertNotEqual(result.returncode, 0)
            self.assertIn(f'--logit-bias: is {wrong}; expected a token id and a number',
                          result.stderr)

    def test_input_ids(self):
        answer = json.loads(self.ask('--format', 'json', '--input-ids', '1,2,3').stdout)
        self.assertEqual(answer['prompt_tokens'], 3)

    def test_timeout(self):
        result = outrider('generate', '--address', self.server.address, '--timeout', '0.001',
                          '--max-tokens', '1900', *GREEDY, 'x')
        self.assertEqual(result.returncode, 1)
        self.assertIn('DEADLINE_EXCEEDED', result.stderr)

    def test_a_client_that_is_killed_harms_nobody(self):
        before = self.ask('Hello').stdout
        client = subprocess.Popen(
            [PROGRAM, 'generate', '--address', self.server.address, '--max-tokens', '1900', *GREEDY,
             'x'], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        client.stdout.read(1)
        client.kill()
        client.wait()
        client.stdout.close()
        self.assertEqual(self.ask('Hello').stdout, before)


class Chat(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        model = cls.enterClassContext(tempfile.TemporaryDirectory())
        copy_with_chat_template(CHECKPOINT, model)
        cls.model = model
        cls.server = cls.enterClassContext(Server(model=model))
        cls.where = ['--address', cls.server.address, '--temperature', '0', '--ignore-eos']

    def chat(self, lines, *options, limit=8):
        return subprocess.run([PROGRAM, 'chat', *self.where, '--max-tokens', str(limit), *options],
                              input=''.join(line + '\n' for line in lines), capture_output=True,
                              text=True, timeout=LIMIT_S)

    def generated(self, prompt):
        result = outrider('generate', *self.where, '--max-tokens', '8', '--no-stats', '--raw', prompt)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result.stdout

    def rendered(self, *messages):
        """A conversation as SmolLM2's template writes it: users and answers by turns."""
        system = ('<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by '
                  'Hugging Face<|im_end|>\n')
        turns = ''.join(f'<|im_start|>{("user", "assistant")[i % 2]}\n{message}<|im_end|>\n'
                        for i, message in enumerate(messages))
        return system + turns + '<|im_start|>assistant\n'

    def test_an_empty_prompt_is_refused(self):
        for command in (['generate', *self.where], ['run', '--model', self.model]):
            result = outrider(*command, '')
            self.assertEqual(result.returncode, 1)
            self.assertEqual(result.stdout, '')
            self.assertRegex(result.stderr, r'^INVALID_ARGUMENT: .*content is empty.*\n$')

    def test_answers_know_what_was_said_before(self):
        first = self.generated(self.rendered('Hello'))
        second = self.generated(self.rendered('Hello', first[:-1], 'And you?'))
        again = self.generated(self.rendered('And you?'))
        self.assertNotEqual(second, again)
        result = self.chat(['Hello', '', 'And you?', '/reset', 'And you?', '/quit', 'Hello'])
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(result.stdout, first + second + again)
        line = (r'8 tokens, \d+\.\d ms a token, \d\.\d\d tokens a step'
                f'({DRAFTED})?\\n')
        self.assertRegex(result.stderr, f'^({line}){{3}}$')
        self.assertEqual(self.chat(['Hello'], '--no-stats').stderr, '')

    def test_lines_may_end_as_windows_ends_them(self):
        lines = ['Hello', '', 'And you?', '/reset', 'And you?', '/quit', 'Hello']
        plain = self.chat(lines, '--no-stats')
        with_returns = self.chat([line + '\r' for line in lines], '--no-stats')
        self.assertEqual((with_returns.returncode, with_returns.stdout, with_returns.stderr),
                         (0, plain.stdout, ''))

    def test_colours(self):
        plain = self.chat(['Hello'])
        self.assertNotIn(ESCAPE, plain.stdout)
        coloured = self.chat(['Hello'], '--color', 'always', '--drafter', 'random',
                             '--num-speculative-tokens', '3')
        self.assertIn(ESCAPE + '[33m', coloured.stdout)
        self.assertRegex(coloured.stderr, DRAFTED)
        self.assertEqual(without_colours(coloured.stdout), plain.stdout)
        self.assertIn('refused draft', coloured.stderr)

    def test_says_what_lenience_and_an_objective_came_to(self):
        result = self.chat(['Hello'], '--drafter', 'random', '--num-speculative-tokens', '3',
                           '--lenience', '0.5', '--tpot-slo', '0.001')
        self.assertRegex(result.stderr, DRAFTED + r'; lenience 0\.5 moved the distribution by '
                         r'\d\.\d{3}; the objective of 0\.001 ms a token was missed\n$')

    def test_an_error_is_one_line_and_the_conversation_goes_on(self):
        answer = self.chat(['Hello']).stdout
        too_long = 'word ' * 3000  # of 2048 positions
        result = self.chat(['/rest', too_long, 'Hello'], '--no-stats')
        self.assertEqual(result.returncode, 1)
        self.assertEqual(result.stdout, answer)
        unknown, full = result.stderr.splitlines()
        self.assertIn('unknown command /rest; expected /reset or /quit', unknown)
        self.assertRegex(full, '^INVALID_ARGUMENT: .*204[78]')
        nobody = outrider('chat', '--port', '1')
        self.assertEqual((nobody.returncode, nobody.stderr), (0, ''))  # nothing was said
        with socket.create_server(('127.0.0.1', 0)) as taken:
            port = str(taken.getsockname()[1])
        nobody = subprocess.run([PROGRAM, 'chat', '--port', port], input='Hello\nHello\n',
                                capture_output=True, text=True, timeout=LIMIT_S)
        self.assertEqual(nobody.returncode, 1)
        self.assertRegex(nobody.stderr, r'^(UNAVAILABLE: .*\n){2}$')
        not_utf8 = subprocess.run([PROGRAM, 'chat', *self.where, '--no-stats'], input=b'\xff\n',
                                  capture_output=True, timeout=LIMIT_S)
        self.assertEqual((not_utf8.returncode, not_utf8.stderr), (1, b'the line is not UTF-8\n'))

    def test_an_interrupt_stops_the_answer_alone(self):
        client = subprocess.Popen(
            [PROGRAM, 'chat', *self.where, '--max-tokens', '1900'], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1)
        with client:
            said = Lines(client.stderr)
            client.stdin.write('Hello\n')
            client.stdout.read(1)  # it has begun
            client.send_signal(signal.SIGINT)
            self.assertEqual(said.wait_for('^stopped$'), 0)
            client.stdin.write('/rest\n')
            said.wait_for('unknown command', after=1)
            client.send_signal(signal.SIGINT)  # with no answer to stop, and no terminal
            self.assertEqual(client.wait(LIMIT_S), 128 + signal.SIGINT)

    def test_on_a_terminal(self):
        pid, terminal = pty.fork()
        if pid == 0:
            os.execv(PROGRAM, [PROGRAM, 'chat', *self.where, '--max-tokens', '1900', '--drafter',
                               'random', '--num-speculative-tokens', '3', '--color', 'auto'])
        seen = ''

        def wait_for(text):
            nonlocal seen
            while text not in seen:
                ready, _, _ = select.select([terminal], [], [], LIMIT_S)
                self.assertTrue(ready, seen)
                seen += os.read(terminal, 1 << 16).decode(errors='replace')
            seen = seen[seen.index(text) + len(text):]

        try:
            wait_for('refused draft')
            wait_for('\n> ')
            os.write(terminal, b'Hello\n')
            wait_for(ESCAPE + '[33m')
            os.write(terminal, b'\x03')  # Ctrl-C
            wait_for('stopped\r\n> ')
            os.write(terminal, b'never sent\x03')
            wait_for('\r\n> ')
            os.write(terminal, b'\x04')  # Ctrl-D
            _, status = os.waitpid(pid, 0)
            pid = 0
            self.assertEqual(os.waitstatus_to_exitcode(status), 0)
        finally:
            if pid:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            os.close(terminal)


if __name__ == '__main__':
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])

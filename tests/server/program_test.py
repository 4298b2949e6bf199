"""The program from outside: what ranks agree on, exit codes, and what is left when things end.

    program_test.py PROGRAM CHECKPOINT [unittest arguments]

PROGRAM is the built `outrider`; CHECKPOINT a tiny model's directory.
"""

import fcntl
import json
import os
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).parents[1] / 'testing'))
sys.path.append(str(Path(__file__).parents[2] / 'tools'))
from complete_draft import hash_of  # noqa: E402
from program import (CHECKPOINT, GREEDY, LIMIT_S, MPIRUN, PROGRAM, Lines, Server,  # noqa: E402
                     free_port, outrider)

FETCH_MODEL = Path(__file__).parents[2] / 'tools/fetch_model.py'
HEAD = Path(CHECKPOINT).with_name('tiny-head')
IDLE_S = 3  # how long an idle job is watched


class PrefixCache(unittest.TestCase):
    def test_is_left_out_by_a_flag_and_by_its_variable(self):
        prompt = ' '.join(map(str, range(100)))
        for options, value, found in (([], '', True), (['--no-prefix-cache'], '', False),
                                      ([], 'true', False), ([], 'false', True)):
            with (self.subTest(options=options, value=value),
                  mock.patch.dict(os.environ, OUTRIDER_NO_PREFIX_CACHE=value),
                  Server(options=options) as server):
                answers = [json.loads(outrider('generate', '--address', server.address,
                                               '--max-tokens', '1', *GREEDY, '--format', 'json',
                                               prompt).stdout) for _ in range(2)]
                self.assertEqual(answers[1]['cached_tokens'] > 0, found)


class DefaultDraft(unittest.TestCase):
    """The draft head and the counts that a directory keeps for the model are taken where no flag
    gives what drafts."""

    def setUp(self):
        self.drafts = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.config = json.loads((HEAD / 'config.json').read_text())
        report = outrider('inspect', CHECKPOINT).stdout
        self.config['target'] = re.search(r'^hash +(\S+)$', report, re.MULTILINE)[1]
        shutil.copytree(HEAD, self.drafts / 'mine')
        self.write('mine', self.config)
        shutil.copytree(HEAD, self.drafts / 'other')
        self.write('other', {**self.config, 'target': '0123456789abcdef', 'hidden_size': 7})

    def write(self, name, config):
        (self.drafts / name / 'config.json').write_text(json.dumps(config))

    def write_counts(self, tokenizer_hash):
        """Of two tokens of 512."""
        header, data = {'__metadata__': {'tokenizer': tokenizer_hash}}, b''
        for name, values in (('unigram_tokens', [1, 2]), ('unigram_counts', [3, 4]),
                             ('bigram_rows', [0] * 513), ('bigram_tokens', []),
                             ('bigram_counts', [])):
            begin = len(data)
            data += struct.pack(f'<{len(values)}i', *values)
            header[name] = {'dtype': 'I32', 'shape': [len(values)],
                            'data_offsets': [begin, len(data)]}
        text = json.dumps(header).encode()
        text += b' ' * (-len(text) % 8)
        counts = self.drafts / 'counts.safetensors'
        counts.write_bytes(struct.pack('<Q', len(text)) + text + data)
        return counts

    def drafter_and_log(self, *options, drafts=None, starter=(), asked=()):
        options = ['--default-drafts', str(drafts or self.drafts), *options]
        with Server(*starter, options=options) as server:
            answer = outrider('generate', '--address', server.address, '--max-tokens', '4', *GREEDY,
                              '--format', 'json', *asked, 'Hello')
            self.assertEqual(answer.returncode, 0, answer.stderr)
            return json.loads(answer.stdout)['speculation']['drafter'], server.log

    def test_is_taken_where_nothing_else_is_asked_for(self):
        taken = f'drafting with {self.drafts}/mine, made for this model'
        for starter in ((), (*MPIRUN, '-np', '2')):
            drafter, log = self.drafter_and_log(starter=starter)
            self.assertEqual(drafter, 'head')
            self.assertEqual(log.count(taken), 1, log)
        for options, expected in ((['--drafter', 'ngram'], 'ngram'),
                                  (['--draft', CHECKPOINT], 'model'),
                                  (['--draft-head', str(HEAD)], 'head')):
            drafter, log = self.drafter_and_log(*options)
            self.assertEqual(drafter, expected)
            self.assertNotIn('this model', log)
        alone = outrider('run', '--model', CHECKPOINT, '--default-drafts', self.drafts,
                         '--max-tokens', '4', *GREEDY, '--format', 'json', 'Hello')
        self.assertEqual(json.loads(alone.stdout)['speculation']['drafter'], 'head')
        drafter, log = self.drafter_and_log(drafts='none')
        self.assertEqual(drafter, 'prompt_lookup')
        self.assertNotIn('this model', log)

    def test_counts_draft_where_they_are_asked_for(self):
        counts = self.write_counts(hash_of([Path(CHECKPOINT) / 'tokenizer.json']))
        taken = f'bigram and unigram draft from {counts}'
        for starter in ((), (*MPIRUN, '-np', '2')):
            for asked, expected in ((), 'head'), (('--drafter', 'bigram'), 'bigram'):
                drafter, log = self.drafter_and_log(starter=starter, asked=asked)
                self.assertEqual(drafter, expected)
                self.assertEqual(log.count(taken), 1, log)
            drafter, log = self.drafter_and_log('--drafter', 'unigram', starter=starter)
            self.assertEqual(drafter, 'unigram')
            self.assertIn(taken, log)
            self.assertNotIn('this model', log)
        self.assertEqual(self.drafter_and_log('--drafter', 'head')[0], 'head')
        run = ['run', '--model', CHECKPOINT, '--default-drafts', self.drafts, '--max-tokens', '4',
               *GREEDY, '--format', 'json', '--drafter', 'bigram', 'Hello']
        self.assertEqual(json.loads(outrider(*run).stdout)['speculation']['drafter'], 'bigram')
        _, log = self.drafter_and_log('--drafter', 'ngram')
        self.assertNotIn(str(counts), log)

    def test_counts_of_other_tokens_are_not_taken(self):
        self.write_counts('0123456789abcdef')
        drafter, log = self.drafter_and_log()
        self.assertEqual(drafter, 'head')
        self.assertNotIn('unigram', log)
        serve = [PROGRAM, 'serve', '--model', CHECKPOINT, '--port', '0', '--default-drafts',
                 self.drafts]
        counts = self.write_counts(hash_of([Path(CHECKPOINT) / 'tokenizer.json']))
        broken = counts.read_bytes()[:-1]
        for starter in ([], [*MPIRUN, '--quiet', '-np', '2']):
            counts.write_bytes(broken)
            self.refuses([*starter, *serve], str(counts))
            counts.unlink()
            self.refuses([*starter, *serve, '--drafter', 'bigram'],
                         '--drafter bigram: expected --draft-counts FILE, found none, and none for '
                         f'this model in {self.drafts}')

    def test_none_for_this_model_is_no_error(self):
        shutil.rmtree(self.drafts / 'mine')
        drafter, log = self.drafter_and_log()
        self.assertEqual(drafter, 'prompt_lookup')
        self.assertIn(f'no draft head for this model in {self.drafts}', log)

    def refuses(self, command, part):
        result = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S,
                                stdin=subprocess.DEVNULL)
        self.assertNotEqual(result.returncode, 0)
        self.assertNotIn('listening', result.stderr)
        lines = [line for line in result.stderr.splitlines() if 'outrider: ' in line]
        self.assertEqual(len(lines), 1, result.stderr)
        self.assertIn(part, lines[0])

    def test_a_broken_one_for_this_model_is_refused(self):
        serve = [PROGRAM, 'serve', '--model', CHECKPOINT, '--port', '0', '--default-drafts']
        for starter in ([], [*MPIRUN, '--quiet', '-np', '2']):
            self.write('mine', {**self.config, 'intermediate_size': 95})
            self.refuses([*starter, *serve, self.drafts], 'gate_proj.weight has shape')
            (self.drafts / 'mine/config.json').write_text(json.dumps(self.config)[:-1])
            self.refuses([*starter, *serve, self.drafts], f'{self.drafts}/mine/config.json')
        run = [PROGRAM, 'run', '--model', CHECKPOINT, '--max-tokens', '4', '--default-drafts',
               self.drafts, 'Hello', '--raw']
        self.refuses(run, f'{self.drafts}/mine/config.json')
        for options in (['--drafter', 'ngram'], ['--mode', 'off']):  # it is not looked for
            self.assertEqual(outrider(*run[1:], *options).returncode, 0)
        self.refuses([*serve, '/no/such/directory'], '/no/such/directory')

    def test_ranks_have_the_same(self):
        serve = [PROGRAM, 'serve', '--model', CHECKPOINT, '--port', '0', '--default-drafts']
        self.refuses([*MPIRUN, '--quiet', '-np', '1', *serve, self.drafts,
                      ':', '-np', '1', *serve, 'none'], 'draft')


class Ranks(unittest.TestCase):
    """What ranks are to one another."""

    def refuses(self, others_model, others_options, *parts):
        """A job whose second rank is started in another way ends before it serves."""
        serve = [PROGRAM, 'serve', '--port', '0', '--model']
        result = subprocess.run(
            [*MPIRUN, '--quiet', '-np', '1', *serve, CHECKPOINT,
             ':', '-np', '1', *serve, str(others_model), *others_options],
            capture_output=True, text=True, timeout=LIMIT_S, stdin=subprocess.DEVNULL)
        self.assertNotEqual(result.returncode, 0)
        self.assertNotIn('listening', result.stderr)
        lines = [line for line in result.stderr.splitlines() if 'outrider: ' in line]
        self.assertEqual(len(lines), 1, result.stderr)
        for part in ('outrider: rank 1 ', *parts):
            self.assertIn(part, lines[0])

    def test_all_read_the_same_checkpoint(self):
        with tempfile.TemporaryDirectory() as other:
            shutil.copytree(CHECKPOINT, other, dirs_exist_ok=True)
            weights = Path(other, 'model.safetensors')
            data = bytearray(weights.read_bytes())
            data[-1] ^= 1
            weights.write_bytes(data)
            self.refuses(other, [], 'checkpoint', 'same files')
            self.refuses(CHECKPOINT, ['--draft', other], 'draft', 'same files')

    def test_all_have_the_same_settings(self):
        self.refuses(CHECKPOINT, ['--lookahead', 'fixed:3'], 'settings', 'same options')

    def test_idle_ranks_rest(self):
        """A promise about time: busy waiting would take 100 %."""
        def cpu_seconds(pid):
            with open(f'/proc/{pid}/stat') as file:
                fields = file.read().rpartition(')')[2].split()
            return (int(fields[11]) + int(fields[12])) / os.sysconf('SC_CLK_TCK')  # utime, stime

        with Server(*MPIRUN, '-np', '2') as server:
            result = outrider('generate', '--address', server.address, '--max-tokens', '4',
                              *GREEDY, 'Hello')
            self.assertEqual(result.returncode, 0, result.stderr)
            ends = {pid: server.processes[pid] for pid in server.ranks}
            self.assertEqual(len(ends), 2)
            start = time.monotonic()
            used = {pid: cpu_seconds(pid) for pid in ends}
            ended, _, _ = select.select(ends.values(), [], [], IDLE_S)
            self.assertFalse(ended, 'a rank has ended while it was idle')
            idle_s = time.monotonic() - start
            shares = [(cpu_seconds(pid) - used[pid]) / idle_s for pid in ends]
            print('idle ranks use', ', '.join(f'{100 * share:.1f} %' for share in shares),
                  f'of a core over {idle_s:.1f} s', file=sys.stderr)
            self.assertLessEqual(max(shares), 0.02)


class Ends(unittest.TestCase):
    """However a job ends, no process and no port is left."""

    def ask(self, server):
        result = outrider('generate', '--address', server.address, '--max-tokens', '4', *GREEDY,
                          '--format', 'json', 'Hello')
        self.assertEqual(result.returncode, 0, result.stderr)
        return json.loads(result.stdout)['token_ids']

    def test_interrupted_alone(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            with Server() as server:
                self.ask(server)
                server.process.send_signal(number)
                self.assertEqual(server.wait_for_end(), 0, server.log)
                self.assertTrue(server.port_is_free())

    def test_interrupted_under_mpirun(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            with Server(*MPIRUN, '-np', '2') as server:
                self.assertEqual(len(server.ranks), 2)
                self.ask(server)
                server.process.send_signal(number)
                server.wait_for_end()
                self.assertIn('stopping', server.log)
                self.assertTrue(server.port_is_free())

    def test_launch_ends_in_order(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            with Server('launch', '--ranks', '3', '--') as server:
                self.assertEqual(len(server.ranks), 3)
                self.ask(server)
                server.process.send_signal(number)
                self.assertEqual(server.wait_for_end(), 0, server.log)
                self.assertTrue(server.port_is_free())

    def test_interrupted_while_it_loads_and_measures(self):
        """On the real model, where both take long enough."""
        model = subprocess.run([sys.executable, FETCH_MODEL], stdout=subprocess.PIPE, text=True,
                               timeout=LIMIT_S, check=True).stdout.strip()
        for words in ('loading model: 25 %', 'measuring steps'):
            command = ['launch', '--ranks', '2', '--', 'serve', '--model', model, '--port', '0']
            with subprocess.Popen([PROGRAM, *command], stderr=subprocess.PIPE, text=True) as launch:
                output = Lines(launch.stderr)
                output.wait_for(words)
                launch.send_signal(signal.SIGINT)
                lines = output.all()
            self.assertEqual(launch.returncode, 128 + signal.SIGINT)
            self.assertEqual([line for line in lines if 'outrider: ' in line], [])

    def test_in_order_though_nobody_reads_its_log(self):
        port = free_port()
        process = subprocess.Popen([PROGRAM, 'serve', '--model', CHECKPOINT, '--port', str(port)],
                                   stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        while 'listening on' not in process.stderr.readline():
            self.assertIsNone(process.poll())
        process.stderr.close()
        for _ in range(2):  # the first one's line finds nobody
            answer = outrider('generate', '--port', str(port), *GREEDY, '--max-tokens', '3', 'Hi')
            self.assertEqual(answer.returncode, 0, answer.stderr)
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(LIMIT_S), 0)

    def stop_beside_a_call(self, *options):
        """(exit status, stderr) of a client whose call runs when the server is told to end."""
        with Server(options=options) as server:
            client = subprocess.Popen(
                [PROGRAM, 'generate', '--address', server.address, '--max-tokens', '1900', *GREEDY,
                 'x'], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            client.stdout.read(1)
            server.process.send_signal(signal.SIGTERM)
            stderr = client.communicate(timeout=LIMIT_S)[1]
            self.assertEqual(server.wait_for_end(), 0)
        return client.returncode, stderr

    def test_a_running_call_comes_to_its_end(self):
        status, said = self.stop_beside_a_call()
        self.assertEqual(status, 0, said)
        self.assertIn('; 1900 tokens in ', said)

    def test_a_running_call_hears_that_the_server_ends_at_once(self):
        status, said = self.stop_beside_a_call('--drain-seconds', '0')
        self.assertEqual(status, 1, said)
        self.assertIn('UNAVAILABLE', said)

    def test_a_closed_terminal_lets_a_running_call_come_to_its_end(self):
        """It sends SIGHUP twice, by its shell and by the kernel: that is one request, and none
        behind SIGINT."""
        for first in (signal.SIGHUP, signal.SIGINT):
            with self.subTest(first=first):
                self.stop_beside_a_call_that_waits(first, signal.SIGHUP)

    def stop_beside_a_call_that_waits(self, *signals):
        with Server('env', '--default-signal=HUP,INT',
                    options=['--drain-seconds', str(LIMIT_S)]) as server:
            client = subprocess.Popen(
                [PROGRAM, 'generate', '--address', server.address, '--n', '8', '--max-tokens',
                 '1900', '--mode', 'off', *GREEDY, 'x'],
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            with client:
                client.stdout.read(1)
                client.send_signal(signal.SIGSTOP)  # its call cannot end meanwhile
                try:
                    for number in signals:
                        server.process.send_signal(number)
                        health = 'SERVING\n'
                        while health == 'SERVING\n':
                            health = outrider('health', '--address', server.address).stdout
                        self.assertEqual(health, 'NOT_SERVING\n', server.log)
                finally:
                    client.send_signal(signal.SIGCONT)
                stderr = client.communicate(timeout=LIMIT_S)[1]
            self.assertEqual(server.wait_for_end(), 0)
        self.assertEqual(client.returncode, 0, stderr)
        self.assertEqual(stderr.count('; 1900 tokens in '), 8, stderr)

    def test_whoever_stops_reading_the_log_is_no_failure(self):
        reader, writer = os.pipe()
        fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
        with (open(reader) as log,
              subprocess.Popen([PROGRAM, 'serve', '--model', CHECKPOINT, '--port', '0'],
                               stderr=writer) as server):
            os.close(writer)
            address = None
            while address is None:
                address = re.search(r'listening on (\S+),', log.readline())
            try:
                for _ in range(60):  # of which each leaves a line
                    outrider('generate', '--address', address[1], '--max-tokens', '1', *GREEDY, 'x')
                server.send_signal(signal.SIGTERM)
                self.assertEqual(server.wait(LIMIT_S), 0)
            finally:
                server.kill()

    def test_a_killed_rank_ends_the_job(self):
        for rank in (0, 1):
            with Server(*MPIRUN, '--quiet', '-np', '2') as server:
                self.ask(server)
                os.kill(server.ranks[rank], signal.SIGKILL)
                self.assertNotEqual(server.wait_for_end(), 0)
                self.assertTrue(server.port_is_free())
                if rank == 1:
                    self.assertRegex(server.log, r'outrider: rank 1 is lost: ')

    def test_a_killed_mpirun_leaves_nothing(self):
        for starter in ([*MPIRUN, '-np', '2'], ['launch', '--ranks', '2', '--']):
            with Server(*starter) as server:
                self.ask(server)
                server.process.kill()
                server.wait_for_end()
                self.assertTrue(server.port_is_free())


if __name__ == '__main__':
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])

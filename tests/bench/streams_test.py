"""What bench/reproduce makes of a stream beside others, and of `outrider bench tokenizer`.

    streams_test.py SOURCE_DIR PROGRAM CHECKPOINT
"""

import argparse
import re
import shlex
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

CHECKPOINT, PROGRAM = Path(sys.argv.pop()), sys.argv.pop()
SOURCE = Path(sys.argv.pop())
sys.path.append(str(SOURCE / 'bench'))

import streams  # noqa: E402
from serving import Server  # noqa: E402
from tokenizer import tokenizer_text  # noqa: E402


class Streams(unittest.TestCase):
    """Beside a prompt and beside clients, on a small model."""

    def run_rounds(self, experiment, model, rounds=2, **constants):
        drawn = {}

        def tails(name, quantity, series):
            drawn.update({of: len(values) for of, values in series.items()})
            return ''

        with (Server(PROGRAM, model, 1, ['--prefill-chunk', '16']) as server,
              mock.patch.multiple(streams, **constants)):
            text = experiment(argparse.Namespace(server=server, stub=server.stub, rounds=rounds,
                                                 tails=tails))
        rows = {cells[0]: cells[1:] for cells in
                (line.strip('| ').split(' | ') for line in text.splitlines())
                if cells[0] in drawn}
        self.assertEqual({name: int(cells[0]) for name, cells in rows.items()}, drawn)
        return text, rows

    def test_beside_a_prompt(self):
        text, rows = self.run_rounds(streams.prefill, CHECKPOINT.with_name('tiny-deep'),
                                     ALONE_S=0.2, PROMPT_TOKENS=100)
        self.assertEqual(list(rows), ['alone', 'beside 100 tokens'])
        for chunks, *gaps in rows.values():
            self.assertGreaterEqual(int(chunks), 2)
            values = [float(re.fullmatch(r'([0-9.]+) \([0-9.]+\)', gap)[1]) for gap in gaps]
            self.assertEqual(values, sorted(values))
        self.assertRegex(text, r'\n- By round, .*: the median [0-9.]+ to [0-9.]+, P90 .*\n'
                               r'- The prompt took [0-9.]+ to [0-9.]+ s, [0-9.]+ in the median\.\n')

    def test_beside_clients(self):
        text, rows = self.run_rounds(streams.clients, CHECKPOINT, BUSY_CLIENTS=3,
                                     BUSY_TOKENS=64)
        self.assertEqual(list(rows), ['alone', 'beside 3 clients'])
        # The same text; characters of several tokens come in one chunk.
        chunks = {int(cells[0]) for cells in rows.values()}
        self.assertEqual(len(chunks), 1, rows)
        self.assertIn(chunks.pop(), range(64, 127))
        self.assertRegex(text, r'\n- \d+ calls a second were answered\. A step took [0-9.]+ '
                               r'\(n/a\) times as long beside them; in brackets: 95 %, .*\.\n$')

    def test_clients_that_fail_are_no_result(self):
        with self.assertRaisesRegex(SystemExit, '^reproduce: a busy client failed'):
            with streams.Busy('127.0.0.1:1'):
                pass


class Tokenizer(unittest.TestCase):
    def test_every_input_is_shown(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        program = Path(folder.name, 'build', 'bin', 'outrider')
        program.parent.mkdir(parents=True)
        asked = argparse.Namespace(program=program, model=CHECKPOINT)
        with self.assertRaisesRegex(SystemExit, 'tokenizer_corpus.bin: no corpus there; expected'):
            tokenizer_text(asked, str)
        Path(folder.name, 'build', 'tokenizer_corpus.bin').touch()
        said = ('| input | bytes | tokens | MB/s |\n| --- | ---: | ---: | ---: |\n'
                '| some | 10 | 3 | 9.5 |\n| a, one word | 100 | 30 | 2.1 |\n')
        for status, error in ((0, ''), (1, 'outrider: 1 of 2 inputs were slow')):
            program.write_text(f'#!/bin/sh\nprintf %s {shlex.quote(said)}\n'
                               f'echo {shlex.quote(error)} >&2\nexit {status}\n')
            program.chmod(0o755)
            if status == 0:
                text = tokenizer_text(asked, lambda rates: f'{rates}\n')
                self.assertTrue(text.endswith(f"{{'some': 9.5, 'a, one word': 2.1}}\n{said}"), text)
                self.assertNotIn(folder.name, text)
                self.assertIn(' --text LICENSE --corpus ', text)  # no file that changes
                continue
            with self.assertRaisesRegex(SystemExit, f'^reproduce: bench tokenizer: {error}$'):
                tokenizer_text(asked, str)


if __name__ == '__main__':
    unittest.main()

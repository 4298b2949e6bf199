"""What models/ has to draft with is taken by the program for the real model, and changes no answer.

    committed_drafts_test.py SOURCE_DIR PROGRAM
"""

import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SOURCE, PROGRAM = (Path(argument) for argument in sys.argv[1:3])
del sys.argv[1:]
NAME = 'SmolLM2-135M-Instruct'
# What steps take is measured at each start, up to those of a chunk and to a long context.
SMALL = ['--prefill-chunk', '32', '--max-positions', '256']
MODELS, TOOLS = SOURCE / 'models', SOURCE / 'tools'


def output_of(*command):
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)


class CommittedDrafts(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.model = output_of(sys.executable, TOOLS / 'fetch_model.py').stdout.strip()
        cls.plain = cls.run_with('--mode', 'off').stdout

    @classmethod
    def run_with(cls, *flags):
        return output_of(PROGRAM, 'run', '--model', cls.model, *SMALL, '--temperature', '0',
                         '--max-tokens', '48', *flags,
                         'Write a short story about a lighthouse keeper and a whale.')

    def drafts(self, drafter, *flags):
        run = self.run_with('--drafter', drafter, '--num-speculative-tokens', '3', *flags)
        self.assertEqual(run.stdout, self.plain)
        self.assertRegex(run.stderr, rf'accepted [1-9]\d* of \d+ .*, drafter {drafter};')

    def test_the_head(self):
        self.drafts('head', '--draft-head', MODELS / f'{NAME}-head')
        self.drafts('head')

    def test_the_counts(self):
        counts = MODELS / f'{NAME}-counts.safetensors'
        for drafter in ('unigram', 'bigram'):
            self.drafts(drafter, '--draft-counts', counts)
            self.drafts(drafter)

    def test_the_draft(self):
        with tempfile.TemporaryDirectory() as output:
            output_of(sys.executable, TOOLS / 'complete_draft.py', MODELS / f'{NAME}-draft',
                      '--target', self.model, '--output', output)
            self.drafts('model', '--draft', output)

    def test_they_are_small(self):
        for path in MODELS.rglob('*'):
            self.assertLessEqual(path.stat().st_size, 25_000_000, path)
        size = sum(path.stat().st_size for path in (MODELS / f'{NAME}-draft').iterdir())
        self.assertLessEqual(size, 25_000_000)


if __name__ == '__main__':
    unittest.main()

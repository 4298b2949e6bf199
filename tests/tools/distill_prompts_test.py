"""What drafts are trained on is neither what they are measured on nor what alpha is held out for.

    distill_prompts_test.py SOURCE_DIR
"""

import argparse
import json
import sys
import tempfile
import unittest
from pathlib import Path

SOURCE = Path(sys.argv.pop())
sys.path.append(str(SOURCE / 'tools'))

from distill_prompts import (MODULES, RUN_WORDS, TOPICS, Excluded, PromptSource,  # noqa: E402
                             entries, part_of, runs, words_of)

DRAWN = 20_000
# Each topic's words, too: on either side of the cut, whichever side the topic is on.
VOCABULARY = [f'word{i}' for i in range(100)] + ' '.join(entries(TOPICS)).split()


def runs_of(text):
    return runs(words_of(text))


class Prompts(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        source = PromptSource('test', False, VOCABULARY)
        cls.texts = {source.draw().text for _ in range(DRAWN)}
        cls.trained_on = set().union(*map(runs_of, cls.texts))

    def test_no_prompt_of_the_benchmarks_is_trained_on(self):
        path = SOURCE / 'bench' / 'speculation_prompts.jsonl'
        measured_on = [json.loads(line)['text']
                       for line in path.read_text(encoding='utf-8').splitlines()]
        self.assertGreater(len(measured_on), 10)
        for text in measured_on:
            self.assertNotIn(text, self.texts)
            self.assertEqual(runs_of(text) & self.trained_on, set())

    def test_the_target_asks_itself_only_where_it_may(self):
        for own in (True, False):
            source = PromptSource('test', False, VOCABULARY, own=own)
            self.assertEqual('own' in {source.draw().kind for _ in range(100)}, own)

    def test_runs_would_be_found(self):
        drawn = next(text for text in sorted(self.texts) if len(runs_of(text)) > 10)
        self.assertNotEqual(runs_of('Somebody said: ' + drawn) & self.trained_on, set())

    def test_held_out_prompts_are_others(self):
        train, held_out = (PromptSource('test', side, VOCABULARY) for side in (False, True))
        parts = {part: (getattr(train, part), getattr(held_out, part))
                 for part in ('topics', 'objects', 'places', 'events', 'words', 'functions')}
        parts['modules'] = tuple(part_of(MODULES.split(), side) for side in (False, True))
        for part, (ours, theirs) in parts.items():
            with self.subTest(part=part):
                self.assertTrue(theirs)
                self.assertEqual(set(ours) & set(theirs), set())
                if part not in ('modules', 'functions', 'words'):
                    self.assertEqual(set(train.words) & set(' '.join(theirs).split()), set())
                    self.assertEqual(set(held_out.words) & set(' '.join(ours).split()), set())

    def test_half_of_the_questions_begin_with_a_word(self):
        source = PromptSource('test', False, [f'word{i}' for i in range(100)])
        drawn = [source.own() for _ in range(1000)]
        self.assertAlmostEqual(sum('word' in begun for begun in drawn) / 1000, 0.5, delta=0.1)


class ExcludedPrompts(unittest.TestCase):
    def setUp(self):
        self.path = Path(self.enterContext(tempfile.TemporaryDirectory())) / 'prompts.jsonl'

    def write(self, *lines):
        self.path.write_text(''.join(line + '\n' for line in lines), encoding='utf-8')
        return str(self.path)

    def test_eight_words_in_a_row_are_shared(self):
        words = 'one two three four five six seven eight nine'.split()
        self.assertEqual(RUN_WORDS, 8)
        excluded = Excluded(self.write(json.dumps({'kind': 'chat', 'text': ' '.join(words)})))
        said = '<|im_start|>user\nOne, two three\nFOUR five six: seven eight!<|im_end|>'
        for text, expected in ((' '.join(words[:8]), True), (' '.join(words[1:]), True),
                               (' '.join(words[:7]), False), (said, True),
                               (' '.join(words[:7] + words[8:]), False)):
            self.assertEqual(excluded.shares(text), expected, text)

    def test_a_shorter_prompt_is_shared_as_a_whole(self):
        excluded = Excluded(self.write('{"text": "Why is it blue?"}'))
        self.assertTrue(excluded.shares('user: why is it blue? Say.'))
        self.assertFalse(excluded.shares('Why is it red?'))

    def test_the_bench_s_prompts_are_such_a_file(self):
        path = SOURCE / 'bench' / 'speculation_prompts.jsonl'
        excluded = Excluded(str(path))
        for line in path.read_text(encoding='utf-8').splitlines():
            self.assertTrue(excluded.shares(json.loads(line)['text']))

    def test_a_line_that_is_no_prompt_is_named(self):
        for line in ('', '{"text": ', '["text"]', '{"prompt": "x"}', '{"text": "..."}',
                     '{"text": 3}'):
            path = self.write('{"text": "Why?"}', line)
            with self.assertRaisesRegex(argparse.ArgumentTypeError,
                                        'jsonl: line 2 is .*; expected an object with words'):
                Excluded(path)
        with self.assertRaisesRegex(argparse.ArgumentTypeError, 'none.jsonl: .*No such file'):
            Excluded('none.jsonl')


if __name__ == '__main__':
    unittest.main()

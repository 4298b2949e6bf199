"""What drafts are trained on is neither what they are measured on nor what alpha is held out for.

    distill_prompts_test.py SOURCE_DIR
"""

import json
import sys
import unittest
from pathlib import Path

SOURCE = Path(sys.argv.pop())
sys.path.append(str(SOURCE / 'tools'))

from distill_prompts import MODULES, TOPICS, PromptSource, entries, part_of  # noqa: E402

DRAWN = 20_000
RUN = 8  # words in a row that two texts have in common by more than chance
# Each topic's words, too: on either side of the cut, whichever side the topic is on.
VOCABULARY = [f'word{i}' for i in range(100)] + ' '.join(entries(TOPICS)).split()


def runs(text):
    words = text.lower().split()
    return {tuple(words[i:i + RUN]) for i in range(len(words) - RUN + 1)}


class Prompts(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        source = PromptSource('test', False, VOCABULARY)
        cls.texts = {source.draw().text for _ in range(DRAWN)}
        cls.trained_on = set().union(*map(runs, cls.texts))

    def test_no_prompt_of_the_benchmarks_is_trained_on(self):
        path = SOURCE / 'bench' / 'speculation_prompts.jsonl'
        measured_on = [json.loads(line)['text']
                       for line in path.read_text(encoding='utf-8').splitlines()]
        self.assertGreater(len(measured_on), 10)
        for text in measured_on:
            self.assertNotIn(text, self.texts)
            self.assertEqual(runs(text) & self.trained_on, set())

    def test_the_target_asks_itself_only_where_it_may(self):
        for own in (True, False):
            source = PromptSource('test', False, VOCABULARY, own=own)
            self.assertEqual('own' in {source.draw().kind for _ in range(100)}, own)

    def test_runs_would_be_found(self):
        drawn = next(text for text in sorted(self.texts) if len(runs(text)) > 10)
        self.assertNotEqual(runs('Somebody said: ' + drawn) & self.trained_on, set())

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


if __name__ == '__main__':
    unittest.main()

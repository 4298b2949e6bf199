"""The pair of models with a chosen agreement says what it was made to say, and no more is accepted.

    synthetic_pair_test.py SOURCE_DIR PROGRAM
"""

import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

PROGRAM = sys.argv.pop()
SOURCE = Path(sys.argv.pop())
sys.path.append(str(SOURCE / 'bench'))

from synthetic_pair import make_pair, texts  # noqa: E402

SHAPE = {'vocab_size': 300, 'n_embd': 64, 'n_layer': 2, 'n_head': 2, 'n_positions': 128}
DRAFT_SHAPE = SHAPE | {'n_embd': 32, 'n_layer': 1}
PROMPT, MAX_TOKENS, K, AGREEMENT = [5, 6, 7], 100, 4, 0.75


class SyntheticPair(unittest.TestCase):
    def test_agrees_where_it_was_made_to(self):
        with tempfile.TemporaryDirectory() as directory:
            target, draft = make_pair(directory, SHAPE, DRAFT_SHAPE, AGREEMENT)
            answer = json.loads(subprocess.run(
                [PROGRAM, 'run', '--model', target, '--draft', draft, '--drafter', 'model',
                 '--num-speculative-tokens', str(K), '--temperature', '0', '--max-tokens',
                 str(MAX_TOKENS), '--ignore-eos', '--input-ids', ','.join(map(str, PROMPT)),
                 '--format', 'json'], check=True, capture_output=True, text=True).stdout)
        said, guessed = texts(SHAPE['vocab_size'], SHAPE['n_positions'], AGREEMENT, 0)
        first = len(PROMPT) - 1
        self.assertEqual(answer['token_ids'], said[first:first + MAX_TOKENS].tolist())
        # Each step, that of the prompt too, keeps what agrees, up to K, and adds a token.
        place = drafted = accepted = steps = speculative = 0
        tried, right = [0] * K, [0] * K
        while place < MAX_TOKENS:
            k = min(K, MAX_TOKENS - place - 1)
            kept = 0
            while kept < k and said[first + place + kept] == guessed[first + place + kept]:
                kept += 1
            drafted, accepted, place = drafted + k, accepted + kept, place + kept + 1
            steps, speculative = steps + 1, speculative + (k > 0)
            for i in range(k):
                tried[i], right[i] = tried[i] + 1, right[i] + (i < kept)
        speculation = answer['speculation']
        self.assertEqual(speculation['num_draft_tokens'], drafted)
        self.assertEqual(speculation['num_accepted_draft_tokens'], accepted)
        self.assertTrue(0 < accepted < drafted)
        self.assertEqual(speculation['num_spec_steps'], speculative)
        self.assertAlmostEqual(speculation['mean_acceptance_length'], MAX_TOKENS / steps)
        self.assertAlmostEqual(speculation['draft_acceptance_rate'], accepted / drafted)
        self.assertEqual(len(speculation['acceptance_by_position']), K)
        for share, r, t in zip(speculation['acceptance_by_position'], right, tried):
            self.assertAlmostEqual(share, r / t)
        self.assertGreater(right[1], 0)


if __name__ == '__main__':
    unittest.main()

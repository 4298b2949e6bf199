"""What is kept of a draft becomes one that the program takes; what does not fit is named.

    complete_draft_test.py SOURCE_DIR PROGRAM CHECKPOINT
"""

import json
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SOURCE, PROGRAM, CHECKPOINT = (Path(argument) for argument in sys.argv[1:4])
del sys.argv[1:]
EMBEDDING = 'model.embed_tokens.weight'
SCORED = 480  # tokens


def tensors_of(path):
    data = path.read_bytes()
    length = struct.unpack('<Q', data[:8])[0]
    header = json.loads(data[8:8 + length])
    header.pop('__metadata__', None)
    begin = 8 + length
    return {name: (entry['shape'], data[begin + entry['data_offsets'][0]:
                                        begin + entry['data_offsets'][1]])
            for name, entry in header.items()}


def write_tensors(path, tensors):
    header, data = {}, b''
    for name, (shape, value) in tensors.items():
        header[name] = {'dtype': 'BF16', 'shape': shape,
                        'data_offsets': [len(data), len(data) + len(value)]}
        data += value
    text = json.dumps(header).encode()
    text += b' ' * (-len(text) % 8)
    path.write_bytes(struct.pack('<Q', len(text)) + text + data)


def hash_of(directory):
    said = subprocess.run([PROGRAM, 'inspect', directory], capture_output=True, text=True,
                          timeout=60, check=True).stdout
    return re.search(r'^hash +(\w+)$', said, re.M)[1]


class CompleteDraft(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)
        self.draft = self.root / 'draft'
        self.draft.mkdir()
        # The target as its own draft, with a head for some tokens.
        self.tensors = tensors_of(CHECKPOINT / 'model.safetensors')
        shape, embedding = self.tensors[EMBEDDING]
        kept = {name: value for name, value in self.tensors.items() if name != EMBEDDING}
        kept['lm_head.weight'] = ([SCORED, shape[1]], embedding[:2 * SCORED * shape[1]])
        write_tensors(self.draft / 'kept.safetensors', kept)
        files = dict.fromkeys(kept, 'kept.safetensors') | {EMBEDDING: 'shared.safetensors'}
        index = self.draft / 'model.safetensors.index.json'
        index.write_text(json.dumps({'metadata': {}, 'weight_map': files}))
        self.configure()

    def configure(self, **fields):
        config = json.loads((CHECKPOINT / 'config.json').read_text())
        config |= {'tie_word_embeddings': False, 'draft_token_ids': list(range(SCORED))}
        (self.draft / 'config.json').write_text(json.dumps(config | fields))

    def complete(self, output, target=CHECKPOINT):
        return subprocess.run([sys.executable, SOURCE / 'tools' / 'complete_draft.py', self.draft,
                               '--target', target, '--output', output],
                              capture_output=True, text=True, timeout=60, check=False)

    def test_the_program_drafts_with_it(self):
        output = self.root / 'completed'
        self.configure(target=hash_of(CHECKPOINT))
        done = self.complete(output)
        self.assertEqual((done.returncode, done.stdout), (0, f'{output}\n'), done.stderr)
        self.assertEqual(tensors_of(output / 'shared.safetensors'),
                         {EMBEDDING: self.tensors[EMBEDDING]})
        answers = {}
        for name, flags in (('plain', ['--mode', 'off']),
                            ('drafted', ['--draft', output, '--num-speculative-tokens', '4'])):
            run = subprocess.run([PROGRAM, 'run', '--model', CHECKPOINT, '--temperature', '0',
                                  '--raw', '--max-tokens', '24', '--ignore-eos', *flags,
                                  'hello there you'],
                                 capture_output=True, text=True, timeout=60, check=False)
            self.assertEqual(run.returncode, 0, run.stderr)
            answers[name] = run.stdout
            said = run.stderr
        self.assertEqual(answers['drafted'], answers['plain'])
        self.assertRegex(said, r'accepted [1-9]\d* of \d+ drafted tokens .*, drafter model;')

    def test_any_target_will_do_where_none_is_named(self):
        done = self.complete(self.root / 'completed')
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_refuses_another_target(self):
        other = self.root / 'other'
        shutil.copytree(CHECKPOINT, other)
        config = other / 'config.json'
        config.write_text(config.read_text() + '\n')
        names, found = hash_of(CHECKPOINT), hash_of(other)
        self.configure(target=names)
        done = self.complete(self.root / 'refused', other)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (1, '',
                         f'complete_draft: {other}: has the hash {found}; expected {names}, of '
                         f'the model that {self.draft} was distilled from\n'))
        self.assertFalse((self.root / 'refused').exists())

    def test_refuses_what_does_not_fit(self):
        def refused(pattern, **target):
            done = self.complete(self.root / 'refused', **target)
            self.assertEqual(done.returncode, 1)
            self.assertRegex(done.stderr, f'^complete_draft: .*{pattern}.*\n$')

        refused(re.escape(f'holds {EMBEDDING}'), target=self.root)
        self.configure(hidden_size=32)
        refused(r"has shape \[512, 64\]; expected the draft's, \[512, 32\]")
        (self.draft / 'config.json').write_text('{}')
        refused('config.json: vocab_size is missing')
        torn = self.root / 'torn'
        torn.mkdir()
        whole = (CHECKPOINT / 'model.safetensors').read_bytes()
        data = 8 + struct.unpack('<Q', whole[:8])[0]
        for length, why in ((4, 'is no safetensors file'), (data + 10, 'ends within')):
            self.configure()
            (torn / 'model.safetensors').write_bytes(whole[:length])
            refused(f'model.safetensors: {why}', target=torn)


if __name__ == '__main__':
    unittest.main()

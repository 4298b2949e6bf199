"""What export_gguf.py writes, convert_gguf.py reads back bit for bit; what it cannot write is named.

    export_gguf_test.py SOURCE_DIR CHECKPOINT
"""

import json
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SOURCE, CHECKPOINT = (Path(argument) for argument in sys.argv[1:3])
del sys.argv[1:]


def run(tool, *arguments):
    return subprocess.run([sys.executable, SOURCE / 'tools' / tool, *arguments],
                          capture_output=True, text=True, timeout=60, check=False)


class ExportGguf(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.model, self.gguf = self.folder / 'model', self.folder / 'model.gguf'
        shutil.copytree(CHECKPOINT, self.model)
        self.change('tokenizer_config.json', unk_token='<|endoftext|>', chat_template='{{ x }}')

    def change(self, file, **values):
        path = self.model / file
        path.write_text(json.dumps(json.loads(path.read_text()) | values))

    def refuse(self, expected):
        done = run('export_gguf.py', self.model, self.gguf)
        self.assertEqual((done.returncode, done.stdout), (1, ''))
        self.assertEqual(done.stderr, f'export_gguf: {self.model}: {expected}\n')

    def test_reads_back_as_it_was(self):
        done = run('export_gguf.py', self.model, self.gguf)
        self.assertEqual((done.returncode, done.stderr), (0, ''))
        back = self.folder / 'back'
        done = run('convert_gguf.py', self.gguf, back)
        self.assertEqual((done.returncode, done.stderr), (0, ''))
        for file in ('model.safetensors', 'tokenizer.json'):
            self.assertEqual((back / file).read_bytes(), (self.model / file).read_bytes(), file)
        ours, theirs = (json.loads((folder / 'config.json').read_text())
                        for folder in (self.model, back))
        self.assertEqual({name: theirs[name] for name in ours}, ours)

    def test_refuses_another_kind_of_model(self):
        self.change('config.json', model_type='gpt2')
        self.refuse("config.json: model_type is 'gpt2'; expected 'llama'")

    def test_refuses_what_it_cannot_read(self):
        (self.model / 'model.safetensors').write_bytes(b'short')
        self.refuse('model.safetensors: not readable as safetensors '
                    '(unpack requires a buffer of 8 bytes)')

    def test_refuses_a_torn_file(self):
        file = self.model / 'model.safetensors'
        whole = file.read_bytes()
        for left in (len(whole) // 2, len(whole) - 1, 8 + int.from_bytes(whole[:8], 'little')):
            file.write_bytes(whole[:left])
            done = run('export_gguf.py', self.model, self.gguf)
            self.assertEqual((done.returncode, done.stdout), (1, ''))
            self.assertRegex(done.stderr, rf'^export_gguf: {self.model}: model.safetensors: '
                                          r'(tensor [a-z_.0-9]+: |not readable )[^\n]+\n$')
            self.assertEqual(sorted(self.folder.iterdir()), [self.model])

    def test_overwrites_nothing(self):
        self.gguf.write_text('mine')
        self.refuse(f'{self.gguf} is there already')
        self.assertEqual(self.gguf.read_text(), 'mine')

    def test_refuses_scaled_rotation(self):
        self.change('config.json', rope_scaling={'rope_type': 'llama3'})
        self.refuse('config.json: rope_scaling is set, which is not exported')

    def test_refuses_a_config_without_a_size(self):
        config = json.loads((self.model / 'config.json').read_text())
        del config['vocab_size']
        (self.model / 'config.json').write_text(json.dumps(config))
        self.refuse('config.json: vocab_size is missing')

    def test_refuses_another_shape(self):
        config = json.loads((self.model / 'config.json').read_text())
        ffn, hidden = config['intermediate_size'], config['hidden_size']
        self.change('config.json', intermediate_size=ffn + 1)
        self.refuse(f'tensor model.layers.0.mlp.gate_proj.weight has shape [{ffn}, {hidden}], '
                    f'config.json says [{ffn + 1}, {hidden}]')

    def test_refuses_tensors_beyond_the_layers(self):
        layers = json.loads((self.model / 'config.json').read_text())['num_hidden_layers']
        self.change('config.json', num_hidden_layers=layers - 1)
        self.refuse(f'tensor model.layers.{layers - 1}.input_layernorm.weight is not one of a plain '
                    'Llama\'s')


if __name__ == '__main__':
    unittest.main()

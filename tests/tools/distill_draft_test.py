"""The draft's recipe on a tiny model: stopped and taken up again, it makes the same draft, and the
server takes what it makes.

    distill_draft_test.py SOURCE_DIR PROGRAM CHECKPOINT

Makes a Python environment with the packages of tools/requirements-train.txt (PyTorch) in
$OUTRIDER_CACHE, or ~/.cache/outrider, and keeps it.
"""

import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest
import venv
from pathlib import Path

SOURCE, PROGRAM, CHECKPOINT = (Path(argument) for argument in sys.argv[1:4])
LIMIT_S = 600
SIZES = ['--threads', '1']
GENERATE = [*SIZES, '--shards', '3', '--rows', '8', '--length', '48']
TRAIN = [*SIZES, '--batch', '4', '--layers', '1', '--head-tokens', '200']
STEPS = [*TRAIN, '--train-tokens', '6000', '--evaluate-every', '10']


def make_environment():
    """The python of an environment with the recipe's packages; one is kept for each set of pins."""
    requirements = SOURCE / 'tools' / 'requirements-train.txt'
    pins = hashlib.sha256(sys.version.encode() + requirements.read_bytes()).hexdigest()[:12]
    cache = Path(os.environ.get('OUTRIDER_CACHE') or Path.home() / '.cache' / 'outrider')
    directory = cache / f'venv-train-{pins}'
    python = directory / 'bin' / 'python'
    if not (directory / 'complete').exists():
        venv.create(directory, clear=True, with_pip=True)
        subprocess.run([python, '-m', 'pip', 'install', '--quiet', '--no-input',
                        '--disable-pip-version-check', '-r', requirements], check=True)
        (directory / 'complete').touch()
    return python


PYTHON = make_environment()


def command(name, work, *flags, target=CHECKPOINT):
    return [PYTHON, SOURCE / 'tools' / 'distill_draft.py', name, '--device', 'cpu', '--target',
            target, '--work', work, *flags]


def run(name, work, *flags):
    result = subprocess.run(command(name, work, *flags), capture_output=True, text=True,
                            timeout=LIMIT_S, check=False)
    assert result.returncode == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


def timeless(line):
    return {name: value for name, value in line.items() if not name.endswith('_per_second')}


def contents(directory):
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir())}


TEMPLATE = ("{% for m in messages %}{{ m.role }}: {{ m.content }}<|endoftext|>{% endfor %}"
            "{% if add_generation_prompt %}assistant: {% endif %}")

# Prints the rows of a shard in which the target asks itself: of each, its tokens and which of them
# are an answer's; then what stands before, behind and between questions, and what they begin with.
OWN_ROWS = """
import json, sys, torch
from pathlib import Path
from distill_data import ANSWER_TOKENS, MAX_QUESTION_TOKENS, Renderer, generate
from distill_llama import load_target
from distill_prompts import KINDS, OWN_STARTS, entries
target = Path(sys.argv[1])
renderer = Renderer(target)
torch.set_num_threads(1)
shard = generate(load_target(target, 'cpu', torch.float32, 256, False), renderer, 'test', False,
                 16, 256, False)
rows = shard['kind'] == KINDS.index('own')
print(json.dumps({'tokens': shard['tokens'][rows].tolist(),
                  'answers': shard['generated'][rows].tolist(),
                  'before': renderer.before_question('', first=True),
                  'behind': renderer.behind_question(), 'eos': renderer.eos_ids,
                  'between': renderer.before_question('', first=False),
                  'begun': [renderer.encode(begun) for begun in entries(OWN_STARTS)],
                  'most': MAX_QUESTION_TOKENS, 'shortest': ANSWER_TOKENS[0],
                  'longest': ANSWER_TOKENS[1]}))
"""


# The gradient of a position's loss, as it is and compiled, against automatic differentiation of its
# definition.
GRADIENT = """
import torch
from distill_measures import compare_logits
torch.manual_seed(1)
logits, target = torch.randn(7, 50, requires_grad=True), torch.randn(7, 50)
log_sum_exp = torch.cat((target, torch.randn(7, 9)), 1).logsumexp(-1)
p, q = (target - log_sum_exp[:, None]).exp(), logits.softmax(-1)
overlap = torch.minimum(p, q).sum(-1)
loss = (p * (p.log() - q.log())).sum(-1) + 0.7 * (1 - overlap)
loss.sum().backward()
for compare in (compare_logits, torch.compile(compare_logits, dynamic=True)):
    compared = compare(logits.detach(), target, log_sum_exp, 0.7)
    torch.testing.assert_close(compared.overlap, overlap.detach())
    torch.testing.assert_close(compared.loss, loss.detach())
    torch.testing.assert_close(compared.gradient, logits.grad)
assert logits.grad.abs().max() > 0.1
"""

# With a vocabulary that has words.
WORDS = """
import sys
from pathlib import Path
from tokenizers import Tokenizer, models
from distill_data import Renderer
renderer = Renderer(Path(sys.argv[1]))
vocabulary = {'\u0120seven': 2, '\u0120Seven': 0, '\u0120four': 1, 'seven': 3, '\u2581eight': 4,
              '\u0120eight2': 5, '\u0120seventh': 6}
renderer.tokenizer = Tokenizer(models.BPE(vocabulary, []))
assert renderer.words() == ['seven', 'eight', 'seventh'], renderer.words()
"""

# Training sees answers but for what they copy.
POSITIONS = """
import numpy as np, torch
from distill_data import Batches
from distill_draft import Trainer
trainer = Trainer.__new__(Trainer)
shard = {'tokens': np.arange(6)[None], 'generated': np.array([[0, 0, 1, 1, 0, 1]], bool),
         'copied': np.array([[0, 1, 0, 1, 0, 0]], bool)}
trainer.train, trainer.held_out = Batches([shard], 'cpu'), Batches([shard], 'cpu')
def wanted(batches):
    return trainer.positions(batches, np.array([0]))[1].int().tolist()
assert wanted(trainer.train) == [[0, 1, 0, 0, 1, 0]], wanted(trainer.train)
assert wanted(trainer.held_out) == [[0, 1, 1, 0, 1, 0]], wanted(trainer.held_out)
"""

# Of an exported head one without auxiliary states; and whether one has any.
WITHOUT_AUX = """
import json, sys
from pathlib import Path
from safetensors.torch import load_file, save_file
source, directory = Path(sys.argv[1]), Path(sys.argv[2])
directory.mkdir()
config = json.loads((source / 'config.json').read_text())
del config['aux_hidden_state_layers']
(directory / 'config.json').write_text(json.dumps(config))
tensors = load_file(source / 'model.safetensors')
del tensors['aux_proj.weight']
save_file(tensors, directory / 'model.safetensors')
"""
HAS_AUX = """
import sys
from pathlib import Path
from safetensors.torch import load_file
assert load_file(Path(sys.argv[1]) / 'model.safetensors')['aux_proj.weight'].abs().max() > 0
"""

# Writes a shard all of which, or nothing of which, is copied.
MARK = """
import sys, numpy as np
shard = dict(np.load(sys.argv[1]))
np.savez(sys.argv[2], **shard | {'copied': getattr(np, sys.argv[3])(shard['tokens'].shape, bool)})
"""

# Prints what is said in each row of a shard.
SAID = """
import json, sys, numpy as np
from pathlib import Path
from distill_data import Renderer
tokenizer = Renderer(Path(sys.argv[1])).tokenizer
print(json.dumps([tokenizer.decode(row.tolist(), skip_special_tokens=False)
                  for row in np.load(sys.argv[2])['tokens']]))
"""

# Which tokens follow four that they have followed before, the last time.
COPIED = """
import numpy as np
from distill_measures import copied
tokens = np.array([[1, 2, 3, 4, 5, 1, 2, 3, 4, 5, 6, 1, 2, 3, 4, 7, 1, 2, 3, 4, 5]])
assert np.flatnonzero(copied(tokens)).tolist() == [9], copied(tokens)
"""


class DistillDraft(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory()
        cls.root = Path(cls.temporary.name)
        cls.whole = cls.root / 'whole'
        cls.generated = run('generate', cls.whole, *GENERATE)
        cls.log = run('train', cls.whole, *STEPS)
        run('export', cls.whole, *TRAIN, '--output', cls.root / 'draft')

    @classmethod
    def tearDownClass(cls):
        cls.temporary.cleanup()

    def test_learns(self):
        begin, first, last = self.log[0], self.log[1], self.log[-1]
        self.assertEqual(begin['head_tokens'], 200)
        self.assertEqual(last['step'], begin['steps'])
        self.assertGreater(last['alpha_sampled']['all'], first['alpha_sampled']['all'])
        for line in self.log[1:]:
            for alpha in ('alpha_greedy', 'alpha_sampled'):
                self.assertTrue(0 < line[alpha]['all'] < 1, line)
                expected = line['expected'][alpha]
                a, c = line[alpha]['all'], begin['c']
                self.assertAlmostEqual(expected['speedup'], max(
                    sum(a ** i for i in range(k + 1)) / (1 + c * k) for k in range(16)), places=2)

    def test_parts(self):
        for code in (GRADIENT, POSITIONS, WORDS, COPIED):
            subprocess.run([PYTHON, '-c', code, CHECKPOINT], cwd=SOURCE / 'tools', check=True)

    def test_what_is_copied_is_told_apart(self):
        for share in ('zeros', 'ones'):
            work = self.root / f'copied_{share}'
            work.mkdir()
            (work / 'train-00000.npz').symlink_to(self.whole / 'train-00000.npz')
            subprocess.run([PYTHON, '-c', MARK, self.whole / 'held_out-00000.npz',
                            work / 'held_out-00000.npz', share], check=True)
            line = run('train', work, *TRAIN, '--train-tokens', '1')[-1]
            for alpha in ('alpha_greedy', 'alpha_sampled'):
                self.assertEqual(line['alpha_new'][alpha],
                                 line[alpha]['all'] if share == 'zeros' else None)

    def test_several_draw_text_for_one_run(self):
        """Shards by their numbers are the same, whoever draws them."""
        work = self.root / 'shared'
        few = [*SIZES, '--rows', '8', '--length', '48']
        run('generate', work, *few, '--shards', '1')
        lines = run('generate', work, *few, '--first-shard', '1', '--shards', '2')
        self.assertEqual([line['shard'] for line in lines], ['train-00001', 'train-00002'])
        for path in sorted(work.glob('*.npz')):
            self.assertEqual(path.read_bytes(), (self.whole / path.name).read_bytes(), path)
        result = subprocess.run(command('generate', work, '--first-shard', '-1'),
                                capture_output=True, text=True, timeout=LIMIT_S, check=False)
        self.assertEqual(result.returncode, 2)
        self.assertIn('--first-shard: is -1; expected 0 or more', result.stderr)

    def said(self, shard):
        return json.loads(subprocess.run([PYTHON, '-c', SAID, CHECKPOINT, shard], check=True,
                                         capture_output=True, text=True, timeout=LIMIT_S,
                                         cwd=SOURCE / 'tools').stdout)

    def test_conversations_like_excluded_prompts_are_dropped(self):
        before = self.said(self.whole / 'train-00000.npz')
        words = [re.findall(r'\w+', text.lower()) for text in before]
        run_of = words[0][:8]
        expected = [text for text, of in zip(before, words)
                    if all(of[i:i + len(run_of)] != run_of for i in range(len(of)))]
        self.assertLess(len(expected), len(before))
        self.assertTrue(expected)
        work, prompts = self.root / 'excluding', self.root / 'prompts.jsonl'
        prompts.write_text(json.dumps({'text': ' '.join(run_of)}) + '\n')
        lines = run('generate', work, *GENERATE, '--keep-hidden', '--exclude', prompts)
        dropped = {line['shard']: line['dropped'] for line in lines}
        self.assertEqual(dropped['train-00000'], len(before) - len(expected))
        self.assertEqual(self.said(work / 'train-00000.npz'), expected)
        self.assertEqual([line['dropped'] for line in self.generated], [0] * len(self.generated))
        sequences = sum(8 - count for shard, count in dropped.items() if shard.startswith('train'))
        begin = run('train', work, *TRAIN, '--train-tokens', '400')[0]
        self.assertEqual(begin['train_sequences'], sequences)
        others = self.root / 'other_prompts.jsonl'
        others.write_text(json.dumps({'text': 'Who wrote this, and why?'}) + '\n')
        for flags in ((), ('--exclude', prompts, '--exclude', others)):  # text of both kinds
            result = subprocess.run(command('generate', work, *GENERATE, *flags),
                                    capture_output=True, text=True, timeout=LIMIT_S, check=False)
            self.assertEqual(result.returncode, 1)
            self.assertIn("settings.json: holds", result.stderr)
            self.assertIn("'excluded'", result.stderr)

    def test_a_head_learns_and_drafts(self):
        work, output = self.root / 'kept_for_head', self.root / 'head'
        run('generate', work, *GENERATE, '--keep-hidden')
        head = [*TRAIN, '--kind', 'head']
        lines = run('train', work, *head, '--train-tokens', '6000', '--evaluate-every', '10')
        first, last = lines[1], lines[-1]
        self.assertGreater(last['alpha_sampled']['all'], first['alpha_sampled']['all'])
        self.assertEqual(len(last['alpha_by_depth']['alpha_sampled']), 3)
        run('export', work, *head, '--output', output)
        for name in ('settings.json', *(path.name for path in work.glob('*-0*'))):
            (self.root / 'further').mkdir(exist_ok=True)
            (self.root / 'further' / name).symlink_to(work / name)
        further = run('train', self.root / 'further', *head, '--start-from', output,
                      '--train-tokens', '1000', '--evaluate-every', '10')
        self.assertAlmostEqual(further[1]['alpha_sampled']['all'], last['alpha_sampled']['all'], 2)
        with self.subTest('begins once'):
            work = self.root / 'further'
            for start in ((), ('--start-from', output)):  # goes on, here to the same end
                again = run('train', work, *head, *start, '--train-tokens', '1000')
                self.assertEqual(again[0]['begin'], further[-1]['step'])
            run('export', work, *head, '--output', self.root / 'further_head')
            for begun, start in ((work, self.root / 'further_head'),
                                 (self.root / 'kept_for_head', output)):
                self.refuses(begun, [*head, '--start-from', start],
                             f'train-head.pt: did not begin with the head .*{start.name}, holds')
        result = subprocess.run(
            [PROGRAM, 'run', '--model', CHECKPOINT, '--draft-head', output, '--drafter', 'head',
             '--num-speculative-tokens', '2', '--raw', '--temperature', '1', '--max-tokens', '200',
             '--ignore-eos', '--format', 'json', 'abc'], capture_output=True, text=True, timeout=LIMIT_S, check=False)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertGreater(json.loads(result.stdout)['speculation']['num_accepted_draft_tokens'], 0)
        with self.subTest('learns to take auxiliary states'):
            work, without = self.root / 'from_without', self.root / 'without'
            work.mkdir()
            for path in (self.root / 'further').iterdir():
                if path.is_symlink():
                    (work / path.name).symlink_to(path.resolve())
            subprocess.run([PYTHON, '-c', WITHOUT_AUX, output, without], check=True,
                           timeout=LIMIT_S)
            lines = run('train', work, *head, '--start-from', without, '--train-tokens', '1000')
            # What was taken away was small.
            self.assertAlmostEqual(lines[1]['alpha_sampled']['all'], last['alpha_sampled']['all'], 2)
            run('export', work, *head, '--output', self.root / 'with')
            self.assertEqual((self.root / 'with' / 'config.json').read_bytes(),
                             (output / 'config.json').read_bytes())
            subprocess.run([PYTHON, '-c', HAS_AUX, self.root / 'with'], check=True,
                           timeout=LIMIT_S)
            config = json.loads((output / 'config.json').read_text())
            (without / 'config.json').write_text(
                json.dumps(config | {'aux_hidden_state_layers': [1]}))
            self.refuses(work, [*head, '--start-from', without],
                         r'aux_hidden_state_layers is \[1\]; expected \[0, 1\], or none')

    def test_counts_of_the_text_draft(self):
        counts = self.root / 'counts.safetensors'
        subprocess.run([PYTHON, SOURCE / 'tools' / 'count_tokens.py', '--work', self.whole,
                        '--target', CHECKPOINT, '--output', counts], check=True, timeout=LIMIT_S)
        for drafter in ('unigram', 'bigram'):
            result = subprocess.run(
                [PROGRAM, 'run', '--model', CHECKPOINT, '--draft-counts', counts, '--drafter',
                 drafter, '--num-speculative-tokens', '4', '--seed', '1', '--raw', '--temperature',
                 '1', '--max-tokens', '200', '--ignore-eos', '--format', 'json', 'abc'],
                capture_output=True, text=True, timeout=LIMIT_S, check=False)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertGreater(
                json.loads(result.stdout)['speculation']['num_accepted_draft_tokens'], 0)

    def test_goes_on_where_it_was_killed(self):
        work = self.root / 'killed'
        run('generate', work, *GENERATE)
        lost = work / 'train-00001.npz'
        before = lost.read_bytes()
        lost.unlink()
        self.assertEqual([line['shard'] for line in run('generate', work, *GENERATE)],
                         ['train-00001'])
        self.assertEqual(lost.read_bytes(), before)

        process = subprocess.Popen(command('train', work, *STEPS), stdout=subprocess.PIPE,
                                   text=True)
        with process:
            for line in process.stdout:
                if json.loads(line).get('step') == 20:  # so what was saved at step 10 is whole
                    break
            process.kill()
        log = run('train', work, *STEPS)
        self.assertGreaterEqual(log[0]['begin'], 10)
        self.assertEqual(timeless(log[-1]), timeless(self.log[-1]))
        run('export', work, *TRAIN, '--output', self.root / 'killed_draft')
        self.assertEqual(contents(self.root / 'killed_draft'), contents(self.root / 'draft'))

    def test_an_export_is_completed_from_the_target(self):
        output = self.root / 'trained'
        run('export', self.whole, *TRAIN, '--output', output, '--trained-only')
        said = subprocess.run([PROGRAM, 'inspect', CHECKPOINT], capture_output=True, text=True,
                              timeout=LIMIT_S, check=True).stdout
        target = json.loads((output / 'config.json').read_text())['target']
        self.assertRegex(said, rf'hash +{target}\n')
        self.assertEqual({*contents(self.root / 'draft')} - {*contents(output)},
                         {'model-00003-of-00003.safetensors', 'tokenizer.json',
                          'tokenizer_config.json', 'generation_config.json'})
        subprocess.run([SOURCE / 'tools' / 'complete_draft.py', output, '--target', CHECKPOINT,
                        '--output', self.root / 'completed'], check=True, stdout=subprocess.DEVNULL)
        self.assertEqual(contents(self.root / 'completed'), contents(self.root / 'draft'))

    def test_kept_states_teach_the_same(self):
        """Rounded to bf16, so nearly."""
        work = self.root / 'kept'
        run('generate', work, *GENERATE, '--keep-hidden')
        last, expected = run('train', work, *STEPS)[-1], self.log[-1]
        self.assertAlmostEqual(last['loss'], expected['loss'], delta=0.01)
        self.assertAlmostEqual(last['alpha_sampled']['all'], expected['alpha_sampled']['all'],
                               delta=0.005)

    def refuses(self, work, flags, part):
        result = subprocess.run(command('train', work, *flags), capture_output=True, text=True,
                                timeout=LIMIT_S, check=False)
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertRegex(result.stderr, f'^distill_draft: .*{part}')
        self.assertEqual(result.stderr.count('\n'), 1, result.stderr)

    def test_refuses_what_does_not_fit(self):
        for flags, part in ((['--layers', '2'], '--layers'), (['--seed', '1'], 'seed'),
                            (['--head-tokens', '199'], 'has 200 tokens; expected --head-tokens'),
                            (['--work', self.root / 'nothing'], 'no shards')):
            with self.subTest(part):
                self.refuses(self.whole, [*TRAIN, *flags], part)

    def test_the_target_asks_itself(self):
        """Behind the template's words, and sometimes the user's first, it speaks for the user, so
        long and no longer, then for itself, no longer than wanted either; what the user says is no
        answer, nor is the end of one that was cut."""
        target = self.root / 'with_template'
        target.mkdir()
        for file in CHECKPOINT.iterdir():
            (target / file.name).symlink_to(file)
        path = target / 'tokenizer_config.json'
        config = json.loads(path.read_text())
        path.unlink()
        path.write_text(json.dumps(config | {'chat_template': TEMPLATE}))
        said = json.loads(subprocess.run([PYTHON, '-c', OWN_ROWS, target], cwd=SOURCE / 'tools',
                                         check=True, capture_output=True, text=True).stdout)
        self.assertGreater(len(said['tokens']), 2)
        starts, cut = set(), 0
        most = max(map(len, said['begun'])) + said['most']
        for tokens, answers in zip(said['tokens'], said['answers']):
            at, before = 0, said['before']
            while at + len(before) + most + len(said['behind']) + 1 < len(tokens):
                self.assertEqual(tokens[at:at + len(before)], before)
                at += len(before)
                end = next(i for i in range(at, len(tokens)) if tokens[i] in said['eos'])
                begun = max((start for start in said['begun']
                             if tokens[at:at + len(start)] == start), key=len)
                starts.add(tuple(begun))
                self.assertLessEqual(end - at, len(begun) + said['most'])
                self.assertEqual(tokens[end:end + len(said['behind'])], said['behind'])
                first = end + len(said['behind'])
                self.assertFalse(any(answers[at:first]))
                end = next((i for i in range(first, len(tokens)) if tokens[i] in said['eos']),
                           len(tokens))
                self.assertTrue(all(answers[first:end]))
                self.assertLessEqual(end - first, said['longest'])
                if end < len(tokens) and not answers[end]:  # cut there
                    self.assertGreaterEqual(end - first, said['shortest'])
                    cut += 1
                at = end + 1
                before = said['between']
        self.assertGreater(len(starts), 2)
        self.assertIn((), starts)
        self.assertGreater(cut, 2)

    def test_the_server_takes_the_draft(self):
        draft = self.root / 'draft'
        said = subprocess.run([PROGRAM, 'inspect', draft], capture_output=True,
                              text=True, timeout=LIMIT_S, check=True).stdout
        self.assertRegex(said, 'trimmed head +200 tokens')
        server = subprocess.Popen(
            ['setpriv', '--pdeathsig', 'KILL', PROGRAM, 'serve', '--model', CHECKPOINT, '--draft',
             draft, '--port', '0'], stderr=subprocess.PIPE, text=True)
        try:
            port = next(found[1] for line in server.stderr
                        if (found := re.search(r'listening on 127\.0\.0\.1:(\d+)', line)))

            def answer(*flags):
                result = subprocess.run(
                    [PROGRAM, 'generate', '--port', port, '--input-ids', '7,8,9', '--max-tokens',
                     '60', '--ignore-eos', '--temperature', '0', '--format', 'json', *flags],
                    capture_output=True, text=True, timeout=LIMIT_S, check=True)
                return json.loads(result.stdout)

            plain = answer('--mode', 'off')
            drafted = answer('--drafter', 'model', '--num-speculative-tokens', '3')
            self.assertEqual(drafted['token_ids'], plain['token_ids'])
            self.assertGreater(drafted['speculation']['num_accepted_draft_tokens'], 0)
        finally:
            server.terminate()
            server.communicate(timeout=LIMIT_S)


if __name__ == '__main__':
    unittest.main(argv=[sys.argv[0], *sys.argv[4:]])

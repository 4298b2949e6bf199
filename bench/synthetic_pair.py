"""A pair of models of any GPT-2 shapes whose agreement is chosen: true costs, synthetic acceptance.

Weights are random, but what the layers add is too small to matter, and each position's embedding
points at the token that is to follow there. So the target's greedy text is one known text, by
position, whatever the prompt; and the draft's differs from it at random positions.
"""

import hashlib
import shutil
import sys
from pathlib import Path

import numpy as np

from page import ROOT

sys.path.append(str(ROOT / 'tools'))

from checkpoint_files import Tensor, write_json, write_safetensors  # noqa: E402
from make_checkpoint import (GPT2_DEFAULTS, GPT2_TYPE, gpt2_tensors, write_tokenizer)  # noqa: E402

LAYERS_SHARE = 1e-3  # of what a layer adds to the residual in a random GPT-2
POSITION_SHARE = 8  # of the following token's embedding; the last token's own counts once


def texts(vocab_size, num_positions, agreement, seed):
    """The token that follows each position: the target's, and the draft's."""
    random = np.random.default_rng(seed)
    target = random.integers(1, vocab_size, num_positions)  # 0 ends a text
    other = 1 + (target - 1 + random.integers(1, vocab_size - 1, num_positions)) % (vocab_size - 1)
    return target, np.where(random.random(num_positions) < agreement, target, other)


def write_model(directory, shape, text, seed):
    """A checkpoint of a GPT-2 that says text[p] behind position p. shape: fields of config.json."""
    config = GPT2_DEFAULTS | {'model_type': GPT2_TYPE} | shape
    tensors = {tensor.name: tensor for tensor in gpt2_tensors(config, seed)}

    def scaled(values, factor):
        return lambda: values() * np.float32(factor)

    for name, tensor in tensors.items():
        if '.c_proj.' in name:
            tensors[name] = tensor._replace(values=scaled(tensor.values, LAYERS_SHARE))
    tokens, positions = tensors['transformer.wte.weight'], tensors['transformer.wpe.weight']
    tensors[positions.name] = Tensor(positions.name, positions.shape,
                                     lambda: tokens.values()[text] * np.float32(POSITION_SHARE))
    directory.mkdir(parents=True)
    write_json(directory / 'config.json', config)
    write_tokenizer(directory, config)
    write_safetensors(directory / 'model.safetensors', list(tensors.values()))


def make_pair(directory, target_shape, draft_shape, agreement, seed=0):
    """(target, draft): directories of checkpoints, made where just these are not there yet."""
    asked = repr((target_shape, draft_shape, agreement, seed))
    pair = Path(directory) / hashlib.sha256(asked.encode()).hexdigest()[:12]
    made = (pair / 'target', pair / 'draft')
    said = texts(target_shape['vocab_size'], target_shape['n_positions'], agreement, seed)
    for path, shape, text in zip(made, (target_shape, draft_shape), said):
        if not path.exists():
            partial = path.with_name(path.name + '.partial')
            shutil.rmtree(partial, ignore_errors=True)  # of a run that was cut off
            write_model(partial, shape, text, seed)
            partial.rename(path)
    return made

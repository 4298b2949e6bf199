#!/usr/bin/env python3
"""Makes a random checkpoint of a given shape, for tests and benches: a Llama, (model_type gpt2) a
GPT-2, or (model_type outrider_draft_head) a draft head.

    python3 tools/make_checkpoint.py --shape FILE.json --output DIR [--seed N]

A shape file holds fields of config.json and, beside them, num_files (default 1) and digest: what
this program must print for seed 0 (it fails where it does not). Bits depend on shape and seed
alone: uniform numbers from PCG64 keyed by (seed, tensor name), scaled in float32.

The scales make the logits of a language model: neither uniform nor one-hot.
"""

import argparse
import hashlib
import itertools
import json
import math
import string
import sys
from pathlib import Path

import numpy as np

from checkpoint_files import (Tensor, byte_level_tokenizer, write_json, write_safetensors,
                              write_sharded_safetensors)

EOS_TOKEN = "<|endoftext|>"
EOS_ID = 0

CONFIG_DEFAULTS = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "rms_norm_eps": 1e-05,
    "rope_theta": 10000.0,
    "rope_scaling": None,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "torch_dtype": "bfloat16",
    "bos_token_id": EOS_ID,
    "eos_token_id": EOS_ID,
    "pad_token_id": EOS_ID,
}
REQUIRED = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
            "num_attention_heads", "num_key_value_heads", "head_dim")

GPT2_TYPE = "gpt2"
GPT2_DEFAULTS = {
    "architectures": ["GPT2LMHeadModel"],
    "model_type": GPT2_TYPE,
    "n_inner": None,
    "n_positions": 1024,
    "layer_norm_epsilon": 1e-05,
    "activation_function": "gelu_new",
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "bos_token_id": EOS_ID,
    "eos_token_id": EOS_ID,
    "pad_token_id": EOS_ID,
}
GPT2_REQUIRED = ("vocab_size", "n_embd", "n_layer", "n_head")

HEAD_TYPE = "outrider_draft_head"
HEAD_DEFAULTS = {"model_type": HEAD_TYPE, "rms_norm_eps": 1e-05}
HEAD_REQUIRED = ("vocab_size", "hidden_size", "intermediate_size")
AUX_LAYERS = "aux_hidden_state_layers"
# Defaults, and the fields that a shape must have, by model_type; the rest are Llamas.
KINDS = {GPT2_TYPE: (GPT2_DEFAULTS, GPT2_REQUIRED), HEAD_TYPE: (HEAD_DEFAULTS, HEAD_REQUIRED)}


class ShapeError(Exception):
    """The shape file cannot be used; the message is one line."""


def load_shape(path: Path) -> tuple[dict, int, str | None]:
    """Returns config.json's value, the number of weight files, and the digest or None."""
    shape = json.loads(path.read_text())
    num_files, digest = shape.pop("num_files", 1), shape.pop("digest", None)
    kind = shape.get("model_type")
    defaults, required = KINDS.get(kind, (CONFIG_DEFAULTS, REQUIRED))
    for key in required:
        if not isinstance(shape.get(key), int) or shape[key] < 1:
            raise ShapeError(f"{key} is {shape.get(key)!r}; expected a positive integer")
    optional = {"draft_token_ids"} | ({AUX_LAYERS} if kind == HEAD_TYPE else set())
    for key in shape.keys() - defaults.keys() - {*required} - optional:
        raise ShapeError(f"{key} is not a field of a shape")
    if kind in KINDS:
        if kind == GPT2_TYPE and shape["n_embd"] % (2 * shape["n_head"]) != 0:
            raise ShapeError("n_embd is not n_head times an even number")
        return {**defaults, **shape}, num_files, digest
    if shape["head_dim"] % 2 != 0:
        raise ShapeError(f"head_dim is {shape['head_dim']}; expected an even number")
    if shape["num_attention_heads"] % shape["num_key_value_heads"] != 0:
        raise ShapeError("num_attention_heads is not a multiple of num_key_value_heads")
    return {**defaults, **shape}, num_files, digest


def random_tensor(seed: int, name: str, shape: tuple[int, ...], deviation: float,
                  mean: float = 0.0) -> Tensor:
    """Uniform with the given mean and standard deviation."""

    def values() -> np.ndarray:
        key = int.from_bytes(hashlib.sha256(name.encode()).digest()[:16], "little")
        generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, key])))
        x = generator.random(shape, dtype=np.float32)
        x -= np.float32(0.5)
        x *= np.float32(deviation * math.sqrt(12.0))
        if mean != 0.0:
            x += np.float32(mean)
        return x

    return Tensor(name, shape, values)


def llama_tensors(config: dict, seed: int) -> list[Tensor]:
    vocab, hidden, ffn = config["vocab_size"], config["hidden_size"], config["intermediate_size"]
    num_layers = config["num_hidden_layers"]
    q_rows = config["num_attention_heads"] * config["head_dim"]
    kv_rows = config["num_key_value_heads"] * config["head_dim"]
    tensors = []

    def add(name: str, shape: tuple[int, ...], deviation: float, mean: float = 0.0) -> None:
        tensors.append(random_tensor(seed, name, shape, deviation, mean))

    # V independent Gaussian logits condense on a single token once their deviation passes
    # sqrt(2 ln V) (the random energy model); three quarters of that leaves the best token a
    # probability of about 0.05 to 0.5 for any V. Rows of the head have this norm.
    logit_deviation = 0.75 * math.sqrt(2.0 * math.log(vocab))
    head_deviation = logit_deviation / math.sqrt(hidden)
    # With tied embeddings a token's own embedding must not stand out of the final state, or each
    # token predicts itself: the layers together add sqrt(hidden) times its size.
    branch_deviation = logit_deviation / math.sqrt(2.0 * num_layers)
    unit = 1.0 / math.sqrt(hidden)  # a normed input of deviation 1 gives an output of deviation 1

    add("model.embed_tokens.weight", (vocab, hidden), head_deviation)
    for layer in range(num_layers):
        prefix = f"model.layers.{layer}."
        add(prefix + "input_layernorm.weight", (hidden,), 0.1, mean=1.0)
        # Scores of deviation 2: attention that picks some positions over others.
        for name, shape, deviation in (
                ("q_proj", (q_rows, hidden), math.sqrt(2.0) * unit),
                ("k_proj", (kv_rows, hidden), math.sqrt(2.0) * unit),
                ("v_proj", (kv_rows, hidden), unit),
                # averaging over positions halves the values' deviation, or about that
                ("o_proj", (hidden, q_rows), 2.0 * branch_deviation / math.sqrt(q_rows))):
            add(f"{prefix}self_attn.{name}.weight", shape, deviation)
            if config["attention_bias"]:
                add(f"{prefix}self_attn.{name}.bias", shape[:1], 0.2)
        add(prefix + "post_attention_layernorm.weight", (hidden,), 0.1, mean=1.0)
        for name, shape, deviation in (
                ("gate_proj", (ffn, hidden), unit),
                ("up_proj", (ffn, hidden), unit),
                # silu(x) y of unit Gaussians has deviation 0.6
                ("down_proj", (hidden, ffn), branch_deviation / (0.6 * math.sqrt(ffn)))):
            add(f"{prefix}mlp.{name}.weight", shape, deviation)
            if config["mlp_bias"]:
                add(f"{prefix}mlp.{name}.bias", shape[:1], 0.2)
    add("model.norm.weight", (hidden,), 0.1, mean=1.0)
    if not config["tie_word_embeddings"]:
        rows = len(config.get("draft_token_ids", range(vocab)))
        add("lm_head.weight", (rows, hidden), head_deviation)
    return tensors


def gpt2_tensors(config: dict, seed: int) -> list[Tensor]:
    """Scales as llama_tensors has them; matrices are inputs by outputs."""
    vocab, hidden, num_layers = config["vocab_size"], config["n_embd"], config["n_layer"]
    ffn = config["n_inner"] or 4 * hidden
    tensors = []

    def add(name: str, shape: tuple[int, ...], deviation: float, mean: float = 0.0) -> None:
        tensors.append(random_tensor(seed, name, shape, deviation, mean))

    def add_norm(name: str) -> None:
        add(name + ".weight", (hidden,), 0.1, mean=1.0)
        add(name + ".bias", (hidden,), 0.1)

    def add_linear(name: str, shape: tuple[int, int], deviation: float) -> None:
        add(name + ".weight", shape, deviation)
        add(name + ".bias", shape[1:], 0.2)

    logit_deviation = 0.75 * math.sqrt(2.0 * math.log(vocab))
    head_deviation = logit_deviation / math.sqrt(hidden)
    branch_deviation = logit_deviation / math.sqrt(2.0 * num_layers)
    unit = 1.0 / math.sqrt(hidden)

    add("transformer.wte.weight", (vocab, hidden), head_deviation)
    # Positions as large as tokens: both count in the first scores.
    add("transformer.wpe.weight", (config["n_positions"], hidden), head_deviation)
    for layer in range(num_layers):
        prefix = f"transformer.h.{layer}."
        add_norm(prefix + "ln_1")
        add_linear(prefix + "attn.c_attn", (hidden, 3 * hidden), math.sqrt(2.0) * unit)
        add_linear(prefix + "attn.c_proj", (hidden, hidden),
                   math.sqrt(2.0) * branch_deviation / math.sqrt(hidden))
        add_norm(prefix + "ln_2")
        add_linear(prefix + "mlp.c_fc", (hidden, ffn), unit)
        # gelu of a unit Gaussian has deviation 0.6
        add_linear(prefix + "mlp.c_proj", (ffn, hidden), branch_deviation / (0.6 * math.sqrt(ffn)))
    add_norm("transformer.ln_f")
    if not config["tie_word_embeddings"]:
        add("lm_head.weight", (vocab, hidden), head_deviation)
    return tensors


def head_tensors(config: dict, seed: int) -> list[Tensor]:
    hidden, ffn = config["hidden_size"], config["intermediate_size"]
    unit = 1.0 / math.sqrt(hidden)
    aux = len(config.get(AUX_LAYERS, ())) * hidden
    return [random_tensor(seed, name + ".weight", shape, deviation, mean)
            for name, shape, deviation, mean in (
                *([("aux_proj", (hidden, aux), 1.0 / math.sqrt(aux), 0.0)] if aux else []),
                ("embed_norm", (hidden,), 0.1, 1.0),
                ("embed_proj", (hidden, hidden), unit, 0.0),
                ("state_proj", (hidden, hidden), unit, 0.0),
                ("ffn_norm", (hidden,), 0.1, 1.0),
                ("gate_proj", (ffn, hidden), unit, 0.0),
                ("up_proj", (ffn, hidden), unit, 0.0),
                ("down_proj", (hidden, ffn), 1.0 / (0.6 * math.sqrt(ffn)), 0.0),
                ("norm", (hidden,), 0.1, 1.0))]


def byte_alphabet() -> list[str]:
    """GPT-2's printable character for each byte 0 … 255."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = iter(range(0x100, 0x200))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


def tokenizer(vocab_size: int) -> dict[str, object]:
    """EOS, then every byte, then merged runs of two, three and four lower-case letters.

    A vocabulary too small for the bytes has single characters alone, and no way to say the rest."""
    alphabet = byte_alphabet()
    letters = string.ascii_lowercase
    merges: list[str] = []
    if vocab_size > 256:
        pairs = [a + b for a in letters for b in letters]
        merges = [f"{first} {second}" for first, second in itertools.islice(
            itertools.chain(itertools.product(letters, letters), itertools.product(pairs, letters),
                            itertools.product(pairs, pairs)), vocab_size - 257)]
        tokens = [EOS_TOKEN, *alphabet, *(merge.replace(" ", "") for merge in merges)]
    else:
        text = letters + string.digits + " \n" + string.punctuation + string.ascii_uppercase
        tokens = [EOS_TOKEN, *(alphabet[ord(c)] for c in text)][:vocab_size]
    if len(tokens) != vocab_size:
        raise ShapeError(f"vocab_size is {vocab_size}; expected at most 97, or 257 to 475485")
    vocab = {token: index for index, token in enumerate(tokens)}
    return byte_level_tokenizer(vocab, merges, {EOS_TOKEN: EOS_ID})


def write_tokenizer(directory: Path, config: dict) -> None:
    write_json(directory / "tokenizer.json", tokenizer(config["vocab_size"]))
    write_json(directory / "tokenizer_config.json", {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": config.get("n_positions") or config["max_position_embeddings"],
        "clean_up_tokenization_spaces": False,
        "bos_token": EOS_TOKEN,
        "eos_token": EOS_TOKEN,
    })
    write_json(directory / "generation_config.json",
               {key: EOS_ID for key in ("bos_token_id", "eos_token_id", "pad_token_id")})


def digest_of(directory: Path) -> str:
    """SHA-256 over the names and SHA-256s of all files, in order of name."""
    total = hashlib.sha256()
    for path in sorted(directory.iterdir()):
        with open(path, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        total.update(f"{digest}  {path.name}\n".encode())
    return total.hexdigest()


def make(shape_path: Path, directory: Path, seed: int) -> str:
    """Writes the checkpoint into a directory that is new or empty; returns its digest."""
    config, num_files, expected = load_shape(shape_path)
    directory.mkdir(parents=True, exist_ok=True)
    if any(directory.iterdir()):
        raise ShapeError(f"{directory} is not empty")
    write_json(directory / "config.json", config)
    if config["model_type"] == HEAD_TYPE:
        tensors = head_tensors(config, seed)
    else:
        write_tokenizer(directory, config)
        make_tensors = gpt2_tensors if config["model_type"] == GPT2_TYPE else llama_tensors
        tensors = make_tensors(config, seed)
    if num_files == 1:
        write_safetensors(directory / "model.safetensors", tensors)
    else:
        write_sharded_safetensors(directory, tensors, num_files)
    digest = digest_of(directory)
    if seed == 0 and expected is not None and digest != expected:
        raise ShapeError(f"the digest of what was made is {digest}, the shape says {expected}: "
                         f"is this the NumPy of tools/requirements.txt?")
    return digest


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", type=Path, required=True, metavar="FILE.json")
    parser.add_argument("--output", type=Path, required=True, metavar="DIR",
                        help="new or empty")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    try:
        print(make(arguments.shape, arguments.output, arguments.seed))
    except (ShapeError, ValueError, OSError) as error:
        print(f"make_checkpoint: {arguments.shape}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

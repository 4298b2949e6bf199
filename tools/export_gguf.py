#!/usr/bin/env python3
"""Writes a Hugging Face Llama checkpoint of bf16 weights as GGUF, for programs that read that.

    python3 tools/export_gguf.py MODEL_DIR OUTPUT.gguf

The inverse of convert_gguf.py: matrices stay bf16 bit for bit; norms become float32, which holds
them exactly. One model.safetensors and SmolLM2's tokenizer; anything else is refused by name.
"""

import argparse
import json
import os
import struct
import sys
from pathlib import Path

import gguf
import numpy as np

from convert_gguf import ConversionError, expected_tensors

CONFIG_KEYS = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
               "num_attention_heads", "num_key_value_heads", "rms_norm_eps", "rope_theta",
               "max_position_embeddings", "tie_word_embeddings", "bos_token_id", "eos_token_id")


def read_json(path: Path) -> dict:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConversionError(f"{path.name}: not readable as JSON ({error})") from error


def read_config(directory: Path) -> dict:
    config = read_json(directory / "config.json")
    if config.get("model_type") != "llama":
        raise ConversionError(f"config.json: model_type is {config.get('model_type')!r}; "
                              "expected 'llama'")
    for name in CONFIG_KEYS:
        if name not in config:
            raise ConversionError(f"config.json: {name} is missing")
    for name in ("rope_scaling", "attention_bias", "mlp_bias"):
        if config.get(name):
            raise ConversionError(f"config.json: {name} is set, which is not exported")
    config.setdefault("head_dim", config["hidden_size"] // config["num_attention_heads"])
    return config


def read_safetensors(path: Path) -> dict[str, np.ndarray]:
    """Name -> bf16 bits as uint16, in the tensor's shape, mapped from the file."""
    try:
        with open(path, "rb") as file:
            size = struct.unpack("<Q", file.read(8))[0]
            header = json.loads(file.read(size))
        data = np.memmap(path, dtype=np.uint8, mode="r", offset=8 + size)
    except (OSError, struct.error, ValueError) as error:
        raise ConversionError(f"{path.name}: not readable as safetensors ({error})") from error
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in header.items():
        try:
            if entry["dtype"] != "BF16":
                raise ConversionError(f"tensor {name} has type {entry['dtype']}; expected BF16")
            begin, end = entry["data_offsets"]
            tensors[name] = data[begin:end].view("<u2").reshape(entry["shape"])
        except (ValueError, KeyError, TypeError) as error:
            raise ConversionError(f"{path.name}: tensor {name}: {error}") from error
    return tensors


def permute(weight: np.ndarray, num_heads: int) -> np.ndarray:
    """GGUF's order of Q and K rows [rows, columns], where rotated pairs lie side by side: the
    inverse of convert_gguf's unpermute."""
    rows, columns = weight.shape
    return weight.reshape(num_heads, 2, -1, columns).swapaxes(1, 2).reshape(rows, columns)


def add_tensors(writer: gguf.GGUFWriter, config: dict, sources: dict[str, np.ndarray]) -> None:
    for name, (source, shape, permuted_heads) in expected_tensors(config).items():
        if source not in sources:
            raise ConversionError(f"tensor {source} is missing")
        bits = sources.pop(source)
        if bits.shape != shape:
            raise ConversionError(f"tensor {source} has shape {list(bits.shape)}, "
                                  f"config.json says {list(shape)}")
        if permuted_heads:
            bits = permute(bits, permuted_heads)
        if bits.ndim == 1:
            writer.add_tensor(name, (bits.astype(np.uint32) << 16).view(np.float32))
        else:
            writer.add_tensor(name, np.ascontiguousarray(bits).view(np.uint8),
                              raw_dtype=gguf.GGMLQuantizationType.BF16)
    for source in sources:
        raise ConversionError(f"tensor {source} is not one of a plain Llama's")


def add_tokenizer(writer: gguf.GGUFWriter, config: dict, directory: Path) -> None:
    tokenizer = read_json(directory / "tokenizer.json")
    settings = read_json(directory / "tokenizer_config.json")
    for name in ("unk_token", "chat_template"):
        if name not in settings:
            raise ConversionError(f"tokenizer_config.json: {name} is missing")
    for name in ("model", "added_tokens"):
        if name not in tokenizer:
            raise ConversionError(f"tokenizer.json: {name} is missing")
    splits = [part["type"] for part in
              (tokenizer.get("pre_tokenizer") or {}).get("pretokenizers", [])]
    if tokenizer["model"]["type"] != "BPE" or splits != ["Digits", "ByteLevel"]:
        raise ConversionError("tokenizer.json: expected byte-level BPE where each digit stands "
                              f"alone; found {tokenizer['model']['type']} behind {splits}")
    vocab = tokenizer["model"]["vocab"]
    special = {token["id"] for token in tokenizer["added_tokens"] if token["special"]}
    tokens = sorted(vocab, key=vocab.get)
    if [vocab[token] for token in tokens] != list(range(config["vocab_size"])):
        raise ConversionError("tokenizer.json: expected a token for each id below vocab_size "
                              f"({config['vocab_size']}), found {len(tokens)} tokens")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.CONTROL if index in special else gguf.TokenType.NORMAL
                            for index in range(len(tokens))])
    writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge)
                             for merge in tokenizer["model"]["merges"]])
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_pad_token_id(config.get("pad_token_id", config["eos_token_id"]))
    writer.add_unk_token_id(vocab[settings["unk_token"]])
    writer.add_add_bos_token(False)
    writer.add_chat_template(settings["chat_template"])


def export(directory: Path, path: Path) -> None:
    """Writes the checkpoint as a GGUF file, which must not exist.

    Throws ConversionError, whose message names the file, key or tensor at fault."""
    if path.exists():
        raise ConversionError(f"{path} is there already")
    config = read_config(directory)
    unfinished = path.with_name(path.name + ".part")
    writer = gguf.GGUFWriter(unfinished, "llama")
    writer.add_name(directory.name)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    add_tokenizer(writer, config, directory)
    add_tensors(writer, config, read_safetensors(directory / "model.safetensors"))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    os.replace(unfinished, path)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path, metavar="MODEL_DIR")
    parser.add_argument("output", type=Path, metavar="OUTPUT.gguf")
    arguments = parser.parse_args()
    try:
        export(arguments.model, arguments.output)
    except (ConversionError, OSError) as error:
        print(f"export_gguf: {arguments.model}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

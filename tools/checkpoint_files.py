"""Writes the files of a Hugging Face checkpoint: safetensors of bf16, tensor by tensor, and JSON.

The safetensors layout is short enough to write here, and writing it here keeps one tensor in memory
where the safetensors package wants all of them. The bytes depend on the arguments alone.
"""

import json
import struct
from pathlib import Path
from typing import Callable, Iterable, NamedTuple

import numpy as np

# Tensor data starts at a multiple of this: aligned vector loads from a mapped file.
ALIGNMENT_BYTES = 64

CHUNK_ELEMENTS = 1 << 22  # rounded at a time, so that the largest tensor is held once


class Tensor(NamedTuple):
    name: str
    shape: tuple[int, ...]
    values: Callable[[], np.ndarray]  # float32, of that shape; called once, when it is written


def bf16_bits(x: np.ndarray) -> np.ndarray:
    """Rounds finite float32 to the nearest bf16, ties to even; returns the bits as uint16."""
    bits = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32)
    return ((bits + np.uint32(0x7FFF) + ((bits >> 16) & np.uint32(1))) >> 16).astype("<u2")


def write_safetensors(path: Path, tensors: list[Tensor]) -> None:
    """Writes the tensors as bf16 in the order given. ValueError names a tensor at fault."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for tensor in tensors:
        begin, end = end, end + 2 * int(np.prod(tensor.shape, dtype=np.int64))
        header[tensor.name] = {"dtype": "BF16", "shape": tensor.shape, "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 8) % ALIGNMENT_BYTES)
    with open(path, "xb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors:
            values = tensor.values()
            if values.shape != tensor.shape:
                raise ValueError(f"{tensor.name} has shape {values.shape}, expected {tensor.shape}")
            flat = values.reshape(-1)
            for begin in range(0, flat.size, CHUNK_ELEMENTS):
                chunk = flat[begin:begin + CHUNK_ELEMENTS]
                if not np.isfinite(chunk).all():
                    raise ValueError(f"{tensor.name} holds a value that is not finite")
                file.write(bf16_bits(chunk).data)


def write_sharded_safetensors(directory: Path, tensors: list[Tensor], num_files: int) -> None:
    """Deals the tensors, in order, into num_files files of about equal size, with an index."""
    sizes = np.array([2 * np.prod(tensor.shape, dtype=np.int64) for tensor in tensors])
    middles = np.cumsum(sizes) - sizes / 2
    owners = (middles * num_files / sizes.sum()).astype(int)
    weight_map: dict[str, str] = {}
    for number in range(num_files):
        mine = [tensor for tensor, owner in zip(tensors, owners) if owner == number]
        name = f"model-{number + 1:05d}-of-{num_files:05d}.safetensors"
        write_safetensors(directory / name, mine)
        weight_map |= {tensor.name: name for tensor in mine}
    index = {"metadata": {"total_size": int(sizes.sum())}, "weight_map": weight_map}
    write_json(directory / "model.safetensors.index.json", index)


def write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def byte_level_tokenizer(vocab: dict[str, int], merges: Iterable[str],
                         special: dict[str, int]) -> dict[str, object]:
    """tokenizer.json of SmolLM2's kind: byte-level BPE where each digit stands alone.

    vocab, merges and special are in GPT-2's alphabet of bytes; special tokens are in vocab too."""
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
                  "use_regex": True}
    digits = {"type": "Digits", "individual_digits": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": index, "content": token, "single_word": False, "lstrip": False,
             "rstrip": False, "normalized": False, "special": True}
            for token, index in special.items()
        ],
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [digits, byte_level]},
        "post_processor": None,
        "decoder": {**byte_level, "add_prefix_space": True},
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
            "ignore_merges": False, "vocab": vocab, "merges": list(merges),
        },
    }

#!/usr/bin/env python3
"""Converts a Llama checkpoint from GGUF to a Hugging Face directory of bf16 weights.

    python3 tools/convert_gguf.py INPUT.gguf OUTPUT_DIR

Whatever types the file holds are dequantised to float32 and rounded once to bf16. The output is
deterministic bit for bit, so its digests can be committed. Tensors, tokenizers and architectures
that are not known are refused by name, never skipped.
"""

import argparse
import sys
from pathlib import Path

import gguf
import numpy as np

from checkpoint_files import Tensor, byte_level_tokenizer, write_json, write_safetensors

# GGUF name within blk.N -> Hugging Face name within model.layers.N, in the order of a forward pass.
LAYER_TENSORS = {
    "attn_norm.weight": "input_layernorm.weight",
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
}


class ConversionError(Exception):
    """The file cannot be converted; the message is one line."""


class Reader(gguf.GGUFReader):
    """Names the tensor that a truncated file cuts off, and the metadata key that it lacks."""

    def _build_tensors(self, start_offs, fields):
        for field in fields:
            _, _, _, dims, raw_type, offset = field.parts
            block_size, block_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(raw_type[0])]
            elements = 1
            for dim in dims.tolist():  # Python's integers: a hostile shape cannot overflow
                elements *= dim
            end = int(start_offs) + int(offset[0]) + elements // block_size * block_bytes
            if elements % block_size != 0 or dims[0] % block_size != 0:
                raise ConversionError(f"tensor {field.name} has {dims.tolist()} elements, expected "
                                      f"rows of a multiple of {block_size}")
            if end > len(self.data):
                raise ConversionError(f"tensor {field.name} ends at byte {end}, "
                                      f"the file at {len(self.data)}")
        super()._build_tensors(start_offs, fields)

    def value(self, key: str, default=None):
        field = self.get_field(key)
        if field is None and default is None:
            raise ConversionError(f"metadata key {key} is missing")
        return default if field is None else field.contents()


def open_gguf(path: Path) -> Reader:
    try:
        return Reader(path)
    except (ValueError, IndexError, KeyError, OverflowError, UnicodeDecodeError) as error:
        # The reader meets a damaged header as an index or a cast that fails.
        raise ConversionError(f"not a readable GGUF file ({error})") from error


def shortest(x: float) -> float:
    """The shortest decimal that is the same float32: 1e-05, not 9.999999747378752e-06."""
    return float(str(np.float32(x)))


def config_of(reader: Reader) -> dict[str, object]:
    architecture = reader.value("general.architecture")
    if architecture != "llama":
        raise ConversionError(f"general.architecture is {architecture!r}; expected 'llama'")
    hidden = reader.value("llama.embedding_length")
    num_heads = reader.value("llama.attention.head_count")
    head_dim = reader.value("llama.attention.key_length", hidden // num_heads)
    if reader.value("llama.rope.dimension_count", head_dim) != head_dim:
        raise ConversionError("llama.rope.dimension_count is not the head's size: "
                              "partial rotation is not converted")
    if reader.get_field("llama.rope.scaling.type") is not None:
        raise ConversionError("llama.rope.scaling.type is set: scaled rotation is not converted")
    names = {tensor.name for tensor in reader.tensors}
    eos = reader.value("tokenizer.ggml.eos_token_id")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": len(reader.value("tokenizer.ggml.tokens")),
        "hidden_size": hidden,
        "intermediate_size": reader.value("llama.feed_forward_length"),
        "num_hidden_layers": reader.value("llama.block_count"),
        "num_attention_heads": num_heads,
        "num_key_value_heads": reader.value("llama.attention.head_count_kv", num_heads),
        "head_dim": head_dim,
        "rms_norm_eps": shortest(reader.value("llama.attention.layer_norm_rms_epsilon")),
        "rope_theta": shortest(reader.value("llama.rope.freq_base", 10000.0)),
        "rope_scaling": None,
        "max_position_embeddings": reader.value("llama.context_length"),
        "tie_word_embeddings": "output.weight" not in names,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "attention_dropout": 0.0,
        "initializer_range": 0.02,
        "use_cache": True,
        "torch_dtype": "bfloat16",
        "bos_token_id": reader.value("tokenizer.ggml.bos_token_id"),
        "eos_token_id": eos,
        "pad_token_id": reader.value("tokenizer.ggml.padding_token_id", eos),
    }


def expected_tensors(config: dict) -> dict[str, tuple[str, tuple[int, ...], int]]:
    """GGUF name -> (Hugging Face name, shape, heads whose rows are permuted; 0 where none are)."""
    vocab, hidden, ffn = config["vocab_size"], config["hidden_size"], config["intermediate_size"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    q_rows, kv_rows = heads * config["head_dim"], kv_heads * config["head_dim"]
    layer_shapes = {
        "attn_norm.weight": ((hidden,), 0),
        "attn_q.weight": ((q_rows, hidden), heads),
        "attn_k.weight": ((kv_rows, hidden), kv_heads),
        "attn_v.weight": ((kv_rows, hidden), 0),
        "attn_output.weight": ((hidden, q_rows), 0),
        "ffn_norm.weight": ((hidden,), 0),
        "ffn_gate.weight": ((ffn, hidden), 0),
        "ffn_up.weight": ((ffn, hidden), 0),
        "ffn_down.weight": ((hidden, ffn), 0),
    }
    expected = {"token_embd.weight": ("model.embed_tokens.weight", (vocab, hidden), 0)}
    for layer in range(config["num_hidden_layers"]):
        for name, (shape, permuted_heads) in layer_shapes.items():
            target = f"model.layers.{layer}.{LAYER_TENSORS[name]}"
            expected[f"blk.{layer}.{name}"] = (target, shape, permuted_heads)
    expected["output_norm.weight"] = ("model.norm.weight", (hidden,), 0)
    if not config["tie_word_embeddings"]:
        expected["output.weight"] = ("lm_head.weight", (vocab, hidden), 0)
    return expected


def unpermute(weight: np.ndarray, num_heads: int) -> np.ndarray:
    """Undoes GGUF's order of Q and K rows, where rotated pairs lie side by side.

    Within a head GGUF holds rows 0, d/2, 1, d/2 + 1, …; Hugging Face rotates rows i and i + d/2.
    """
    rows, columns = weight.shape
    return weight.reshape(num_heads, -1, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def convert_tensors(reader: Reader, config: dict) -> list[Tensor]:
    sources = {tensor.name: tensor for tensor in reader.tensors}
    expected = expected_tensors(config)
    for name in sources.keys() - expected.keys():
        raise ConversionError(f"tensor {name} is not one of a plain Llama's")
    result = []
    for name, (target, shape, permuted_heads) in expected.items():
        if name not in sources:
            raise ConversionError(f"tensor {name} is missing")
        source = sources[name]
        found = tuple(reversed(source.shape.tolist()))
        if found != shape:
            raise ConversionError(f"tensor {name} has shape {list(found)}, "
                                  f"the metadata says {list(shape)}")

        def values(source=source, permuted_heads=permuted_heads) -> np.ndarray:
            try:
                weight = gguf.dequantize(source.data, source.tensor_type).astype(np.float32)
            except NotImplementedError as error:
                raise ConversionError(f"tensor {source.name} has type {source.tensor_type.name}, "
                                      "which cannot be dequantised") from error
            return unpermute(weight, permuted_heads) if permuted_heads else weight

        result.append(Tensor(target, shape, values))
    return result


def tokenizer_files(reader: Reader, config: dict) -> dict[str, object]:
    """File name -> JSON value."""
    model, pre = reader.value("tokenizer.ggml.model"), reader.value("tokenizer.ggml.pre")
    if (model, pre) != ("gpt2", "smollm"):
        raise ConversionError(f"tokenizer.ggml.model is {model!r} with tokenizer.ggml.pre {pre!r}; "
                              "expected 'gpt2' with 'smollm'")
    if reader.value("tokenizer.ggml.add_bos_token", False):
        raise ConversionError("tokenizer.ggml.add_bos_token is set; expected a tokenizer that adds "
                              "no token")
    tokens = reader.value("tokenizer.ggml.tokens")
    control = gguf.TokenType.CONTROL
    special = {token: index for index, (token, kind)
               in enumerate(zip(tokens, reader.value("tokenizer.ggml.token_type")))
               if kind == control}
    vocab = {token: index for index, token in enumerate(tokens)}
    if len(vocab) != len(tokens):
        raise ConversionError("tokenizer.ggml.tokens holds the same token twice")
    tokenizer = byte_level_tokenizer(vocab, reader.value("tokenizer.ggml.merges"), special)
    return {
        "tokenizer.json": tokenizer,
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": config["max_position_embeddings"],
            "clean_up_tokenization_spaces": False,
            "bos_token": tokens[config["bos_token_id"]],
            "eos_token": tokens[config["eos_token_id"]],
            "pad_token": tokens[config["pad_token_id"]],
            "unk_token": tokens[reader.value("tokenizer.ggml.unknown_token_id")],
            "chat_template": reader.value("tokenizer.chat_template"),
        },
        "generation_config.json": {
            key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")
        },
    }


def convert(source: Path, directory: Path) -> None:
    """Writes the checkpoint into directory, which must exist and hold none of its files.

    Throws ConversionError, whose message names the tensor or key at fault."""
    reader = open_gguf(source)
    config = config_of(reader)
    files = {"config.json": config, **tokenizer_files(reader, config)}
    tensors = convert_tensors(reader, config)
    for name, value in files.items():
        write_json(directory / name, value)
    try:
        write_safetensors(directory / "model.safetensors", tensors)
    except ValueError as error:
        raise ConversionError(f"tensor {error}") from error


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("input", type=Path, metavar="INPUT.gguf")
    parser.add_argument("output", type=Path, metavar="OUTPUT_DIR")
    arguments = parser.parse_args()
    try:
        arguments.output.mkdir(parents=True, exist_ok=True)
        convert(arguments.input, arguments.output)
    except (ConversionError, OSError) as error:
        print(f"convert_gguf: {arguments.input}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

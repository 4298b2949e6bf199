"""A Llama in plain PyTorch, with the arithmetic of csrc/model: what enters a linear layer has the
compute dtype (bf16, as in the server, or float32), the residual stream is float32.
Reads and writes Hugging Face directories.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
import xxhash
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from complete_draft import EMBEDDING, INDEX, checkpoint_files

SUPPORTED = {"rope_scaling": None, "attention_bias": False, "mlp_bias": False, "hidden_act": "silu"}


class RecipeError(Exception):
    """The recipe cannot go on; the message is one line."""


@dataclass(frozen=True)
class Shape:
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    head_rows: int  # tokens that the LM head scores
    rope_theta: float
    rms_norm_eps: float

    @staticmethod
    def of(config: dict) -> "Shape":
        for field, expected in SUPPORTED.items():
            if config.get(field, expected) != expected:
                raise RecipeError(f"config.json: {field} is {config[field]!r}; expected "
                                  f"{expected!r}")
        hidden, heads = config["hidden_size"], config["num_attention_heads"]
        return Shape(config["vocab_size"], hidden, config["intermediate_size"],
                     config["num_hidden_layers"], heads, config["num_key_value_heads"],
                     config.get("head_dim") or hidden // heads, config["vocab_size"],
                     config["rope_theta"], config["rms_norm_eps"])

    def layer_parameters(self) -> int:
        q, kv = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        return self.hidden_size * (2 * q + 2 * kv + 3 * self.intermediate_size + 2)

    def read_each_pass(self) -> int:
        """Parameters that a pass over one row reads."""
        return self.num_layers * self.layer_parameters() + self.hidden_size * (self.head_rows + 1)


class Cache:
    """Keys and values of sequences that grow together, by layer [2, rows * kv_heads, room, dim].
    The room grows by a block of positions at a time: attention reads all of it, whole and
    contiguous, which is what makes its small products fast."""

    BLOCK = 64

    def __init__(self, shape: Shape, rows: int, like: Tensor) -> None:
        self.layers = [torch.zeros(2, rows * shape.num_kv_heads, 0, shape.head_dim,
                                   dtype=like.dtype, device=like.device)
                       for _ in range(shape.num_layers)]

    def reserve(self, positions: int) -> None:
        if positions > self.layers[0].shape[2]:
            self.layers = [F.pad(layer, (0, 0, 0, self.BLOCK)) for layer in self.layers]


class Layer(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        q, kv = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
        hidden, ffn = shape.hidden_size, shape.intermediate_size
        for name, size in (("input_layernorm", (hidden,)), ("q_proj", (q, hidden)),
                           ("k_proj", (kv, hidden)), ("v_proj", (kv, hidden)),
                           ("o_proj", (hidden, q)), ("post_attention_layernorm", (hidden,)),
                           ("gate_proj", (ffn, hidden)), ("up_proj", (ffn, hidden)),
                           ("down_proj", (hidden, ffn))):
            self.register_parameter(name, nn.Parameter(torch.empty(size)))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, dtype: torch.dtype,
                cached: Tensor | None, start: int) -> Tensor:
        """x: f32 [rows, positions, hidden]; cos, sin: [positions, head_dim / 2];
        cached: this layer's of a Cache, filled up to `start`."""
        shape = self.shape
        rows, positions, _ = x.shape
        normed = rms_norm(x, self.input_layernorm, shape.rms_norm_eps).to(dtype)

        def heads(weight: Tensor) -> Tensor:
            return F.linear(normed, weight.to(dtype)).view(
                rows, positions, -1, shape.head_dim).transpose(1, 2)

        q, k, v = heads(self.q_proj), heads(self.k_proj), heads(self.v_proj)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        if cached is None:
            repeats = shape.num_heads // shape.num_kv_heads
            mixed = F.scaled_dot_product_attention(q, k.repeat_interleave(repeats, 1),
                                                   v.repeat_interleave(repeats, 1), is_causal=True)
        else:
            keys, values = cached
            keys[:, start], values[:, start] = k.flatten(0, 2), v.flatten(0, 2)
            # One new position: the query heads of a group attend like rows of one head.
            grouped = q.reshape(len(keys), -1, shape.head_dim) * shape.head_dim**-0.5
            scores = torch.bmm(grouped, keys.transpose(1, 2)).float()
            scores[:, :, start + 1:] = -torch.inf
            mixed = torch.bmm(scores.softmax(-1).to(dtype), values)
            mixed = mixed.view(rows, shape.num_heads, 1, shape.head_dim)
        mixed = mixed.transpose(1, 2).reshape(rows, positions, -1)
        x = x + F.linear(mixed, self.o_proj.to(dtype)).float()
        normed = rms_norm(x, self.post_attention_layernorm, shape.rms_norm_eps).to(dtype)
        gate = F.linear(normed, self.gate_proj.to(dtype)).float()
        up = F.linear(normed, self.up_proj.to(dtype)).float()
        return x + F.linear((F.silu(gate) * up).to(dtype), self.down_proj.to(dtype)).float()


class Llama(nn.Module):
    """From tokens to what enters the LM head, and from there to logits."""

    def __init__(self, shape: Shape, dtype: torch.dtype, max_positions: int,
                 aux_layers: tuple[int, ...] = ()) -> None:
        """aux_layers: ascending, whose normed inputs are returned beside the final states."""
        super().__init__()
        self.shape, self.dtype, self.aux_layers = shape, dtype, aux_layers
        self.state_width = (1 + len(aux_layers)) * shape.hidden_size
        self.embed_tokens = nn.Parameter(torch.empty(shape.vocab_size, shape.hidden_size))
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.num_layers))
        self.norm = nn.Parameter(torch.empty(shape.hidden_size))
        self.lm_head = nn.Parameter(torch.empty(shape.head_rows, shape.hidden_size))
        half = torch.arange(0, shape.head_dim, 2).double() / shape.head_dim
        angles = torch.outer(torch.arange(max_positions).double(), shape.rope_theta ** -half)
        self.register_buffer("cos", angles.cos().float(), persistent=False)
        self.register_buffer("sin", angles.sin().float(), persistent=False)

    def forward(self, tokens: Tensor, cache: Cache | None = None, start: int = 0) -> Tensor:
        """tokens: [rows, positions], with a cache [rows, 1] at position `start`.
        Returns the normed final states and, behind each, the auxiliary ones, in the compute dtype
        [rows, positions, state_width]."""
        x = F.embedding(tokens, self.embed_tokens).float()
        end = start + tokens.shape[1]
        cos, sin = self.cos[start:end], self.sin[start:end]
        if cache is not None:
            cache.reserve(end)
        aux = []
        for i, layer in enumerate(self.layers):
            if i in self.aux_layers:
                aux.append(rms_norm(x, layer.input_layernorm, self.shape.rms_norm_eps))
            x = layer(x, cos, sin, self.dtype, None if cache is None else cache.layers[i], start)
        final = rms_norm(x, self.norm, self.shape.rms_norm_eps)
        return torch.cat([final, *aux], -1).to(self.dtype) if aux else final.to(self.dtype)

    def final(self, states: Tensor) -> Tensor:
        """Of what `forward` returns the final states."""
        return states[..., :self.shape.hidden_size]

    def logits(self, states: Tensor) -> Tensor:
        """f32 [..., head_rows], of what `forward` returns"""
        return F.linear(self.final(states), self.lm_head.to(self.dtype)).float()


def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + epsilon) * weight


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.float().chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).to(x.dtype)


def name_in_file(name: str) -> str:
    """Hugging Face's name of a parameter of Llama."""
    if name == "lm_head":
        return "lm_head.weight"
    for block, parts in (("self_attn.", "qkvo"), ("mlp.", ("gate", "up", "down"))):
        for part in parts:
            name = name.replace(f".{part}_proj", f".{block}{part}_proj")
    return f"model.{name}.weight"


def aux_layers_of(config: dict) -> tuple[int, ...]:
    """Layers of the target, a third and two thirds up, whose inputs a head takes."""
    layers = config["num_hidden_layers"]
    return tuple(sorted({layers // 3, 2 * layers // 3}))


def load_target(directory: Path, device: str, dtype: torch.dtype, max_positions: int,
                with_aux: bool) -> Llama:
    """The target, its parameters in the compute dtype."""
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    stored = {}
    for path in sorted(directory.glob("*.safetensors")):
        stored |= load_file(path)
    if config.get("tie_word_embeddings"):
        stored["lm_head.weight"] = stored[EMBEDDING]
    target = Llama(Shape.of(config), dtype, max_positions,
                   aux_layers_of(config) if with_aux else ())
    with torch.no_grad():
        for name, parameter in target.named_parameters():
            tensor = stored.get(name_in_file(name))
            if tensor is None or tensor.shape != parameter.shape:
                raise RecipeError(f"{directory}: tensor {name_in_file(name)} is "
                                  f"{'missing' if tensor is None else tuple(tensor.shape)}; "
                                  f"expected {tuple(parameter.shape)} as config.json says")
            parameter.copy_(tensor)
            parameter.data = parameter.data.to(dtype)
            parameter.requires_grad_(False)
    return target.to(device)


def checkpoint_hash(directory: Path) -> str:
    """What `outrider inspect` prints."""
    value = 0
    for path in checkpoint_files(directory):
        value = xxhash.xxh3_64_intdigest(path.read_bytes(), value)
    return f"{value:016x}"


# The files of a draft's checkpoint: what was trained, and what it shares with the target.
LAYERS, HEAD, EMBEDDING_FILE = (f"model-{number:05d}-of-00003.safetensors" for number in (1, 2, 3))


def save_trained(draft: Llama, token_ids: list[int], target_directory: Path,
                 directory: Path) -> None:
    """Writes what a draft does not share with its target: config.json, which names the target
    and the head's tokens, and the files of layers and head. complete_draft.py makes a checkpoint
    of it."""
    config = json.loads((target_directory / "config.json").read_text(encoding="utf-8"))
    config |= {"num_hidden_layers": draft.shape.num_layers, "tie_word_embeddings": False,
               "target": checkpoint_hash(target_directory)}
    directory.mkdir(parents=True, exist_ok=True)
    text = json.dumps(config, indent=2)[:-2]  # the ids in one line, behind the others
    text += f',\n  "draft_token_ids": {json.dumps(token_ids)}\n}}\n'
    (directory / "config.json").write_text(text, encoding="utf-8")
    files: dict[str, dict[str, Tensor]] = {LAYERS: {}, HEAD: {}}
    for name, parameter in draft.named_parameters():
        if name != "embed_tokens":
            tensor = parameter.detach().to("cpu", torch.bfloat16).contiguous()
            files[HEAD if name == "lm_head" else LAYERS][name_in_file(name)] = tensor
    for file, tensors in files.items():
        save_file(tensors, directory / file, metadata={"format": "pt"})
    weight_map = {name: file for file, tensors in files.items() for name in tensors}
    index = {"metadata": {}, "weight_map": weight_map | {EMBEDDING: EMBEDDING_FILE}}
    (directory / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")

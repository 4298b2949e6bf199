"""A draft head in plain PyTorch, with the arithmetic of csrc/model/draft_head.h: from the target's
last states and the next token to the state that the target will have there, scored by rows of the
target's own LM head. Reads and writes what `serve --draft-head` takes.
"""

import json
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from distill_llama import Llama, RecipeError, checkpoint_hash, rms_norm

WEIGHTS = "model.safetensors"  # of an exported head
AUX_LAYERS = "aux_hidden_state_layers"  # of its config.json


class DraftHead(nn.Module):
    def __init__(self, target: Llama, target_head: Tensor) -> None:
        """target_head: [head_rows, hidden], the rows that score; they are not trained."""
        super().__init__()
        hidden, ffn = target.shape.hidden_size, target.shape.intermediate_size
        self.dtype, self.epsilon = target.dtype, target.shape.rms_norm_eps
        self.aux_layers = target.aux_layers
        self.register_buffer("embed_tokens", target.embed_tokens.detach(), persistent=False)
        self.register_buffer("lm_head", target_head, persistent=False)

        def normal(rows: int, columns: int, scale: float) -> nn.Parameter:
            return nn.Parameter(torch.randn(rows, columns) * scale)

        self.embed_norm = nn.Parameter(torch.ones(hidden))
        self.embed_proj = normal(hidden, hidden, 0.02)
        self.state_proj = nn.Parameter(0.5 * torch.eye(hidden))
        self.aux_proj = nn.Parameter(torch.zeros(hidden, len(self.aux_layers) * hidden))
        self.ffn_norm = nn.Parameter(torch.ones(hidden))
        self.gate_proj = normal(ffn, hidden, 0.02)
        self.up_proj = normal(ffn, hidden, 0.02)
        self.down_proj = normal(hidden, ffn, 0.005)
        self.norm = nn.Parameter(target.norm.detach().float().clone())

    def linear(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.linear(x.to(self.dtype), weight.to(self.dtype)).float()

    def project(self, aux: Tensor) -> Tensor:
        """What the auxiliary states of a position [..., aux_layers * hidden] add to every guess
        that begins there [..., hidden]."""
        return self.linear(aux, self.aux_proj)

    def forward(self, states: Tensor, carried: Tensor, tokens: Tensor) -> Tensor:
        """states: [..., hidden], normed, at the position before each token; the guess of them at
        the tokens' own. carried: `project` of where the target's states were last known."""
        linear = self.linear
        embedded = F.embedding(tokens, self.embed_tokens).float()
        x = (linear(rms_norm(embedded, self.embed_norm, self.epsilon), self.embed_proj) +
             linear(states, self.state_proj) + carried)
        normed = rms_norm(x, self.ffn_norm, self.epsilon)
        gated = F.silu(linear(normed, self.gate_proj)) * linear(normed, self.up_proj)
        x = x + linear(gated, self.down_proj)
        return rms_norm(x, self.norm, self.epsilon).to(self.dtype)

    def read_each_pass(self) -> int:
        """Parameters that a pass over one row reads, but for what `project` reads once a step."""
        return (sum(p.numel() for p in self.parameters()) - self.aux_proj.numel() +
                self.lm_head.numel())


def load_head(head: DraftHead, directory: Path) -> None:
    """An exported head's weights, to be trained further. One that goes without auxiliary states
    learns to use them."""
    layers = json.loads((directory / "config.json").read_text(encoding="utf-8")).get(AUX_LAYERS)
    if layers not in (None, list(head.aux_layers)):
        raise RecipeError(f"{directory}/config.json: {AUX_LAYERS} is {layers}; expected "
                          f"{list(head.aux_layers)}, or none")
    stored = load_file(directory / WEIGHTS)
    with torch.no_grad():
        for name, parameter in head.named_parameters():
            if name != "aux_proj" or layers is not None:
                parameter.copy_(stored[f"{name}.weight"])


def save_head(head: DraftHead, token_ids: list[int], target_directory: Path,
              directory: Path) -> None:
    hidden, ffn = head.embed_proj.shape[0], head.gate_proj.shape[0]
    config = {"model_type": "outrider_draft_head", "target": checkpoint_hash(target_directory),
              "hidden_size": hidden, "intermediate_size": ffn,
              AUX_LAYERS: list(head.aux_layers),
              "vocab_size": head.embed_tokens.shape[0], "rms_norm_eps": head.epsilon}
    directory.mkdir(parents=True, exist_ok=True)
    text = json.dumps(config, indent=2)[:-2]  # the ids in one line, behind the others
    text += f',\n  "draft_token_ids": {json.dumps(token_ids)}\n}}\n'
    (directory / "config.json").write_text(text, encoding="utf-8")
    tensors = {f"{name}.weight": parameter.detach().to("cpu", torch.bfloat16).contiguous()
               for name, parameter in head.named_parameters()}
    save_file(tensors, directory / WEIGHTS, metadata={"format": "pt"})

"""What takes a draft's training steps, and how large they are."""

import math

from torch import nn, optim

WARM_UP = 0.02  # of all steps
LAST = 0.05  # rate of the last step over the highest


def make_optimizers(draft: nn.Module, device: str) -> list[optim.Optimizer]:
    """Muon (Jordan et al. 2024) for the matrices of layers, its updates as large as AdamW's (Liu et
    al. 2025); AdamW for the norms and for what scores tokens."""
    layers, others = [], []
    for name, parameter in draft.named_parameters():
        if parameter.requires_grad:
            matrix = parameter.ndim == 2 and name != "lm_head"
            (layers if matrix else others).append(parameter)
    return [optim.Muon(layers, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"),
            optim.AdamW(others, weight_decay=0.01, betas=(0.9, 0.95), fused=device == "cuda")]


def learning_rate(highest: float, step: int, num_steps: int) -> float:
    """Warm-up, then half a cosine."""
    warm = min(1.0, (step + 1) / max(1.0, WARM_UP * num_steps))
    falling = 0.5 * (1 + math.cos(math.pi * min(step / num_steps, 1.0)))
    return highest * warm * (LAST + (1 - LAST) * falling)

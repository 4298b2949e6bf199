"""How near a draft is to its target, what its acceptance is worth, and what copying from the
context would have had of it."""

from typing import Iterator, NamedTuple

import numpy as np
import torch

from distill_prompts import KINDS

MAX_DRAFT_TOKENS = 15
LOOKUP_TOKENS = 4  # of prompt lookup's longest match, and before a copied token


class Comparison(NamedTuple):
    overlap: torch.Tensor  # sum of min(p, q) [n]
    loss: torch.Tensor  # [n]
    gradient: torch.Tensor  # of each loss by that position's logits [n, head_rows]


def compare_logits(logits: torch.Tensor, target_logits: torch.Tensor, log_sum_exp: torch.Tensor,
                   tv_weight: float) -> Comparison:
    """q is the softmax of logits [n, head_rows]; p that of all of the target's logits, of which
    target_logits are the same rows and log_sum_exp [n] is the log of the sum of exponentials."""
    log_p = target_logits.float() - log_sum_exp[:, None]
    log_q = logits.float() - logits.float().logsumexp(-1, keepdim=True)
    p, q = log_p.exp(), log_q.exp()
    falls_short = torch.where(q < p, q, 0.0)  # where more of q would be accepted
    overlap = torch.minimum(p, q).sum(-1)
    loss = (p * (log_p - log_q)).sum(-1) + tv_weight * (1 - overlap)
    scale = p.sum(-1, keepdim=True) + tv_weight * falls_short.sum(-1, keepdim=True)
    gradient = q * scale - p - tv_weight * falls_short
    return Comparison(overlap, loss, gradient.to(logits.dtype))


def shares(sums: np.ndarray, counts: np.ndarray) -> dict[str, float | None]:
    """By kind and over all; None where nothing was counted."""
    values = {"all": (sums.sum(), counts.sum())} | dict(zip(KINDS, zip(sums, counts)))
    return {name: float(a / n) if n > 0 else None for name, (a, n) in values.items()}


def expected_speedup(alpha: float | None, cost: float) -> dict | None:
    """The best K and its speed-up over plain decoding: (1 - alpha^(K + 1)) / (1 - alpha) tokens in
    the time of 1 + K c target passes (Leviathan et al. 2023, theorem 3.8)."""
    if alpha is None:
        return None
    speedup = {k: sum(alpha**i for i in range(k + 1)) / (1 + k * cost)
               for k in range(MAX_DRAFT_TOKENS + 1)}
    best = max(speedup, key=speedup.get)
    return {"K": best, "speedup": speedup[best]}


def lookup_acceptance(shards: list[dict[str, np.ndarray]]) -> dict[str, float | None]:
    """What prompt lookup would have guessed right of the greedy text: the baseline of alpha."""
    sums, counts = np.zeros(len(KINDS)), np.zeros(len(KINDS))
    for shard in shards:
        for row in np.flatnonzero(shard["temperature"] == 0.0):
            tokens, generated = shard["tokens"][row].tolist(), shard["generated"][row]
            for i, guess in lookup_guesses(tokens):
                if generated[i]:
                    sums[shard["kind"][row]] += guess == tokens[i]
                    counts[shard["kind"][row]] += 1
    return shares(sums, counts)


def copied(tokens: np.ndarray) -> np.ndarray:
    """Of sequences [rows, length]: which tokens are what followed the latest earlier occurrence of
    the LOOKUP_TOKENS before them."""
    result = np.zeros(tokens.shape, bool)
    for row, sequence in enumerate(tokens.tolist()):
        following: dict[tuple[int, ...], int] = {}
        for i in range(LOOKUP_TOKENS, len(sequence)):
            run = tuple(sequence[i - LOOKUP_TOKENS:i])
            result[row, i] = following.get(run) == sequence[i]
            following[run] = sequence[i]
    return result


def lookup_guesses(tokens: list[int]) -> Iterator[tuple[int, int | None]]:
    """For each position what followed the latest earlier occurrence of the longest run of tokens
    (LOOKUP_TOKENS at most) that ends before it."""
    following: dict[tuple[int, ...], int] = {}
    for i in range(1, len(tokens)):
        runs = [tuple(tokens[i - n:i]) for n in range(min(LOOKUP_TOKENS, i), 0, -1)]
        yield i, next((following[run] for run in runs if run in following), None)
        following |= {run: tokens[i] for run in runs}

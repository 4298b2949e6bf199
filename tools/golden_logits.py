#!/usr/bin/env python3
"""Makes the golden files of tests/model/testdata/ with Transformers in float32 on the CPU.

    python3 tools/golden_logits.py chat --model DIR  # golden_smollm2.json, of golden_prompts.jsonl
    python3 tools/golden_logits.py tiny              # golden_tiny*.json, on checkpoints made here

Three runs of one model, its bf16 weights widened:
  fp32     activations in float32 throughout;
  rounded  as Outrider computes: what enters a linear layer, keys (rotated) and values as they enter
           the cache, and in attention queries and the exponentials of softmax, which are summed as
           rounded, are rounded to bf16; all else is float32;
  rounded, all else in float64: the same roundings met from sums in another order.
|rounded - fp32| is what bf16 activations cost, and so the tolerance of a comparison with fp32.
|rounded - float64 rounded| is what an order of summation costs, where it flips a rounding: the
tolerance of a comparison with rounded. Both are recorded over the file's log-probabilities (and all
logits, for the random checkpoints): the largest, and the root of the mean square.
"""

import argparse
import hashlib
import json
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
import transformers
from transformers import (AttentionInterface, AttentionMaskInterface, AutoModelForCausalLM,
                          AutoTokenizer, DynamicCache)
from transformers.masking_utils import eager_mask
from transformers.pytorch_utils import Conv1D

import make_checkpoint

ROOT = Path(__file__).resolve().parent.parent
TESTDATA = ROOT / "tests" / "model" / "testdata"
SHAPES = ROOT / "tests" / "testing" / "checkpoints"
TINY_CHECKPOINTS = ("tiny", "tiny-odd", "tiny-llama3", "tiny-gpt2", "tiny-gpt2-odd")
MAX_NEW_TOKENS = 48
MORE_PROMPTS = 60


def round_bf16(x: torch.Tensor) -> torch.Tensor:
    return x.to(torch.bfloat16).to(x.dtype)


class RoundingCache(DynamicCache):
    """Holds keys and values as bf16 would. Llama's keys arrive rotated."""

    def update(self, key_states, value_states, *args, **kwargs):
        return super().update(round_bf16(key_states), round_bf16(value_states), *args, **kwargs)


def rounding_attention(module, query, key, value, attention_mask, scaling, **_):
    """Attention with queries and the exponentials of softmax in bf16.

    query: [batch, heads, rows, head_dim]; key, value: [batch, KV heads, positions, head_dim]."""
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    scores = round_bf16(query) @ key.transpose(2, 3) * scaling + attention_mask
    weights = round_bf16((scores - scores.amax(-1, keepdim=True)).exp())
    output = weights @ value / weights.sum(-1, keepdim=True)
    return output.transpose(1, 2).contiguous(), None


AttentionInterface.register("rounding", rounding_attention)
AttentionMaskInterface.register("rounding", eager_mask)


@contextmanager
def rounded(model: torch.nn.Module):
    """Rounds what enters each linear layer, the output layer among them, and inside attention."""
    hooks = [module.register_forward_pre_hook(lambda _, inputs: (round_bf16(inputs[0]),))
             for module in model.modules() if isinstance(module, (torch.nn.Linear, Conv1D))]
    model.set_attn_implementation("rounding")
    try:
        yield
    finally:
        model.set_attn_implementation("eager")
        for hook in hooks:
            hook.remove()


def load(directory: Path) -> torch.nn.Module:
    # eager: attention as plain matrix products and a softmax in float32.
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32,
                                                 attn_implementation="eager")
    return model.eval()


@torch.inference_mode()
def logits_of(model, ids: list[int], cache: DynamicCache) -> torch.Tensor:
    """Logits after each of ids in one pass: [len(ids), vocab], float64."""
    output = model(torch.tensor([ids]), past_key_values=cache, use_cache=True)
    return output.logits[0].double()


@torch.inference_mode()
def greedy(model, prompt_ids: list[int], eos_id: int) -> list[int]:
    """Up to MAX_NEW_TOKENS tokens, a closing EOS included."""
    cache, ids, new = DynamicCache(), prompt_ids, []
    while len(new) < MAX_NEW_TOKENS and eos_id not in new:
        ids = [int(logits_of(model, ids, cache)[-1].argmax())]
        new += ids
    return new


def runs(model, sequences: list[list[int]], keep) -> list[dict[str, dict]]:
    """For each sequence what keep(logits, ids) makes of the three runs' logits, by the run's name.

    Leaves the model in float64."""
    results = [{"fp32": keep(logits_of(model, ids, DynamicCache()), ids)} for ids in sequences]
    with rounded(model):
        for result, ids in zip(results, sequences):
            result["rounded"] = keep(logits_of(model, ids, RoundingCache()), ids)
        model.double()
        for result, ids in zip(results, sequences):
            result["rounded_float64"] = keep(logits_of(model, ids, RoundingCache()), ids)
    return results


def next_logprobs(logits: torch.Tensor, ids: list[int]) -> np.ndarray:
    """Log-probability of ids[i + 1] after ids[: i + 1]: [len(ids) - 1]."""
    table = logits[:-1].log_softmax(-1)
    return table.gather(1, torch.tensor(ids[1:])[:, None])[:, 0].numpy()


def margins(logits: torch.Tensor, ids: list[int]) -> np.ndarray:
    """Logit of ids[i + 1] over the best other's: positive where greedy picks it. [len(ids) - 1]"""
    table, chosen_index = logits[:-1].clone(), torch.tensor(ids[1:])[:, None]
    chosen = table.gather(1, chosen_index)[:, 0]
    table.scatter_(1, chosen_index, -torch.inf)
    return (chosen - table.max(-1).values).numpy()


class Differences:
    """The largest and the mean square difference of two runs over a file."""

    def __init__(self) -> None:
        self.values: list[np.ndarray] = []

    def add(self, a, b) -> None:
        self.values.append(np.abs(np.asarray(a) - np.asarray(b)).ravel())

    def summary(self) -> dict[str, float]:
        values = np.concatenate(self.values)
        return {"max": float(f"{values.max():.3g}"),
                "rms": float(f"{np.sqrt(np.mean(values**2)):.3g}")}


def rounded_list(x) -> list[float]:
    return [round(float(value), 6) for value in x]


def weights_digest(directory: Path) -> str:
    """SHA-256 over the weight files in order of name."""
    digest = hashlib.sha256()
    for path in sorted(directory.glob("*.safetensors")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def write(name: str, head: dict, differences: dict[str, Differences], cases: list[dict]) -> None:
    """One line a case: small, and a change is seen in a diff."""
    head = {"made_by": f"tools/golden_logits.py, transformers {transformers.__version__}, "
                       f"torch {torch.__version__.split('+')[0]}", **head,
            **{key: value.summary() for key, value in differences.items()}}
    lines = ",\n".join(json.dumps(case, ensure_ascii=False, separators=(",", ":"))
                       for case in cases)
    text = json.dumps(head, indent=1)[:-2] + ',\n "cases": [\n' + lines + "\n ]\n}\n"
    json.loads(text)
    (TESTDATA / name).write_text(text, encoding="utf-8")
    summaries = {key: value.summary() for key, value in differences.items()}
    print(f"{name}: {len(text)} bytes, {json.dumps(summaries)}")


def make_chat(directory: Path) -> None:
    tokenizer, model = AutoTokenizer.from_pretrained(directory), load(directory)
    prompts = [json.loads(line) for line
               in (TESTDATA / "golden_prompts.jsonl").read_text(encoding="utf-8").splitlines()]
    cases, sequences = [], []
    for prompt in prompts:
        text = tokenizer.apply_chat_template(prompt["messages"], add_generation_prompt=True,
                                             tokenize=False)
        prompt_ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        greedy_ids = greedy(model, prompt_ids, tokenizer.eos_token_id)
        cases.append({"name": prompt["name"], "prompt_text": text, "prompt_ids": prompt_ids,
                      "greedy_ids": greedy_ids,
                      "greedy_text": tokenizer.decode(greedy_ids, skip_special_tokens=True)})
        sequences.append(prompt_ids + greedy_ids)
        print(f"{len(cases)}/{len(prompts)} {prompt['name']}: {len(prompt_ids)} + "
              f"{len(greedy_ids)}: {cases[-1]['greedy_text'][:60]!r}", file=sys.stderr)
    def keep(logits: torch.Tensor, ids: list[int]) -> dict[str, np.ndarray]:
        return {"logprobs": next_logprobs(logits, ids), "margins": margins(logits, ids)}

    cost, order = Differences(), Differences()
    for case, kept in zip(cases, runs(model, sequences, keep)):
        cost.add(kept["rounded"]["logprobs"], kept["fp32"]["logprobs"])
        order.add(kept["rounded"]["logprobs"], kept["rounded_float64"]["logprobs"])
        for run in ("fp32", "rounded"):
            case[f"margins_{run}"] = rounded_list(
                kept[run]["margins"][len(case["prompt_ids"]) - 1:])
            case[f"logprobs_{run}"] = rounded_list(kept[run]["logprobs"])
        if min(case["margins_fp32"]) <= 0:
            raise RuntimeError(f"{case['name']}: one pass and greedy decoding disagree")
    write("golden_smollm2.json", {"weights_sha256": weights_digest(directory)},
          {"rounded_minus_fp32": cost, "rounded_minus_float64": order}, cases)


def make_tiny(name: str) -> None:
    """Four random prompts of 20 to 40 tokens on a random checkpoint of seed 0.

    Differences are taken over MORE_PROMPTS others too: in four, hardly a rounding may flip."""
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary) / name
        digest = make_checkpoint.make(SHAPES / f"{name}.json", directory, seed=0)
        model = load(directory)
        generator = np.random.default_rng(1)
        sequences = [generator.integers(model.config.vocab_size, size=length).tolist()
                     for length in (20, 27, 33, 40) * (1 + MORE_PROMPTS // 4)]

        def keep(logits: torch.Tensor, ids: list[int]) -> dict[str, np.ndarray]:
            return {"logprobs": next_logprobs(logits, ids), "logits": logits.numpy()}

        cost, order, cases = Differences(), Differences(), []
        for ids, kept in zip(sequences, runs(model, sequences, keep)):
            case: dict[str, object] = {"prompt_ids": ids}
            for what in ("logprobs", "logits"):  # logits: at every position, though one is written
                cost.add(kept["rounded"][what], kept["fp32"][what])
                order.add(kept["rounded"][what], kept["rounded_float64"][what])
            for run in ("fp32", "rounded"):
                case[f"logprobs_{run}"] = rounded_list(kept[run]["logprobs"])
                case[f"last_logits_{run}"] = rounded_list(kept[run]["logits"][-1])
            cases.append(case)
    cases = cases[:4]
    write(f"golden_{name.replace('-', '_')}.json", {"shape": name, "seed": 0, "digest": digest},
          {"rounded_minus_fp32": cost, "rounded_minus_float64": order}, cases)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    chat = commands.add_parser("chat", help="the real model, on chat prompts")
    chat.add_argument("--model", type=Path, required=True, metavar="DIR",
                      help="what tools/fetch_model.py printed")
    commands.add_parser("tiny", help="random checkpoints")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # more threads sum in another order, and other roundings flip
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    if arguments.command == "chat":
        make_chat(arguments.model)
    else:
        for name in TINY_CHECKPOINTS:
            make_tiny(name)
    return 0


if __name__ == "__main__":
    sys.exit(main())

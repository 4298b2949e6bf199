#!/usr/bin/env python3
"""The peer: Transformers' generation with the real model, plain and with prompt lookup, its own
speculative decoding that needs no draft. Prints a line of JSON a result.

    peer_transformers.py MODEL

Greedy, one sequence, TOKENS tokens, bfloat16. {"unavailable": why} where something is missing.
"""

import json
import sys
import time
from pathlib import Path

TOKENS = 128
PROMPT = "Repeat after me: one two three one two three one two three."


def say(**result) -> None:
    print(json.dumps(result), flush=True)


try:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
except ImportError as error:
    say(unavailable=f"there is no Transformers here: {error}")
    sys.exit(0)


def tokens_per_second(model, inputs, **how) -> float:
    """The second of two runs."""
    for _ in range(2):
        start = time.perf_counter()
        answer = model.generate(**inputs, do_sample=False, min_new_tokens=TOKENS,
                                max_new_tokens=TOKENS, **how)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        seconds = time.perf_counter() - start
    return (answer.shape[1] - inputs["input_ids"].shape[1]) / seconds


def main() -> None:
    directory = Path(sys.argv[1])
    if not (directory / "config.json").exists():
        say(unavailable=f"there is no {directory}")
        return
    if not torch.cuda.is_available():
        say(unavailable="PyTorch finds no GPU")
        return
    tokenizer = AutoTokenizer.from_pretrained(directory)
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.bfloat16).to("cuda").eval()
    inputs = tokenizer(PROMPT, return_tensors="pt").to("cuda")
    say(name="transformers/plain", tokens_per_second=tokens_per_second(model, inputs))
    assisted = tokens_per_second(model, inputs, prompt_lookup_num_tokens=4)
    say(name="transformers/prompt_lookup", tokens_per_second=assisted,
        figure="peer_assisted_tokens_per_second", value=assisted)


if __name__ == "__main__":
    main()

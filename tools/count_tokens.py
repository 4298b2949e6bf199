#!/usr/bin/env python3
"""Counts tokens and pairs of tokens in the text that tools/distill_draft.py drew from a target: the
tables of the drafters unigram and bigram.

    tools/count_tokens.py --work WORK --target DIR --output FILE.safetensors

Of the most frequent tokens, and of the most frequent ones behind each token that came at least
--least times, the counts are kept; csrc/spec/table_drafter.h says how. The file names the tokenizer
whose tokens they are, by its hash.
"""

import argparse
import json
import sys
from pathlib import Path

import numpy as np
import xxhash
from safetensors.numpy import save_file


def most_frequent(counts: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """The tokens that came most often, ascending, and their counts; among equals smaller ids."""
    best = np.argsort(-counts, kind="stable")[:most]
    best = np.sort(best[counts[best] > 0])
    return best.astype(np.int32), counts[best].astype(np.int32)


def tables(pairs: np.ndarray, vocab_size: int, most: int, most_behind: int,
           least: int) -> dict[str, np.ndarray]:
    """pairs: [n, 2], a token and the one that was drawn behind it."""
    tokens, counts = most_frequent(np.bincount(pairs[:, 1], minlength=vocab_size), most)
    pairs = pairs[np.argsort(pairs[:, 0], kind="stable")]
    starts = np.searchsorted(pairs[:, 0], np.arange(vocab_size + 1))
    rows, behind, of_behind = [0], [], []
    for token in range(vocab_size):
        following = pairs[starts[token]:starts[token + 1], 1]
        if len(following) >= least:
            next_tokens, next_counts = most_frequent(np.bincount(following), most_behind)
            behind.append(next_tokens)
            of_behind.append(next_counts)
            rows.append(rows[-1] + len(next_tokens))
        else:
            rows.append(rows[-1])
    empty = [np.zeros(0, np.int32)]
    return {"unigram_tokens": tokens, "unigram_counts": counts,
            "bigram_rows": np.array(rows, np.int32),
            "bigram_tokens": np.concatenate(behind or empty),
            "bigram_counts": np.concatenate(of_behind or empty)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True, metavar="DIR",
                        help="where `distill_draft.py generate` left its shards")
    parser.add_argument("--target", type=Path, required=True, metavar="DIR",
                        help="the model that drew them: what tools/fetch_model.py printed")
    parser.add_argument("--output", type=Path, required=True, metavar="FILE")
    parser.add_argument("--most", type=int, default=256, help="tokens of the unigram")
    parser.add_argument("--most-behind", type=int, default=16, help="tokens kept behind a token")
    parser.add_argument("--least", type=int, default=2, help="times that a token came")
    arguments = parser.parse_args()
    pairs = []
    for path in sorted(arguments.work.glob("train-?????.npz")):
        with np.load(path) as shard:
            tokens, drawn = shard["tokens"], shard["generated"][:, 1:]
            pairs.append(np.stack([tokens[:, :-1][drawn], tokens[:, 1:][drawn]], axis=1))
    if not pairs:
        print(f"count_tokens: {arguments.work}: no train-*.npz; expected shards of "
              f"`distill_draft.py generate`", file=sys.stderr)
        return 1
    config = json.loads((arguments.target / "config.json").read_text(encoding="utf-8"))
    counted = tables(np.concatenate(pairs), config["vocab_size"], arguments.most,
                     arguments.most_behind, arguments.least)
    tokenizer = xxhash.xxh3_64_intdigest((arguments.target / "tokenizer.json").read_bytes())
    save_file(counted, arguments.output, metadata={"tokenizer": f"{tokenizer:016x}"})
    print(f"{len(np.concatenate(pairs))} drawn tokens; {len(counted['unigram_tokens'])} counted, "
          f"{len(counted['bigram_tokens'])} pairs behind "
          f"{np.count_nonzero(np.diff(counted['bigram_rows']))} tokens")
    return 0


if __name__ == "__main__":
    sys.exit(main())

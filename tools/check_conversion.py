#!/usr/bin/env python3
"""Checks tools/convert_gguf.py against Transformers' own reading of the same GGUF file, by hand.

    python3 tools/check_conversion.py INPUT.gguf CONVERTED_DIR

Weights must be equal to the bit once both are bf16; token ids must be equal on ugly text.
Transformers reads vocabulary, merges and special tokens from GGUF but ignores tokenizer.ggml.pre,
so it is given what "smollm" stands for: each numeric character alone, then GPT-2's pattern.
"""

import argparse
import sys
from pathlib import Path

import torch
import transformers
from tokenizers import pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer

TESTDATA = Path(__file__).resolve().parent.parent / "tests" / "model" / "testdata"

CONFIG_FIELDS = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
                 "num_attention_heads", "num_key_value_heads", "head_dim",
                 "max_position_embeddings", "tie_word_embeddings", "attention_bias", "mlp_bias",
                 "hidden_act", "bos_token_id", "pad_token_id")

UGLY_TEXT = [
    "", " ", "\n\n\n", "\t \t", "a", " a", "  a  b   c ", "don't, we'll, I'VE, it's 're",
    "12345 3.14159 1,000,000 0x1F", "x²+y₃=½ ٣٤٥ Ⅻ", "naïve café e\u0301 Ångström ﬁ",
    "日本語とEnglish、混在。", "🙂👩‍👩‍👧🏽🇵🇹", "<|im_start|>user\nhi<|im_end|>\n<|endoftext|>",
    "<|im_start|", "<repo_name>x<file_sep>", "\u00a0\u2003\u200b\ufeff", "\x00\x01\x7f",
    "for (int i = 0; i < n; ++i) {\n\tsum += a[i];\r\n}", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
]


def count_unequal_tensors(ours: torch.nn.Module, theirs: torch.nn.Module) -> int:
    mine, other = ours.state_dict(), theirs.state_dict()
    names = mine.keys() | other.keys()
    unequal = [name for name in sorted(names) if name not in mine or name not in other
               or not torch.equal(mine[name], other[name].to(torch.bfloat16))]
    for name in unequal:
        print(f"tensor {name} differs")
    print(f"{len(names) - len(unequal)} of {len(names)} tensors equal")
    return len(unequal)


def count_unequal_fields(ours: object, theirs: object) -> int:
    unequal = [field for field in CONFIG_FIELDS
               if getattr(ours, field, None) != getattr(theirs, field, None)]
    for field in unequal:
        print(f"config field {field} is {getattr(ours, field, None)!r}, Transformers reads "
              f"{getattr(theirs, field, None)!r}")
    print(f"{len(CONFIG_FIELDS) - len(unequal)} of {len(CONFIG_FIELDS)} config fields equal")
    return len(unequal)


def count_unequal_texts(ours, theirs) -> int:
    texts = UGLY_TEXT + (TESTDATA / "golden_prompts.jsonl").read_text(encoding="utf-8").split("\n")
    unequal = [text for text in texts if ours(text)["input_ids"] != theirs(text)["input_ids"]]
    for text in unequal:
        print(f"text {text!r} is {ours(text)['input_ids']}, Transformers reads "
              f"{theirs(text)['input_ids']}")
    print(f"{len(texts) - len(unequal)} of {len(texts)} texts tokenised equally")
    return len(unequal)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("input", type=Path, metavar="INPUT.gguf")
    parser.add_argument("converted", type=Path, metavar="CONVERTED_DIR")
    arguments = parser.parse_args()
    transformers.utils.logging.set_verbosity_error()
    source = {"pretrained_model_name_or_path": arguments.input.parent,
              "gguf_file": arguments.input.name}
    ours = AutoModelForCausalLM.from_pretrained(arguments.converted, dtype=torch.bfloat16)
    theirs = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    failures = count_unequal_tensors(ours, theirs)
    failures += count_unequal_fields(ours.config, theirs.config)
    their_tokenizer = AutoTokenizer.from_pretrained(**source)
    their_tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True),
         pre_tokenizers.ByteLevel(add_prefix_space=False)])
    failures += count_unequal_texts(AutoTokenizer.from_pretrained(arguments.converted),
                                    their_tokenizer)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())

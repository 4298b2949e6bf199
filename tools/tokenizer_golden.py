#!/usr/bin/env python3
"""Writes three small tokenizers, and what the `tokenizers` package makes of hand-picked texts.

  tokenizer_golden.py --output DIR   (tests/model/testdata)

DIR/digits/tokenizer.json, DIR/split/tokenizer.json, DIR/gpt2/tokenizer.json and
DIR/tokenizer_golden.json.
"""

import argparse
import json
import sys
from pathlib import Path

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from tokenizer_corpus import CODE, SENTENCES

# {s} is a special token of the tokenizer, {w} one that must be a single word, {l} and {r} ones that
# swallow the white space to their left and right.
NASTY = [
    "",
    " ",
    "  ",
    "\n",
    " \n ",
    "\r\n\r\n",
    "\t\t x",
    "a",
    " a",
    "a ",
    "a  b",
    "Hello, world!",
    "12345678901",
    "x1y22z333",
    "can't WON'T it'll I'd've 'tis we'Re '\u017f '\u212a",
    "\u00a0\u00a0x\u00a0",
    "\u2003\u3000\u2028x\u2029\u0085\u1680y",
    "\u180ea\u180e \u200bb\ufeffc",
    "e\u0301 \u00e9 \u1e9b\u0323 \u212b \ufb01",
    "\u1112\u1161\u11ab \ud55c \u3131",
    "\u0928\u092e\u0938\u094d\u0924\u0947 \u0967\u0968\u0969",
    "\u0663\uff19\u2167\xbe\U0001d7d7 \xb2\u2081",
    "日本語テキスト。123",
    "Привет, мир",
    "👨\u200d👩\u200d👧\u200d👦👍🏽🏳\ufe0f\u200d🌈 🇩🇪🇫🇷1\ufe0f\u20e3",
    "\0\x01\x04\x1b\x7f\x85\xad",
    "\ufffe\uffff\ue000\ufffd\U0010ffff\U000f0000",
    "\u0378 \U0001e4d0\U00031350\U00010d40 \U00011de0a",
    "a\U00031350 1\U00010d40 a\U00010d40 1\U00031350",
    "Z\u0351\u034a\u0343a\u0313\u0340\u0310l\u0322\u0327g\u035do",
    "def f(x):\n    return x  # \u2192 y\n\n\n\tpass\r\n",
    "https://a.b/c?d=%20&e=f#g <tag attr='v'/> $x^2$",
    "!!!???...---===",
    "the the the thethe",
    "a" * 100,
    " " * 33 + "x",
    "9" * 40,
    "{s}",
    "a{s}b",
    " {s} ",
    "{s}{s}",
    "<{s}|",
    "x {w} y",
    "x{w}",
    "_{w}",
    "é{w} {w}é",
    "({w})",
    "\u0301{w}",
    "a \t{l} b",
    "a {r} \n b",
    "{r} {l}",
    "a\x04\x06\x04b \x13\x13\U000f0000\U00100000",
    "a xylophone, xylophones",
    "\U00011935\U00011930 \u08d1\u0301\u0316",
    " \u3000{l}{l}",
    "{r}\u00a0{s}",
    "{w}{s}{w}",
    "one cafe\u0301 two café three",
]
LLAMA3_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def train(tokenizer: Tokenizer, specials: list[str], size: int) -> dict:
    """Bytes that UTF-8 has no use for, and a few that it has, get no token."""
    missing = {"\u0104", "\u0106", "\u0113", *map(chr, range(0xF1, 0x100))}
    alphabet = sorted(set(pre_tokenizers.ByteLevel.alphabet()) - missing)
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=specials, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(SENTENCES + CODE, trainer)
    return json.loads(tokenizer.to_str())


def digits_tokenizer() -> dict:
    """As SmolLM2's: Digits and ByteLevel; merges written "a b"."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    result = train(tokenizer, ["<|endoftext|>", "<|im_start|>", "<|im_end|>"], 420)
    result["model"]["merges"] = [" ".join(pair) for pair in result["model"]["merges"]]
    return result


def split_tokenizer() -> dict:
    """As Llama 3's, with a normalizer, bytes without a token and added tokens of every kind.

    Merges are written ["a", "b"].
    """
    tokenizer = Tokenizer(models.BPE(unk_token="<|unk|>", fuse_unk=True, ignore_merges=True))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(LLAMA3_PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    result = train(tokenizer, ["<|unk|>", "<|begin|>", "<|end|>"], 420)
    # After a letter or a digit these merge with the first byte of every character that belongs to
    # the same piece, so that the ids tell how the engine classes it.
    vocab = result["model"]["vocab"]
    for lead in range(0xC2, 0xF5):
        for before in "a1":
            if chr(lead) in vocab and before + chr(lead) not in vocab:
                vocab[before + chr(lead)] = len(vocab)
                result["model"]["merges"].append([before, chr(lead)])
    vocab["\u0120xylophone"] = len(vocab)  # no merge makes it: ignore_merges does
    tokenizer = Tokenizer.from_str(json.dumps(result))
    begin = tokenizer.token_to_id("<|begin|>")
    tokenizer.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(
                single="<|begin|> $A", special_tokens=[("<|begin|>", begin)]
            ),
        ]
    )
    tokenizer.add_tokens(
        [
            AddedToken("word", single_word=True, normalized=False),
            AddedToken("caf\u00e9", normalized=True),
            AddedToken("\u2192", normalized=False),
        ]
    )
    tokenizer.add_special_tokens(
        [
            AddedToken("<|left|>", lstrip=True),
            AddedToken("<|right|>", rstrip=True),
            AddedToken("<|left|><|left|>"),
        ]
    )
    return json.loads(tokenizer.to_str())


def gpt2_tokenizer() -> dict:
    """As GPT-2's, whose file is older than some of the keys: ByteLevel with its own pattern alone."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer.decoder = decoders.ByteLevel()
    result = train(tokenizer, ["<|endoftext|>"], 420)
    for key in ("type", "byte_fallback", "ignore_merges"):
        del result["model"][key]
    for key in ("continuing_subword_prefix", "end_of_word_suffix"):
        result["model"][key] = ""
    for part in ("pre_tokenizer", "post_processor", "decoder"):
        del result[part]["use_regex"]
    result["model"]["merges"] = [" ".join(pair) for pair in result["model"]["merges"]]
    return result


def write_golden(directory: Path) -> None:
    golden = {}
    specials = {"digits": "<|im_end|>", "split": "<|end|>", "gpt2": "<|endoftext|>"}
    for name, make in (
        ("digits", digits_tokenizer),
        ("split", split_tokenizer),
        ("gpt2", gpt2_tokenizer),
    ):
        model = make()
        (directory / name).mkdir(parents=True, exist_ok=True)
        path = directory / name / "tokenizer.json"
        path.write_text(
            json.dumps(model, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8"
        )
        tokenizer = Tokenizer.from_file(str(path))
        fields = {
            "s": specials[name],
            "w": "word",
            "l": "<|left|>",
            "r": "<|right|>",
        }
        cases = []
        for text in NASTY:
            for field, token in fields.items():
                text = text.replace("{" + field + "}", token)
            ids = tokenizer.encode(text, add_special_tokens=False).ids
            cases.append(
                {
                    "text": text,
                    "ids": ids,
                    "with_special_tokens": tokenizer.encode(text).ids,
                    "decoded": tokenizer.decode(ids),
                }
            )
        golden[name] = cases
    lines = [
        f"{json.dumps(name)}: [\n" + ",\n".join(map(json.dumps, cases)) + "]"
        for name, cases in golden.items()
    ]
    (directory / "tokenizer_golden.json").write_text(
        "{" + ",\n".join(lines) + "}\n", encoding="utf-8"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, required=True, help="directory to write to")
    write_golden(parser.parse_args().output)
    return 0


if __name__ == "__main__":
    sys.exit(main())

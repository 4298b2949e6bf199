#!/usr/bin/env python3
"""Makes what `serve --draft` takes of what is kept of a distilled draft: adds what it shares with
its target, the embedding and the tokenizer.

    tools/complete_draft.py models/SmolLM2-135M-Instruct-draft --target DIR --output DRAFT

Needs nothing but Python and libxxhash, which the program needs too. Prints the directory.
"""

import argparse
import ctypes
import json
import shutil
import struct
import sys
from pathlib import Path

EMBEDDING = "model.embed_tokens.weight"
INDEX = "model.safetensors.index.json"
SHARED_FILES = ("tokenizer.json", "tokenizer_config.json", "generation_config.json")


class DraftError(Exception):
    """The draft cannot be completed; the message is one line that names the file."""


def read_json(path: Path, *fields: str) -> dict:
    """An object that has the fields."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DraftError(f"{path}: {error}") from error
    for field in fields:
        if field not in value:
            raise DraftError(f"{path}: {field} is missing")
    return value


def read_header(path: Path) -> tuple[dict, int]:
    """Of a safetensors file, and where its data begins."""
    with open(path, "rb") as file:
        begin = file.read(8)
        length = struct.unpack("<Q", begin)[0] if len(begin) == 8 else 0
        text = file.read(min(length, 1 << 26))
    try:
        return json.loads(text), 8 + length
    except ValueError as error:
        raise DraftError(f"{path}: is no safetensors file ({error})") from error


def checkpoint_files(directory: Path) -> list[Path]:
    """Those that its hash is of, in order: csrc/model/checkpoint_hash.h."""
    index = directory / INDEX
    if not index.exists():
        return [directory / "config.json", directory / "model.safetensors"]
    files = read_json(index, "weight_map")["weight_map"].values()
    return [directory / "config.json", index, *(directory / name for name in sorted({*files}))]


def hash_of(paths: list[Path]) -> str:
    """Of the files' contents, chained: csrc/model/checkpoint_hash.h."""
    digest = ctypes.CDLL("libxxhash.so.0").XXH3_64bits_withSeed
    digest.argtypes = (ctypes.c_char_p, ctypes.c_size_t, ctypes.c_uint64)
    digest.restype = ctypes.c_uint64
    value = 0
    for path in paths:
        data = path.read_bytes()
        value = digest(data, len(data), value)
    return f"{value:016x}"


def checkpoint_hash(directory: Path) -> str:
    """What `outrider inspect` prints."""
    return hash_of(checkpoint_files(directory))


def check_target(draft: Path, target: Path) -> None:
    """Throws where the draft names another target. One that names none takes any."""
    expected = read_json(draft / "config.json").get("target")
    if expected is None:
        return
    found = checkpoint_hash(target)
    if found != expected:
        raise DraftError(f"{target}: has the hash {found}; expected {expected}, of the model that "
                         f"{draft} was distilled from")


def read_embedding(target: Path) -> tuple[Path, dict, bytes]:
    """The file that holds it, its entry and its bytes."""
    for path in sorted(target.glob("*.safetensors")):
        header, data = read_header(path)
        if EMBEDDING not in header:
            continue
        entry = header[EMBEDDING]
        begin, end = entry["data_offsets"]
        with open(path, "rb") as file:
            file.seek(data + begin)
            stored = file.read(end - begin)
        if len(stored) < end - begin:
            raise DraftError(f"{path}: ends within {EMBEDDING}")
        return path, entry, stored
    raise DraftError(f"{target}: no file *.safetensors holds {EMBEDDING}")


def complete(draft: Path, target: Path, output: Path) -> None:
    """Copies the draft to output, if it is not there, and adds the rest from its target."""
    if output.resolve() == target.resolve():
        raise DraftError(f"{output}: is the target; expected another directory")
    config = read_json(draft / "config.json", "vocab_size", "hidden_size")
    files = read_json(draft / INDEX, "weight_map")["weight_map"]
    if EMBEDDING not in files:
        raise DraftError(f"{draft / INDEX}: names no file for {EMBEDDING}")
    source, entry, stored = read_embedding(target)
    expected = [config["vocab_size"], config["hidden_size"]]
    if entry["shape"] != expected:
        raise DraftError(f"{source}: {EMBEDDING} has shape {entry['shape']}; expected the draft's, "
                         f"{expected}")
    output.mkdir(parents=True, exist_ok=True)
    if output.resolve() != draft.resolve():
        for name in {"config.json", INDEX, *files.values()} - {files[EMBEDDING]}:
            shutil.copyfile(draft / name, output / name)
    header = {"__metadata__": {"format": "pt"},
              EMBEDDING: entry | {"data_offsets": [0, len(stored)]}}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 8) % 64)
    (output / files[EMBEDDING]).write_bytes(struct.pack("<Q", len(text)) + text + stored)
    for name in SHARED_FILES:
        if (target / name).exists():
            shutil.copyfile(target / name, output / name)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("draft", type=Path, help="what `distill_draft.py export` wrote")
    parser.add_argument("--target", type=Path, required=True, metavar="DIR",
                        help="the model that it was distilled from: what fetch_model.py prints")
    parser.add_argument("--output", type=Path, required=True, metavar="DIR")
    arguments = parser.parse_args()
    try:
        check_target(arguments.draft, arguments.target)
        complete(arguments.draft, arguments.target, arguments.output)
    except (DraftError, OSError) as error:
        print(f"complete_draft: {error}", file=sys.stderr)
        return 1
    print(arguments.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())

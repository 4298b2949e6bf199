#!/usr/bin/env python3
"""Makes what `serve --draft` takes of what is kept of a distilled draft: adds what it shares with its
target, the embedding and the tokenizer.

    tools/complete_draft.py models/SmolLM2-135M-Instruct-draft --target DIR --output DRAFT

Needs nothing but Python. Prints the directory.
"""

import argparse
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


def read_header(path: Path) -> tuple[dict, int]:
    """Of a safetensors file, and where its data begins."""
    with open(path, "rb") as file:
        length = struct.unpack("<Q", file.read(8))[0]
        return json.loads(file.read(length)), 8 + length


def find_embedding(target: Path) -> tuple[Path, dict, int]:
    """The file that holds it, its entry, and where its bytes begin."""
    for path in sorted(target.glob("*.safetensors")):
        header, data = read_header(path)
        if EMBEDDING in header:
            return path, header[EMBEDDING], data + header[EMBEDDING]["data_offsets"][0]
    raise DraftError(f"{target}: no file *.safetensors holds {EMBEDDING}")


def complete(draft: Path, target: Path, output: Path) -> None:
    """Copies the draft to output, if it is not there, and adds the rest from its target."""
    config = json.loads((draft / "config.json").read_text(encoding="utf-8"))
    files = json.loads((draft / INDEX).read_text(encoding="utf-8"))["weight_map"]
    source, entry, begin = find_embedding(target)
    expected = [config["vocab_size"], config["hidden_size"]]
    if entry["shape"] != expected:
        raise DraftError(f"{source}: {EMBEDDING} has shape {entry['shape']}; expected the draft's, "
                         f"{expected}")
    output.mkdir(parents=True, exist_ok=True)
    if output.resolve() != draft.resolve():
        for name in {"config.json", INDEX, *files.values()} - {files[EMBEDDING]}:
            shutil.copyfile(draft / name, output / name)
    size = entry["data_offsets"][1] - entry["data_offsets"][0]
    header = {"__metadata__": {"format": "pt"}, EMBEDDING: entry | {"data_offsets": [0, size]}}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 8) % 64)
    with open(source, "rb") as stored, open(output / files[EMBEDDING], "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        stored.seek(begin)
        file.write(stored.read(size))
    for name in SHARED_FILES:
        if (target / name).exists():
            shutil.copyfile(target / name, output / name)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("draft", type=Path, help="what `distill_draft.py export` wrote")
    parser.add_argument("--target", type=Path, required=True, metavar="DIR",
                        help="the model that it was distilled from: what tools/fetch_model.py prints")
    parser.add_argument("--output", type=Path, required=True, metavar="DIR")
    arguments = parser.parse_args()
    try:
        complete(arguments.draft, arguments.target, arguments.output)
    except KeyError as error:
        print(f"complete_draft: {arguments.draft}: no field {error}", file=sys.stderr)
        return 1
    except (DraftError, OSError, ValueError, struct.error) as error:
        print(f"complete_draft: {error}", file=sys.stderr)
        return 1
    print(arguments.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())

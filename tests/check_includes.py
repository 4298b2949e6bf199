#!/usr/bin/env python3
"""Checks the direction of dependencies by reading the #include lines of the whole tree.

    python3 tests/check_includes.py [ROOT]

Prints each line that breaks a rule, as FILE:LINE: what is wrong; exits 1 if there is any.
tests/check_includes_test.py plants one violation of each rule.
"""

import re
import sys
from pathlib import Path
from typing import Iterator, NamedTuple

# Each layer may include itself and those after it.
LAYERS = ["launcher", "server", "engine", "spec", "model", "backend", "comm", "kernels", "core"]
# Beside the layers: bench/ may use all but launcher, which alone may use it; tests/ may use all.
KNOWN = [*LAYERS, "bench", "tests"]
ROOTS = ["csrc", "kernels", "server", "launcher", "bench", "tests"]
SUFFIXES = {".h", ".cc", ".cu", ".cuh"}

INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]')
CUDA_CONDITIONAL = re.compile(r"^\s*#\s*(if|ifdef|ifndef|elif)\b.*\b\w+_CUDA\b")

# Kernels start through launch() alone; what a GPU and its emulator do differently is in one file.
PTX = Path("kernels/cuda/ptx.cuh")
NOT_EMULATED = re.compile(r"<<<|\basm\b|\bOUTRIDER_EMULATED\b")


class ConfinedHeader(NamedTuple):
    name: str
    pattern: re.Pattern
    folders: tuple[str, ...]  # where it may be included, beside tests/


CONFINED = [
    ConfinedHeader("MPI", re.compile(r"^mpi\.h$"), ("csrc/comm",)),
    ConfinedHeader("CUDA",
                   re.compile(r"^(cooperative_groups|cub/|cublas|cuda|cute/|cutlass/|mma\.h|nccl|"
                              r"nvml|nvtx|thrust/)"),
                   ("csrc/comm/nccl", "csrc/backend/cuda", "kernels/cuda")),
    ConfinedHeader("gRPC", re.compile(r"^(grpc|grpcpp)/|\.pb\.h$"), ("server", "launcher")),
]


def layer_of(path: Path) -> str | None:
    """The layer of a path relative to the root, or bench or tests; None if it is in none."""
    parts = path.parts
    if len(parts) > 2 and parts[0] == "csrc":
        return parts[1]
    return parts[0] if len(parts) > 1 and parts[0] in ROOTS[1:] else None


def may_use(user: str, used: str) -> bool:
    if user == "tests" or user == used:
        return True
    if used in ("tests", "bench"):
        return (user, used) == ("launcher", "bench")
    return used != "launcher" and (user == "bench" or LAYERS.index(user) < LAYERS.index(used))


def find_header(root: Path, includer: Path, name: str) -> Path | None:
    """The project's file that the name means, as the compiler finds it; relative to the root."""
    for directory in (includer.parent, root, root / "csrc", root / "tests"):
        path = (directory / name).resolve()
        if path.is_file() and path.is_relative_to(root):
            return path.relative_to(root)
    return None


def check_file(root: Path, path: Path) -> Iterator[str]:
    relative = path.relative_to(root)
    user = layer_of(relative)
    if user not in KNOWN:
        yield f"{relative}:1: is in no layer; expected one of {', '.join(LAYERS)}, bench, tests"
        return
    if (relative.suffix == ".cu" and relative.parent == Path("kernels/cuda") and
            not (root / "kernels/cpu" / relative.stem).with_suffix(".cc").is_file()):
        yield f"{relative}:1: has no twin; expected kernels/cpu/{relative.stem}.cc"
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        if relative.suffix in (".cu", ".cuh") and relative != PTX and NOT_EMULATED.search(line):
            yield f"{relative}:{number}: cannot be emulated; expected launch(), or a name of {PTX}"
        if CUDA_CONDITIONAL.match(line):
            yield f"{relative}:{number}: is conditional on CUDA; link a stub file instead"
        include = INCLUDE.match(line)
        if include is None:
            continue
        name = include[1]
        header = find_header(root, path, name)
        if header is not None:
            used = layer_of(header)
            if used not in KNOWN:
                yield f"{relative}:{number}: includes {name}, which is in no layer"
            elif not may_use(user, used):
                yield f"{relative}:{number}: {user} includes {name}, which is of {used}"
            continue
        for confined in CONFINED:
            if confined.pattern.search(name) and user != "tests" and not any(
                    relative.is_relative_to(folder) for folder in confined.folders):
                yield (f"{relative}:{number}: includes {name}; {confined.name} headers are for "
                       f"{', '.join(confined.folders)} alone")


def source_files(root: Path) -> list[Path]:
    return sorted(path for folder in ROOTS for path in (root / folder).rglob("*")
                  if path.suffix in SUFFIXES)


def main() -> int:
    root = (Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent.parent).resolve()
    files = source_files(root)
    problems = [problem for path in files for problem in check_file(root, path)]
    print("\n".join([*problems, f"{len(files)} files, {len(problems)} problems"]))
    return 1 if problems or not files else 0


if __name__ == "__main__":
    sys.exit(main())

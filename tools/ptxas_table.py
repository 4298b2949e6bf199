#!/usr/bin/env python3
"""Writes docs/benchmarks/gpu/ptxas.md: what ptxas says of every kernel, on every architecture.

    python3 tools/ptxas_table.py [--check] [--nvcc PATH] [--jobs N]

Needs nvcc, and no GPU. --check compares with the file instead of writing it, prints the lines that
differ, and exits 1 if there are any; 77 where there is no nvcc, or another one than the file's. The
file has a stamp of the compiler, its flags, the sources and the figures: where that is right, so are
the figures, and nothing is compiled. A kernel that spills registers is told, and exits 1, in any
case.
"""

import argparse
import difflib
import hashlib
import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "docs/benchmarks/gpu/ptxas.md"
FOLDERS = ["kernels/cuda", "csrc/comm/nccl", "csrc/backend/cuda"]
ARCHITECTURES = ["80", "89", "90a", "100", "120"]
# As cmake/cuda.cmake has them, and a release build.
FLAGS = ["-std=c++20", "-O3", "-DNDEBUG", "--fmad=false", "--expt-relaxed-constexpr",
         f"-I{ROOT}", f"-I{ROOT}/csrc"]

STAMP, NO_STAMP = re.compile("stamp `[0-9a-f]{16}`"), "stamp `" + 16 * "0" + "`"
INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)
ENTRY = re.compile(r"Compiling entry function '(\w+)' for 'sm_(\w+)'")
SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers")
SHARED = re.compile(r"(\d+) bytes smem")
STACK = re.compile(r"(\d+) bytes cumulative stack size")


class Figures(NamedTuple):
    registers: int
    shared_bytes: int  # static; dynamic shared memory is the launch's
    stack_bytes: int  # a thread, with what the kernel calls
    spilled_bytes: int  # stored and loaded again


def parse(output: str) -> dict[tuple[str, str], Figures]:
    """(mangled kernel, architecture) -> figures, from what `ptxas -v` prints."""
    figures = {}
    kernel, spilled = None, 0
    for line in output.splitlines():
        if entry := ENTRY.search(line):
            kernel, spilled = (entry[1], entry[2]), 0
        elif spills := SPILLS.search(line):
            spilled = int(spills[1]) + int(spills[2])
        elif kernel and (used := USED.search(line)):
            shared, stack = SHARED.search(line), STACK.search(line)
            figures[kernel] = Figures(int(used[1]), int(shared[1]) if shared else 0,
                                      int(stack[1]) if stack else 0, spilled)
            kernel = None
    return figures


def sources() -> list[Path]:
    return [path for folder in FOLDERS for path in sorted((ROOT / folder).glob("*.cu"))]


def with_headers(files: list[Path]) -> list[Path]:
    """And what they include of ours, as the compiler finds it."""
    found, left = set(), list(files)
    while left:
        path = left.pop()
        if path in found:
            continue
        found.add(path)
        for name in INCLUDE.findall(path.read_text()):
            places = (path.parent / name, ROOT / name, ROOT / "csrc" / name)
            left += [place.resolve() for place in places if place.exists()][:1]
    return sorted(found)


def digest_of_sources() -> str:
    digest = hashlib.sha256()
    for path in [*with_headers(sources()), Path(__file__).resolve()]:  # which has the flags
        digest.update(f"{path.relative_to(ROOT)}\n".encode() + path.read_bytes())
    return digest.hexdigest()


def stamp(version: str, digest: str, table: str) -> str:
    """digest: of the sources that it was made of; table: without a stamp."""
    return f"stamp `{hashlib.sha256(f'{version}{digest}{table}'.encode()).hexdigest()[:16]}`"


def compile_kernels(nvcc: str, source: Path) -> dict[tuple[str, str], Figures]:
    targets = [f"-gencode=arch=compute_{a},code=sm_{a}" for a in ARCHITECTURES]
    # Without flags that nobody sees.
    environment = {name: value for name, value in os.environ.items()
                   if name not in ("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS")}
    run = subprocess.run([nvcc, *FLAGS, *targets, "-Xptxas", "-v", "-fatbin", "-o", "/dev/null",
                          str(source)], capture_output=True, text=True, env=environment)
    if run.returncode != 0:
        sys.exit(f"{source}: nvcc failed:\n{run.stderr}")
    return parse(run.stderr)


def short_names(mangled: list[str]) -> list[str]:
    """tile_kernel<64, 128> and the like."""
    names = subprocess.run(["c++filt", *mangled], capture_output=True, text=True,
                           check=True).stdout.splitlines()
    short = []
    for name in names:
        name = re.sub(r"outrider::cuda::|outrider::|\(anonymous namespace\)::|^void ", "", name)
        short.append(re.sub(r"\(.*\)$", "", name))
    return short


def cell(figures: Figures | None) -> str:
    if figures is None:
        return "–"
    spilled = f" ({figures.spilled_bytes} bytes spilled)" if figures.spilled_bytes else ""
    return f"{figures.registers}{spilled}"


def table_of(nvcc: str, version: str, jobs: int) -> str:
    """Without a stamp."""
    with ThreadPoolExecutor(jobs) as pool:
        results = list(pool.map(lambda source: compile_kernels(nvcc, source), sources()))
    lines = [
        "# Registers of the CUDA kernels", "",
        f"What ptxas of CUDA {version} says: registers a thread, and spilled bytes where there are any;",
        "static shared memory a block on sm_90a; the most stack a thread, which CUDA sets aside for every",
        f"thread that a GPU has room for. Made by `tools/ptxas_table.py`, which needs no GPU; {NO_STAMP}.",
        "",
        "| file | kernel | shared bytes | stack bytes | " +
        " | ".join(f"sm_{a}" for a in ARCHITECTURES) + " |",
        "| --- | --- | ---: | ---: |" + " ---: |" * len(ARCHITECTURES),
    ]
    for source, figures in zip(sources(), results):
        mangled = sorted({kernel for kernel, _ in figures})
        for name, kernel in sorted(zip(short_names(mangled), mangled)) if mangled else []:
            row = [figures.get((kernel, a)) for a in ARCHITECTURES]
            shared = figures[kernel, "90a"].shared_bytes
            stack = max(f.stack_bytes for f in row if f)
            lines.append(f"| {source.name} | `{name}` | {shared} | {stack} | " +
                         " | ".join(cell(f) for f in row) + " |")
    return "\n".join(lines) + "\n"


def spilling(table: str) -> list[str]:
    """Rows of kernels that keep registers in memory on some architecture."""
    return [line for line in table.splitlines() if "bytes spilled)" in line]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare with the file")
    parser.add_argument("--nvcc", default=shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc")
    parser.add_argument("--jobs", type=int, default=2, help="files compiled at a time")
    arguments = parser.parse_args()
    if not shutil.which(arguments.nvcc):
        print(f"{arguments.nvcc}: not found; nothing was compiled")
        return 77
    banner = subprocess.run([arguments.nvcc, "--version"], capture_output=True, text=True,
                            check=True).stdout
    version = re.search(r"V([\d.]+)", banner)[1]
    committed = TABLE.read_text() if TABLE.exists() else ""
    unstamped = STAMP.sub(NO_STAMP, committed)
    digest = digest_of_sources()
    is_right = arguments.check and stamp(version, digest, unstamped) in committed
    table = unstamped if is_right else table_of(arguments.nvcc, version, arguments.jobs)
    spills = spilling(table)
    if spills:
        print("expected no spilled registers, found:", *spills, sep="\n")
    if digest_of_sources() != digest:
        print("sources have changed meanwhile; nothing was written or compared")
        return 1
    if not arguments.check:
        TABLE.parent.mkdir(parents=True, exist_ok=True)
        TABLE.write_text(table.replace(NO_STAMP, stamp(version, digest, table)))
        return 1 if spills else 0
    if f"CUDA {version} " not in committed:
        print(f"nvcc is of CUDA {version}, the table is not; nothing was compared")
        return 1 if spills else 77
    difference = list(difflib.unified_diff(unstamped.splitlines(), table.splitlines(),
                                           "committed", "now", lineterm="", n=0))
    if difference:
        print("\n".join(difference))
        print(f"{TABLE.relative_to(ROOT)} is stale; make it again with tools/ptxas_table.py")
    elif is_right:
        print("the stamp is right: compiler, flags, sources and figures are as committed")
    else:
        print("every figure is as committed, but the stamp is of other sources; made again with "
              "tools/ptxas_table.py, the table spares compiling them here")
    return 1 if difference or spills else 0


if __name__ == "__main__":
    sys.exit(main())

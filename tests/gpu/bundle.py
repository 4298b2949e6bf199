#!/usr/bin/env python3
"""Lays out what tests/gpu_checklist needs on a machine that has a GPU and nothing of Outrider's.

    bundle.py --build DIR --model DIR --output DIR [--piece-mib N]

Writes to OUTPUT the archives `programs` and `model` in pieces (programs.tar.gz.00, …), the SHA-256
of each (programs.sha256), and `unpack`, which puts them together. Unpacked, the folder holds
programs/, libraries/, openmpi/, checkpoints/, shapes/, models/ (the draft head), tests/ (the
checklist), `commit`, `nccl_version`, and model/. tests/gpu_bundle builds first and calls this.
"""

import argparse
import gzip
import hashlib
import io
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent.parent
PROGRAMS = ("outrider", "tests/cuda_parity_tests", "tests/cuda_device_tests",
            "tests/cuda_nccl_tests")
# Of the C library, and of the GPU's own software, a machine with a GPU has its own; the driver's
# libraries belong to its kernel module.
ON_EVERY_MACHINE = ("ld-linux", "libc.so", "libm.so", "libpthread.so", "librt.so", "libdl.so",
                    "libresolv.so", "libutil.so", "libanl.so", "linux-vdso", "libcuda.so",
                    "libcudart.so", "libnccl.so", "libcublas")
# Plugins of OpenMPI that need these are for fabrics; ranks here are of one machine.
FABRICS = ("libucp.so", "libuct.so", "libfabric.so", "libpsm", "libibverbs.so", "liboshmem.so",
           "libmca_common_ucx", "libmca_common_ofi")
HEAD = "SmolLM2-135M-Instruct-head"  # of models/, what the checklist serves the real model with


class BundleError(Exception):
    """The bundle cannot be made; the message is one line."""


def libraries_of(program: Path) -> dict[str, Path]:
    """name -> path of every shared library that the program needs, and those need."""
    done = subprocess.run(["ldd", str(program)], text=True, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    found = {}
    for line in done.stdout.splitlines():
        name, arrow, path = line.strip().partition(" => ")
        if arrow and path.startswith("not found"):
            raise BundleError(f"{program} needs {name}, which is not on this machine")
        if arrow and not Path(name).name.startswith(ON_EVERY_MACHINE):
            found[name] = Path(path.rsplit(" (", 1)[0])
    return found


def copy_stripped(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)  # follows links
    target.chmod(0o755)
    subprocess.run(["strip", "--strip-unneeded", str(target)], check=True,
                   stdin=subprocess.DEVNULL)


def openmpi_paths() -> dict[str, Path]:
    done = subprocess.run(["ompi_info", "--path", "all", "--parsable"], text=True, check=True,
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    lines = (line.split(":", 2) for line in done.stdout.splitlines() if line.count(":") >= 2)
    return {name: Path(path) for _, name, path in lines}


def copy_openmpi(to: Path, mpirun: Path) -> dict[str, Path]:
    """mpirun and its plugins, as programs.openmpi_environment expects them. The libraries that they
    need beside the programs' own."""
    paths = openmpi_paths()
    copy_stripped(mpirun, to / "bin" / "mpirun")
    needed = libraries_of(mpirun)
    plugins = sorted(paths["pkglibdir"].glob("mca_*.so"))
    if not plugins:
        raise BundleError(f"{paths['pkglibdir']}: no plugins of OpenMPI; expected mca_*.so")
    for plugin in plugins:
        libraries = libraries_of(plugin)
        if any(name.startswith(FABRICS) for name in libraries):
            continue
        needed.update(libraries)
        copy_stripped(plugin, to / "lib" / "openmpi" / plugin.name)
    shutil.copytree(paths["pkgdatadir"], to / "share" / "openmpi")
    # Its parameters name plugins to leave out, which are not here; ours are the defaults.
    (to / "etc").mkdir()
    (to / "etc" / "openmpi-mca-params.conf").write_text("")
    copy_pmix(to, needed)
    return needed


def copy_pmix(to: Path, needed: dict[str, Path]) -> None:
    """Where OpenMPI was built with a PMIx of its own, that has plugins, too."""
    pmix = next((path for name, path in needed.items() if name.startswith("libpmix.so")), None)
    if pmix is None:
        return
    plugins = pmix.resolve().parent / "pmix"
    for plugin in sorted(plugins.glob("*.so")):
        libraries = libraries_of(plugin)
        if not any(name.startswith(FABRICS) for name in libraries):
            needed.update(libraries)
            copy_stripped(plugin, to / "lib" / "pmix" / plugin.name)
    data = plugins.parent.parent / "share" / "pmix"
    if data.is_dir():
        shutil.copytree(data, to / "share" / "pmix")


def copy_checklist(to: Path) -> None:
    """In the places that they have in the repository."""
    (to / "tests" / "gpu").mkdir(parents=True)
    shutil.copy2(SOURCE / "tests" / "gpu_checklist", to / "tests")
    for script in sorted((SOURCE / "tests" / "gpu").glob("*.py")):
        shutil.copy2(script, to / "tests" / "gpu")


def describe_commit() -> str:
    if shutil.which("git") is None:
        return "unknown"
    done = subprocess.run(["git", "-C", str(SOURCE), "describe", "--always", "--dirty"], text=True,
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=False)
    return done.stdout.strip() or "unknown"


def built_nccl(build: Path) -> str | None:
    """Which version of NCCL the programs were built for, as it counts; None: without."""
    cache = (build / "CMakeCache.txt").read_text()
    folder = re.search(r"^NCCL_INCLUDE_DIR:\w+=(.+)$", cache, re.MULTILINE)
    if folder is None:
        return None
    header = (Path(folder[1]) / "nccl.h").read_text()
    return re.search(r"^#define NCCL_VERSION_CODE (\d+)$", header, re.MULTILINE)[1]


def lay_out(to: Path, build: Path, programs=PROGRAMS) -> None:
    """All but the model."""
    libraries = {}
    for name in programs:
        program = build / "bin" / name
        if not program.exists():
            raise BundleError(f"{program}: no such program; build the preset cuda first")
        copy_stripped(program, to / "programs" / program.name)
        libraries.update(libraries_of(program))
    mpirun = shutil.which("mpirun")
    if mpirun is None:
        raise BundleError("there is no mpirun on PATH")
    libraries.update(copy_openmpi(to / "openmpi", Path(mpirun)))
    for name, path in sorted(libraries.items()):
        copy_stripped(path, to / "libraries" / Path(name).name)
    shutil.copytree(build / "checkpoints", to / "checkpoints")
    shutil.copytree(SOURCE / "tests" / "testing" / "checkpoints", to / "shapes")
    shutil.copytree(SOURCE / "models" / HEAD, to / "models" / HEAD)
    copy_checklist(to)
    (to / "commit").write_text(describe_commit() + "\n")
    nccl = built_nccl(build)
    if nccl is not None:
        (to / "nccl_version").write_text(nccl + "\n")


class Pieces(io.RawIOBase):
    """A file in pieces PATH.00, PATH.01, … of at most so many bytes, and PATH's checksums."""

    def __init__(self, path: Path, piece_bytes: int):
        self.path, self.piece_bytes = path, piece_bytes
        self.room = 0
        self.names: list[str] = []
        self.digests: list = []
        self.file = None

    def writable(self) -> bool:
        return True

    def write(self, data) -> int:
        data = memoryview(data)
        written = len(data)
        while len(data) > 0:
            if self.room == 0:
                self.next_piece()
            part = data[:self.room]
            self.file.write(part)
            self.digests[-1].update(part)
            self.room -= len(part)
            data = data[len(part):]
        return written

    def next_piece(self) -> None:
        if self.file is not None:
            self.file.close()
        self.names.append(f"{self.path.name}.{len(self.names):02}")
        self.digests.append(hashlib.sha256())
        self.file = open(self.path.parent / self.names[-1], "wb")
        self.room = self.piece_bytes

    def close(self) -> None:
        if self.file is not None:
            self.file.close()
            self.file = None
        super().close()

    def checksums(self) -> str:
        """As sha256sum --check reads them."""
        return "".join(f"{digest.hexdigest()}  {name}\n"
                       for name, digest in zip(self.names, self.digests))


def archive(entries: dict[str, Path], name: str, output: Path, piece_bytes: int) -> list[Path]:
    """Name in the archive -> file or folder, as output/NAME.tar.gz.NN."""
    with Pieces(output / f"{name}.tar.gz", piece_bytes) as pieces:
        with gzip.GzipFile(fileobj=pieces, mode="wb", filename="", compresslevel=6,
                           mtime=0) as packed, tarfile.open(fileobj=packed, mode="w|") as tar:
            for entry, path in sorted(entries.items()):
                tar.add(path, arcname=entry)
    (output / f"{name}.sha256").write_text(pieces.checksums())
    return [output / piece for piece in pieces.names]


UNPACK = """\
#!/bin/sh
# Checks the pieces beside this script and puts them together.
#     ./unpack DIR [ARCHIVE…]      (programs and model; all that are here by default)
set -eu
[ $# -ge 1 ] || { echo "usage: unpack DIR [ARCHIVE…]" >&2; exit 2; }
mkdir -p "$1"
to=$(cd "$1" && pwd)
shift
cd "$(dirname "$0")"
[ $# -ge 1 ] || set -- $(ls *.sha256 | sed 's/\\.sha256$//')
for archive in "$@"; do
  sha256sum --check --quiet "$archive.sha256"
  cat $(cut -d ' ' -f 3 "$archive.sha256") | tar -xzf - -C "$to"
done
"""


def write_unpack(output: Path) -> None:
    (output / "unpack").write_text(UNPACK)
    (output / "unpack").chmod(0o755)


def clear(output: Path) -> None:
    """Of an earlier bundle: its pieces could be taken for this one's."""
    for pattern in ("*.tar.gz.*", "*.sha256"):
        for path in output.glob(pattern):
            path.unlink()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=Path, required=True, help="a build of the preset cuda")
    parser.add_argument("--model", type=Path, help="the real model's directory; none: without it")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--piece-mib", type=int, default=24, help="of each piece (default 24)")
    arguments = parser.parse_args()
    piece_bytes = arguments.piece_mib << 20
    arguments.output.mkdir(parents=True, exist_ok=True)
    clear(arguments.output)
    archives = {}
    try:
        with tempfile.TemporaryDirectory(dir=arguments.output, prefix=".bundle-") as work:
            lay_out(Path(work), arguments.build)
            entries = {path.name: path for path in Path(work).iterdir()}
            archives["programs"] = archive(entries, "programs", arguments.output, piece_bytes)
        if arguments.model is not None:
            entries = {f"model/{arguments.model.name}": arguments.model}
            archives["model"] = archive(entries, "model", arguments.output, piece_bytes)
    except BundleError as error:
        print(f"gpu_bundle: {error}", file=sys.stderr)
        return 1
    write_unpack(arguments.output)
    for name, parts in archives.items():
        sizes = [piece.stat().st_size / (1 << 20) for piece in parts]
        for piece, size in zip(parts, sizes):
            print(f"{piece}  {size:.1f} MiB")
        print(f"{name}: {sum(sizes):.1f} MiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Where the programs and models are, and how they are run: from a bundle or from a build tree."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from runner import Failed, Unavailable


LOGGED_CHARACTERS = 20_000  # of a program, its last


class Programs:
    """device: "cuda", or "emulator" for a rehearsal: a small model stands for the real one."""

    def __init__(self, bundle: Path | None, build: Path, source: Path, device: str, work: Path,
                 log: Path):
        """log: takes what programs said that failed, and what servers said."""
        self.device, self.work, self.log = device, work, log
        self.libraries: list[Library] = []  # which a bundle has not, of this machine
        self.seconds_to_end = None  # of the last server
        root = bundle if bundle is not None else build
        programs = root / "programs" if bundle is not None else build / "bin"
        self.tests = programs if bundle is not None else programs / "tests"
        self.outrider = programs / "outrider"
        self.checkpoints = root / "checkpoints"
        self.shapes = root / "shapes" if bundle is not None else (
            source / "tests" / "testing" / "checkpoints")
        cache = Path(os.environ.get("OUTRIDER_CACHE") or "~/.cache/outrider").expanduser()
        self.model = (root / "model" if bundle is not None else cache) / "SmolLM2-135M-Instruct"
        self.head = (root if bundle is not None else source) / "models" / (
            "SmolLM2-135M-Instruct-head")
        if device != "cuda":
            self.outrider = self.tests / "outrider_emu"
            self.model = self.checkpoints / "tiny"
            self.head = self.checkpoints / "tiny-head"
        self.environment = dict(os.environ)
        self.environment["OUTRIDER_TEST_CHECKPOINTS"] = str(self.checkpoints)
        if bundle is not None:
            self.environment["OUTRIDER_CACHE"] = str(self.model.parent)
        if bundle is not None:
            self.use_bundled_libraries(root)

    def use_bundled_libraries(self, root: Path) -> None:
        built = root / "nccl_version"
        self.libraries = gpu_libraries(int(built.read_text()) if built.exists() else 0)
        folders = [str(root / "libraries")]
        folders += [str(Path(library.path).parent) for library in self.libraries
                    if library.path is not None and not library.in_loader]
        old = os.environ.get("LD_LIBRARY_PATH")
        self.environment["LD_LIBRARY_PATH"] = ":".join(folders + ([old] if old else []))
        self.environment.update(openmpi_environment(root / "openmpi"))

    def test_program(self, name: str) -> Path:
        """cuda_NAME is linked for GPUs; NAME runs on the emulator, in a rehearsal."""
        return self.need(self.tests / (f"cuda_{name}" if self.device == "cuda" else name))

    def need(self, path: Path) -> Path:
        if not path.exists():
            raise Unavailable(f"there is no {path}")
        return path

    def slow(self, ranks: int, gpus: int) -> bool:
        """The emulator is, and so are ranks that share a GPU: their sums go over sockets."""
        return self.device != "cuda" or ranks > gpus

    def device_flags(self, ranks: int, gpus: int) -> list[str]:
        """gpus: 0: on the CPU."""
        if gpus == 0:
            return ["--device", "cpu"]
        # What is slow is not measured before it serves.
        unmeasured = ["--prefill-beside", "16", "--lookahead", "fixed:4"]
        beside = unmeasured if self.slow(ranks, gpus) else []
        return ["--device", "cuda", *(["--share-gpus"] if ranks > gpus else []), *beside]

    def run(self, *command, check: bool = True, timeout: float | None = None, env=None):
        """Output as text; a stage's own end is the time limit."""
        done = subprocess.run([str(part) for part in command], text=True, timeout=timeout,
                              env={**self.environment, **(env or {})}, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        if done.returncode != 0 and "health" not in command:
            self.note(command, f"exit status {done.returncode}\n{done.stdout}\n{done.stderr}")
        if check and done.returncode != 0:
            raise Failed(f"{Path(str(command[0])).name} exited with {done.returncode}: "
                         f"{last_line(done.stderr or done.stdout)}")
        return done

    def run_logged(self, *command) -> tuple[int, str]:
        """Exit status and last line. What it prints is in the log as it comes, so that it is there
        of a program that had to be ended."""
        self.note(command, "")
        with open(self.log, "a+") as log:
            begin = log.tell()
            done = subprocess.run([str(part) for part in command], env=self.environment,
                                  stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=False)
            log.seek(begin)
            return done.returncode, last_line(log.read())

    def note(self, command, said: str) -> None:
        with open(self.log, "a") as log:
            log.write(f"== {' '.join(map(str, command))}\n{said[-LOGGED_CHARACTERS:]}\n")

    def run_for(self, seconds: float, *command) -> tuple[int, str] | None:
        """Exit status, and what it printed; None where it did not end in time, and was ended with
        its children."""
        process = subprocess.Popen([str(part) for part in command], text=True,
                                   env=self.environment, preexec_fn=os.setpgrp,
                                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT)
        try:
            output = process.communicate(timeout=max(seconds, 0.1))[0]
            return process.returncode, output
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return None

    def mpirun(self, ranks: int) -> list[str]:
        if ranks == 1:
            return []
        mpirun = shutil.which("mpirun", path=self.environment.get("PATH"))
        if mpirun is None:
            raise Unavailable("there is no mpirun")
        root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
        return [mpirun, *root, "--oversubscribe", "--bind-to", "none", "-np", str(ranks)]

    @contextlib.contextmanager
    def server(self, model: Path, ranks: int, gpus: int, draft: Path | None = None,
               flags: tuple[str, ...] = ()):
        """Serves while the block runs, with the head in `self.head` for the real model; gives the
        address. Behind the block it has to end by itself, and seconds_to_end says how long it
        took."""
        self.need(self.outrider)
        self.need(model / "config.json")
        command = [*self.mpirun(ranks), self.outrider, "serve", "--model", model, "--port", 0,
                   *self.device_flags(ranks, gpus), *(["--draft", draft] if draft else []),
                   *(["--draft-head", self.head] if model == self.model else []), *flags]
        self.note(command, "")
        with open(self.log, "a+") as log:
            begin = log.tell()
            process = subprocess.Popen([str(part) for part in command], env=self.environment,
                                       stdin=subprocess.DEVNULL, stdout=log, stderr=log)
            try:
                while True:
                    ended = process.poll() is not None
                    log.seek(begin)
                    said = log.read()
                    if listening := re.search(r"listening on (127\.0\.0\.1:\d+),", said):
                        break
                    if ended:
                        raise Failed(f"the server did not start: {last_line(said)}")
                    time.sleep(0.1)
                yield listening[1]
            except BaseException:
                process.send_signal(signal.SIGTERM)
                process.wait()
                raise
            self.end_server(process, ranks)

    def end_server(self, process: subprocess.Popen, ranks: int) -> None:
        """As `outrider launch` does, which takes no notice of a rank that hangs at its end: rank 0
        is asked, and mpirun, which would kill them, is not."""
        leader = process.pid if ranks == 1 else rank_0(process.pid)
        began = time.monotonic()
        with contextlib.suppress(ProcessLookupError):
            os.kill(leader, signal.SIGTERM)
        process.wait()
        self.seconds_to_end = round(time.monotonic() - began, 2)
        status = process.returncode if process.returncode >= 0 else 128 - process.returncode
        # A rank that takes too long is ended by its alarm; on the emulator that says nothing.
        if status != 0 and (self.device == "cuda" or status != 128 + signal.SIGALRM):
            raise Failed(f"the server ended with {status} after {self.seconds_to_end} s; expected "
                         f"0")

    def answer(self, address: str, prompt: str, tokens: int, *flags: str) -> dict:
        return json.loads(self.run(self.outrider, "generate", "--address", address, "--format",
                                   "json", "--temperature", "0", "--max-tokens", tokens,
                                   "--raw", "--no-stats", *flags, prompt).stdout)


def openmpi_environment(openmpi: Path) -> dict[str, str]:
    """Tells OpenMPI, and the PMIx that it may have, where they were moved to. Plugins of hwloc are
    not among them, and those of the machine could be of another version."""
    environment = {"PATH": f"{openmpi / 'bin'}:{os.environ.get('PATH', '')}",
                   "HWLOC_PLUGINS_PATH": str(openmpi / "lib" / "hwloc")}
    for project, plugins in (("OPAL", "openmpi"), ("PMIX", "pmix")):
        environment |= {f"{project}_{name}": str(openmpi / path) for name, path in (
            ("PREFIX", ""), ("EXEC_PREFIX", ""), ("BINDIR", "bin"), ("LIBDIR", "lib"),
            ("PKGLIBDIR", f"lib/{plugins}"), ("DATADIR", "share"),
            ("PKGDATADIR", f"share/{plugins}"), ("SYSCONFDIR", "etc"))}
    return environment


class Library(NamedTuple):
    """Of a GPU's own software, as one was found that fits."""
    name: str
    path: str | None  # None: there is none
    version: int | None  # as the library counts
    in_loader: bool  # which finds it by itself
    unfit: dict[str, int | None]  # path -> version; None: it cannot be loaded

    def missing(self) -> str:
        unfit = "".join(f"; {path} is {version or 'not to be loaded'}"
                        for path, version in self.unfit.items())
        return f"there is no {self.name} that the programs can use{unfit}"


# argv: a library, and its function that tells its version.
ASK_VERSION = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
if sys.argv[2] == "ncclGetVersion":
    version = ctypes.c_int()
    library.ncclGetVersion(ctypes.byref(version))
    print(version.value)
else:
    library.cublasLtGetVersion.restype = ctypes.c_size_t
    print(library.cublasLtGetVersion())
"""


def library_version(path: str, function: str) -> int | None:
    done = subprocess.run([sys.executable, "-c", ASK_VERSION, path, function], text=True,
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL, check=False)
    return int(done.stdout) if done.returncode == 0 else None


def nccl_fits(built: int, loaded: int) -> bool:
    """As comm/nccl/nccl_communicator.h has it. built: 0: unknown."""
    return built == 0 or (built // 10000 == loaded // 10000 and loaded // 100 >= built // 100)


def gpu_libraries(built_nccl: int = 0, toolkits: Path = Path("/usr/local"),
                  packages=None) -> list[Library]:
    """What the programs need of a GPU's own software: as the loader finds it, of a CUDA toolkit, or
    of Python packages (packages: default, sys.path), the first that fits."""
    known = subprocess.run(["/sbin/ldconfig", "-p"], text=True, stdin=subprocess.DEVNULL,
                           stdout=subprocess.PIPE, check=False).stdout
    before = [Path(folder) for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":") if folder]
    folders = [folder / name for folder in sorted(toolkits.glob("cuda*"))
               for name in ("lib64", "lib", "targets/x86_64-linux/lib")]
    folders += [Path(folder) / "nvidia" / name / "lib"
                for folder in (sys.path if packages is None else packages)
                for name in ("cu13", "cublas", "nccl")]
    found = []
    for name, function, fits in (
            ("libnccl.so.2", "ncclGetVersion", lambda version: nccl_fits(built_nccl, version)),
            ("libcublasLt.so.13", "cublasLtGetVersion", lambda version: True)):
        in_loader = [str(folder / name) for folder in before if (folder / name).exists()]
        in_loader += re.findall(rf"^\s*{re.escape(name)} .*=> (.+)$", known, re.MULTILINE)
        unfit = {}
        for path in (*in_loader, *(str(folder / name) for folder in folders)):
            if path in unfit or not Path(path).exists():
                continue
            version = library_version(path, function)
            if version is not None and fits(version):
                found.append(Library(name, path, version, path in in_loader[:1], unfit))
                break
            unfit[path] = version
        else:
            found.append(Library(name, None, None, False, unfit))
    return found


def rank_0(mpirun: int) -> int:
    """Process id. mpirun itself, which would kill all ranks, where it has none."""
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # gone meanwhile, or another user's
            parent = int((path / "stat").read_text().rsplit(")", 1)[1].split()[1])
            if parent == mpirun and b"OMPI_COMM_WORLD_RANK=0" in (
                    path / "environ").read_bytes().split(b"\0"):
                return int(path.name)
    return mpirun


def last_line(text: str) -> str:
    """What says why: Outrider's own last word where there is one. mpirun's follow it."""
    lines = [line for line in text.splitlines() if line.strip(" -\t")]
    lines = [line for line in lines if line.startswith("outrider: ")] or lines
    return lines[-1].strip()[:300] if lines else "no output"

"""The stages of the checklist that measure: serving, benchmarks and peers."""

import json
import os
import subprocess
import sys
from pathlib import Path

from programs import Programs, last_line
from runner import Failed, Recorder, Unavailable

SHAPES = ("llama-1b", "llama-8b")
SHORT = {"llama-1b": "1b", "llama-8b": "8b"}
LEAST_TOKENS_PER_STEP = 1.1  # of the real model with its head: an H200 had 1.265


class Measuring:
    def __init__(self, programs: Programs, gpus: int):
        self.programs, self.gpus = programs, gpus

    def serving(self, record: Recorder) -> None:
        programs = self.programs
        slow = programs.slow(1, self.gpus)
        tokens, loads = (4, ((1, 3), (4, 8))) if slow else (64, ((1, 100), (16, 256)))
        # Equal work for all, so that the slowest tell of the server alone. What is recorded as
        # graphs the first time is recorded by the first of two; it leaves no prompt behind for the
        # second to find.
        with programs.server(programs.model, 1, self.gpus,
                             flags=("--no-prefix-cache",)) as address:
            for users, requests in loads:
                output = programs.work / f"load-{users}.json"
                for _ in range(1 if slow else 2):
                    programs.run(programs.outrider, "loadtest", "--address", address,
                                 "--concurrency", users, "--requests", requests, "--max-tokens",
                                 tokens, "--ignore-eos", "--temperature", 0,
                                 "--num-speculative-tokens", 0, "--report-every", 0,
                                 "--prompt-length", f"fixed:{tokens}", "--json", output)
                load = json.loads(output.read_text())
                record.result(f"{users} users", {key: load[key] for key in (
                    "tokens_per_second", "ttft_ms", "tpot_ms", "errors", "greedy")})
                if load["errors"]:
                    raise Failed(f"{users} users: requests failed: {load['errors']}")
                if users == 1:
                    self.record_load(record, load)
        record.result("seconds to end", programs.seconds_to_end)

    def record_load(self, record: Recorder, load: dict) -> None:
        ttft, tpot = load["ttft_ms"], load["tpot_ms"]
        record.figure("serving_tokens_per_second", load["tokens_per_second"])
        record.figure("serving_ttft_p50_ms", ttft["p50"])
        record.figure("serving_ttft_p99_ms", ttft["p99"])
        record.figure("serving_tpot_p50_ms", tpot["p50"])
        record.figure("serving_tpot_p99_ms", tpot["p99"])
        record.figure("serving_tpot_p99_over_p50", tpot["p99"] / tpot["p50"])

    def bench(self, record: Recorder, name: str, *arguments, ranks: int = 1) -> dict:
        """The report that `outrider bench` writes: context, and entries by their names."""
        programs = self.programs
        output = programs.work / f"{name}.json"
        share = ["--share-gpus"] if ranks > self.gpus else []
        programs.run(*programs.mpirun(ranks), programs.outrider, "bench", *arguments, "--device",
                     "cuda", *share, "--json", output)
        report = json.loads(output.read_text())
        entries = {entry["name"]: {key: entry[key] for key in entry if key in (
            "real_time", "bytes_per_second", "of_memory", "flops_per_second", "launches",
            "tokens_per_second", "tokens_per_step", "drafted_per_step", "p99_us", "profile_us")}
            for entry in report["benchmarks"]}
        record.result(name, {"context": report["context"], "benchmarks": entries})
        return {"context": report["context"], "entries": entries}

    def benchmarks(self, record: Recorder) -> None:
        """Times are microseconds, of the device's own clock."""
        programs = self.programs
        programs.need(programs.outrider)
        shapes = [programs.need(programs.shapes / f"{name}.json") for name in self.shapes()]
        real = programs.device == "cuda"
        # On the emulator a small copy, so that there are few of each operand.
        rows, copy = ((), ()) if real else (("--rows", "1,5,8"), ("--copy-mib", 0.0625))
        for shape in shapes:
            planned = programs.run(programs.outrider, "plan", "--model", shape, "--json").stdout
            record.result(f"planned {shape.stem}", json.loads(planned)["passes"])
            decode = ("decode", "--model", shape, "--repeats", 9 if real else 1, "--context",
                      1024 if real else 20, *rows, *copy)
            self.record_decode(record, shape.stem,
                               self.bench(record, f"decode {shape.stem}", *decode))
            for ranks in self.rank_counts():
                self.bench(record, f"decode {shape.stem} on {ranks}", *decode, ranks=ranks)
        flags = [flag for shape in shapes for flag in ("--shape", shape)]
        self.bench(record, "operations", "op", *flags, "--repeats", 5 if real else 1, "--contexts",
                   "1024,8192" if real else "20", *rows, *copy)
        # Of long prompts, what rows of their own bits cost beside cuBLASLt.
        long_rows = ("--rows", "128,512" if real else "70")
        for numerics in ("exact", "fast"):
            self.bench(record, f"long prompts {numerics}", "op", *flags, "--repeats",
                       5 if real else 1, "--contexts", "1024" if real else "20", *long_rows,
                       "--numerics", numerics, *copy)
        self.speculation(record, copy)  # last: it alone needs the real model

    def exchanges(self, record: Recorder) -> None:
        """What ranks cost each other, a GPU each where there are: one row of a large model, and as
        many as are added in blocks. With more than two ranks NCCL's own sums are others."""
        programs = self.programs
        programs.need(programs.outrider)
        for ranks in self.rank_counts() or [2, 3]:
            slow = programs.slow(ranks, self.gpus)
            size = (("--rows", "1,64", "--repeats", 2) if slow else
                    ("--rows", "1,8,64,512", "--repeats", 31))
            for numerics in ("exact", "fast") if ranks > 2 and not slow else ("exact",):
                self.bench(record, f"comm {numerics} on {ranks}", "comm", "--hidden", 4096,
                           "--numerics", numerics, *size, ranks=ranks)

    def speculation(self, record: Recorder, copy) -> None:
        """The real model with its head, with and without drafts: of the time that a speculative
        step should take, (1 + K c) of a plain one where c is what drafting a token takes, what it
        takes."""
        programs = self.programs
        # What steps take is measured before, up to those of a chunk and to a long context.
        size = ("--max-tokens", 128) if programs.device == "cuda" else (
            "--max-tokens", 12, "--rounds", 1, "--prefill-chunk", 16, "--max-positions", 128)
        entries = self.bench(record, "speculation", "serve", "--model",
                             programs.need(programs.model), "--draft-head",
                             programs.need(programs.head), "--num-speculative-tokens", 4,
                             *size, *copy)["entries"]
        plain, step = (entries[f"serve/step/k:{k}"]["profile_us"] for k in (0, 4))
        drafting = entries["serve/draft/k:4"]["real_time"]  # of the same steps' profile
        record.figure("speculative_over_ideal", (plain + drafting) / step)
        # Answers are right whatever is drafted: that it is worth drafting shows here alone.
        per_step = entries["serve/step/k:4"]["tokens_per_step"]
        if programs.device == "cuda" and per_step < LEAST_TOKENS_PER_STEP:
            raise Failed(f"a step with K = 4 makes {per_step} tokens; expected "
                         f"{LEAST_TOKENS_PER_STEP} or more of the head's drafts")

    def rank_counts(self) -> list[int]:
        """A GPU each; the emulator's is shared."""
        return [n for n in (2, 4, 8) if n <= self.gpus] or ([2] if self.programs.slow(1, 1) else [])

    def shapes(self) -> tuple[str, ...]:
        return SHAPES if self.programs.device == "cuda" else ("tiny",)

    def record_decode(self, record: Recorder, shape: str, report: dict) -> None:
        bandwidth = float(report["context"]["memory_bytes_per_second"])
        record.figure("copy_bandwidth", bandwidth / 1e9)
        entries = report["entries"]
        target = {rows: entries[f"decode/target/rows:{rows}"] for rows in (1, 5, 8)}
        ratios = {rows: target[rows]["real_time"] / target[1]["real_time"] for rows in (5, 8)}
        short = SHORT.get(shape, "1b")
        record.figure(f"decode_{short}_ms", target[1]["real_time"] / 1e3)
        record.figure(f"rows5_over_1_{short}", ratios[5])
        if short == "8b":
            record.figure("decode_8b_of_copy", target[1]["of_memory"])
            record.figure("rows8_over_1_8b", ratios[8])
        record.figure("verify_8x128k_us", entries["decode/verify_rejection/rows:8"]["real_time"])

    def peers(self, record: Recorder) -> None:
        """Others with the same shapes and the real model, in the Python that runs this and without
        the bundle's libraries. The last compiles for as long as there is time."""
        shapes = [self.programs.shapes / f"{name}.json" for name in SHAPES]
        problems = []
        for name, *arguments in (("peer_torch.py", *shapes),
                                 ("peer_transformers.py", self.programs.model),
                                 ("peer_torch.py", "--compiled", shapes[0])):
            try:
                self.peer(record, name, *arguments)
            except (Failed, Unavailable) as problem:
                problems.append(problem)
        for problem in sorted(problems, key=lambda problem: isinstance(problem, Unavailable)):
            raise problem

    def peer(self, record: Recorder, name: str, *arguments) -> None:
        """Hears its results as they come."""
        script = Path(__file__).with_name(name)
        said = self.programs.work / "peer.log"
        with open(said, "w") as errors:
            process = subprocess.Popen(
                [sys.executable, str(script), *map(str, arguments)], text=True,
                env=dict(os.environ), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=errors)
        for line in process.stdout:
            try:
                found = json.loads(line)
            except json.JSONDecodeError:
                continue  # what a library prints is no result
            if "unavailable" in found:
                process.wait()
                raise Unavailable(found["unavailable"])
            record.result(found["name"], found)
            if "figure" in found:
                record.figure(found["figure"], found["value"])
        if process.wait() != 0:
            raise Failed(f"{name} exited with {process.returncode}: {last_line(said.read_text())}")

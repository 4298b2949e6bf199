"""What the checklist does: a function a stage, in their order."""

import concurrent.futures
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from programs import Programs, last_line
from runner import Failed, Recorder, Unavailable

PROMPTS = (
    "Write a haiku about rivers.",
    "def fibonacci(n):",
    "Repeat after me: one two three one two three one two three.",
    "Why is the sky blue?",
)


class Answers(NamedTuple):
    """Which are compared."""
    prompts: tuple[str, ...]
    tokens: int
    num_drafted: tuple[int, ...]


ALL_ANSWERS = Answers(PROMPTS, 32, (0, 1, 4, 8))
FEW_ANSWERS = Answers(PROMPTS[2:3], 6, (0, 4))  # where every step takes long
SHAPES = ("llama-1b", "llama-8b")
SANITIZER_SECONDS = 28  # of each tool
SHORT = {"llama-1b": "1b", "llama-8b": "8b"}


def nvidia_smi() -> list[dict]:
    """The GPUs of this machine. Raises Unavailable saying why there are none."""
    program = shutil.which("nvidia-smi")
    if program is None:
        raise Unavailable("there is no nvidia-smi here: no driver, no GPU")
    fields = ("name", "memory.total", "driver_version", "compute_cap")
    done = subprocess.run([program, f"--query-gpu={','.join(fields)}", "--format=csv,noheader"],
                          text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT)
    rows = [line.split(", ") for line in done.stdout.splitlines() if line.count(", ") == 3]
    if done.returncode != 0 or not rows:
        raise Unavailable(f"nvidia-smi shows no GPU: {last_line(done.stdout)}")
    return [dict(zip(("name", "memory", "driver", "capability"), row)) for row in rows]


class Stages:
    def __init__(self, programs: Programs, gpus: int):
        self.programs, self.gpus = programs, gpus

    # [(name, seconds, function)]: together at most eight minutes.
    def all(self):
        return [
            ("device", 10, self.device),
            ("parity", 45, self.parity),
            ("cuda_tests", 50, self.cuda_tests),
            ("bits", 60, self.bits),
            ("serving", 45, self.serving),
            ("benchmarks", 100, self.benchmarks),
            ("peers", 60, self.peers),
            ("ranks", 50, self.ranks),
            ("sanitizers", 60, self.sanitizers),
        ]

    def device(self, record: Recorder) -> None:
        programs = self.programs
        programs.need(programs.outrider)
        record.result("program", programs.run(programs.outrider, "--version").stdout.strip())
        if programs.device != "cuda":
            return
        done = programs.run("nvidia-smi", "topo", "-m", check=False)
        record.result("topology", done.stdout.splitlines())

    def google_test(self, record: Recorder, name: str) -> int:
        """How many of the program's tests failed."""
        programs = self.programs
        program = programs.test_program(name)
        output = programs.work / f"{name}.json"
        done = programs.run(program, f"--gtest_output=json:{output}", check=False)
        if not output.exists():
            raise Failed(f"{program.name} exited with {done.returncode}: "
                         f"{last_line(done.stderr or done.stdout)}")
        report = json.loads(output.read_text())
        cases = [(f"{suite['name']}.{case['name']}", case) for suite in report["testsuites"]
                 for case in suite["testsuite"]]
        failed = [case for case, found in cases if found.get("failures")]
        skipped = [case for case, found in cases if found["result"] == "SKIPPED"]
        record.result(name, {"tests": len(cases), "failed": failed, "skipped": skipped})
        if done.returncode != 0 and not failed:
            raise Failed(f"{program.name} exited with {done.returncode}: {last_line(done.stderr)}")
        return len(failed)

    def parity(self, record: Recorder) -> None:
        failed = self.google_test(record, "parity_tests")
        record.figure("parity_failures", failed)
        if failed > 0:
            raise Failed(f"{failed} tests failed")

    def cuda_tests(self, record: Recorder) -> None:
        failed = 0
        for name in ("nccl_tests", "device_tests"):
            failed += self.google_test(record, name)
            record.figure("cuda_test_failures", failed)
        if failed > 0:
            raise Failed(f"{failed} tests failed")

    def bits(self, record: Recorder) -> None:
        """Greedy answers are the same for every K and drafter, alone and among others."""
        checkpoints = self.programs.checkpoints
        jobs = [(checkpoints / "tiny", checkpoints / "tiny-draft", ranks) for ranks in (1, 2, 3)]
        jobs.append((self.programs.model, None, 1))
        compared = differ = 0
        for model, draft, ranks in jobs:
            which = FEW_ANSWERS if self.programs.slow(ranks, self.gpus) else ALL_ANSWERS
            with self.programs.server(model, ranks, self.gpus, draft) as address:
                found = self.compare_answers(address, which, draft is not None)
            compared += found["compared"]
            differ += len(found["differences"])
            record.result(f"{model.name} on {ranks}", found)
            record.figure("answers_compared", compared)
            record.figure("answers_that_differ", differ)
        if differ > 0:
            raise Failed(f"{differ} of {compared} answers differ")

    def compare_answers(self, address: str, which: Answers, with_draft: bool) -> dict:
        drafters = ["prompt_lookup", "random", *(["model"] if with_draft else [])]

        def ask(job):
            prompt, k, drafter = job
            flags = ("--ignore-eos", "--num-speculative-tokens", str(k), "--drafter", drafter)
            return self.programs.answer(address, prompt, which.tokens, *flags)["token_ids"]

        jobs = [(prompt, k, drafter) for prompt in which.prompts for k in which.num_drafted
                for drafter in (drafters if k > 0 else drafters[:1])]
        alone = {prompt: ask((prompt, 0, drafters[0])) for prompt in which.prompts}
        one_by_one = [ask(job) for job in jobs]
        with concurrent.futures.ThreadPoolExecutor(len(jobs)) as pool:
            together = list(pool.map(ask, jobs))
        differences = [[*job, how] for how, answers in (("alone", one_by_one), ("among", together))
                       for job, answer in zip(jobs, answers) if answer != alone[job[0]]]
        return {"compared": 2 * len(jobs), "differences": differences}

    def serving(self, record: Recorder) -> None:
        programs = self.programs
        slow = programs.slow(1, self.gpus)
        tokens, loads = (4, ((1, 3), (4, 8))) if slow else (64, ((1, 16), (16, 64)))
        with programs.server(programs.model, 1, self.gpus) as address:
            for users, requests in loads:
                output = programs.work / f"load-{users}.json"
                programs.run(programs.outrider, "loadtest", "--address", address, "--concurrency",
                             users, "--requests", requests, "--max-tokens", tokens, "--ignore-eos",
                             "--temperature", 0, "--num-speculative-tokens", 0, "--report-every", 0,
                             "--raw", "--json", output)
                load = json.loads(output.read_text())
                record.result(f"{users} users", {key: load[key] for key in (
                    "tokens_per_second", "ttft_ms", "tpot_ms", "errors", "greedy")})
                if users == 1:
                    self.record_load(record, load)

    def record_load(self, record: Recorder, load: dict) -> None:
        ttft, tpot = load["ttft_ms"], load["tpot_ms"]
        record.figure("serving_tokens_per_second", load["tokens_per_second"])
        record.figure("serving_ttft_p50_ms", ttft["p50"])
        record.figure("serving_ttft_p99_ms", ttft["p99"])
        record.figure("serving_tpot_p50_ms", tpot["p50"])
        record.figure("serving_tpot_p99_ms", tpot["p99"])
        record.figure("serving_tpot_p99_over_p50", tpot["p99"] / tpot["p50"])

    def ranks(self, record: Recorder) -> None:
        """The real model on several ranks: a GPU each where there are, one for two otherwise."""
        for ranks in self.rank_counts() or [2]:
            tokens = 4 if self.programs.slow(ranks, self.gpus) else 32
            with self.programs.server(self.programs.model, ranks, self.gpus) as address:
                answers = {k: self.programs.answer(address, PROMPTS[0], tokens, "--ignore-eos",
                                                   "--num-speculative-tokens", str(k))["token_ids"]
                           for k in (0, 4)}
            record.result(f"{ranks} ranks", {"gpus": min(ranks, self.gpus), "answers": answers})
            if answers[0] != answers[4]:
                raise Failed(f"{ranks} ranks: the answer with K = 4 is not that with K = 0")

    def bench(self, record: Recorder, name: str, *arguments, ranks: int = 1) -> dict:
        """The report that `outrider bench` writes: context, and entries by their names."""
        programs = self.programs
        output = programs.work / f"{name}.json"
        share = ["--share-gpus"] if ranks > self.gpus else []
        programs.run(*programs.mpirun(ranks), programs.outrider, "bench", *arguments, "--device",
                     "cuda", *share, "--json", output)
        report = json.loads(output.read_text())
        entries = {entry["name"]: {key: entry[key] for key in entry if key in (
            "real_time", "bytes_per_second", "of_memory", "flops_per_second", "launches")}
            for entry in report["benchmarks"]}
        record.result(name, {"context": report["context"], "benchmarks": entries})
        return {"context": report["context"], "entries": entries}

    def benchmarks(self, record: Recorder) -> None:
        """Times are microseconds, of the device's own clock."""
        programs = self.programs
        programs.need(programs.outrider)
        shapes = [programs.need(programs.shapes / f"{name}.json") for name in self.shapes()]
        real = programs.device == "cuda"
        rows, copy = ((), ()) if real else (("--rows", "1,5,8"), ("--copy-mib", 1))
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
        """PyTorch on the same shapes, in the Python that runs this, without the bundle's libraries."""
        script = Path(__file__).with_name("peer_torch.py")
        shapes = [self.programs.shapes / f"{name}.json" for name in SHAPES]
        process = subprocess.Popen([sys.executable, str(script), *map(str, shapes)], text=True,
                                   env=dict(os.environ), stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for line in process.stdout:  # one result each, as they come
            found = json.loads(line)
            if "unavailable" in found:
                raise Unavailable(found["unavailable"])
            record.result(found["name"], found)
            if "figure" in found:
                record.figure(found["figure"], found["value"])
        errors = process.stderr.read()
        if process.wait() != 0:
            raise Failed(f"{script.name} exited with {process.returncode}: {last_line(errors)}")

    def sanitizers(self, record: Recorder) -> None:
        """Over the parity list, a suite at a time, for as long as there is time."""
        sanitizer = shutil.which("compute-sanitizer") or shutil.which(
            "/usr/local/cuda/bin/compute-sanitizer")
        if sanitizer is None:
            raise Unavailable("there is no compute-sanitizer here")
        program = self.programs.test_program("parity_tests")
        listed = self.programs.run(program, "--gtest_list_tests").stdout
        # The small ones first: the last may not get their turn.
        suites = sorted((line.split("#")[0].strip() for line in listed.splitlines()
                         if line.split("#")[0].strip().endswith(".")),
                        key=lambda suite: "Operations" in suite)
        wrong = [self.sanitize(record, [sanitizer, "--tool", tool], program, suites, figure, pattern)
                 for tool, figure, pattern in (
                     ("memcheck", "memcheck_errors", r"ERROR SUMMARY: (\d+) error"),
                     ("racecheck", "racecheck_hazards", r"RACECHECK SUMMARY: (\d+) hazard"))]
        if any(wrong):
            raise Failed(next(text for text in wrong if text))

    def sanitize(self, record: Recorder, command, program, suites, figure, pattern) -> str:
        """What is wrong; empty where nothing is."""
        tool = command[-1]
        deadline = time.monotonic() + SANITIZER_SECONDS
        covered, count = [], 0
        for suite in suites:
            output = self.programs.run_for(deadline - time.monotonic(), *command, program,
                                           f"--gtest_filter={suite}*")
            if output is None:
                break
            found = re.search(pattern, output)
            if found is None:
                return f"{tool} said no summary: {last_line(output)}"
            covered.append(suite)
            count += int(found.group(1))
            left = [suite for suite in suites if suite not in covered]
            record.result(tool, {"suites": covered, "no time for": left, "found": count,
                                 "end": output.splitlines()[-5:]})
            record.figure(figure, count)
        if not covered:
            return f"{tool}: no suite ended in its {SANITIZER_SECONDS} s"
        return f"{tool}: {count} found, see its results" if count > 0 else ""

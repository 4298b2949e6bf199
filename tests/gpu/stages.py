"""What the checklist does: a function a stage, in their order."""

import concurrent.futures
import json
import os
import re
import shutil
import subprocess
import sys
import time
import zlib
from pathlib import Path
from typing import NamedTuple

from measuring import Measuring
from programs import last_line
from runner import Failed, Recorder, Unavailable

PROMPTS = (
    "Write a haiku about rivers.",
    "def fibonacci(n):",
    "Repeat after me: one two three one two three one two three.",
    "Why is the sky blue?",
)
LONG_PROMPT = " ".join(f"Item {i} is followed by item {i + 1}." for i in range(24))


class Answers(NamedTuple):
    """Which are compared."""
    prompts: tuple[str, ...]
    tokens: int
    num_drafted: tuple[int, ...]


ALL_ANSWERS = Answers(PROMPTS, 32, (0, 1, 4, 8))
FEW_ANSWERS = Answers(PROMPTS[2:3], 6, (0, 4))  # where every step takes long
SANITIZER_SECONDS = {"memcheck": 28, "racecheck": 68}


# What the report calls it -> what nvidia-smi does.
GPU_FIELDS = {"name": "name", "memory": "memory.total", "driver": "driver_version",
              "capability": "compute_cap", "persistence_mode": "persistence_mode",
              "compute_mode": "compute_mode", "mig_mode": "mig.mode.current"}
# Prints how many GPUs a program is shown, or the error of cuInit or cuDeviceGetCount.
COUNT_GPUS = """
import ctypes
cuda, count = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
error = cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count))
print(f"error {error}" if error else count.value)
"""


def nvidia_smi() -> list[dict]:
    """The GPUs of this machine. Raises Unavailable saying why there are none."""
    program = shutil.which("nvidia-smi")
    if program is None:
        raise Unavailable("there is no nvidia-smi here: no driver, no GPU")
    done = subprocess.run(
        [program, f"--query-gpu={','.join(GPU_FIELDS.values())}", "--format=csv,noheader"],
        text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    rows = [line.split(", ") for line in done.stdout.splitlines()]
    rows = [row for row in rows if len(row) == len(GPU_FIELDS)]
    if done.returncode != 0 or not rows:
        raise Unavailable(f"nvidia-smi shows no GPU: {last_line(done.stdout)}")
    return [dict(zip(GPU_FIELDS, row)) for row in rows]


def count_gpus() -> int:
    """As programs are shown them: CUDA_VISIBLE_DEVICES and MIG make them others than nvidia-smi's.
    In a process of its own, since this one forks. Raises Unavailable where there are none."""
    done = subprocess.run([sys.executable, "-c", COUNT_GPUS], text=True, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    said = done.stdout.strip()
    if not said.isdigit() or int(said) == 0:
        raise Unavailable(f"CUDA's driver shows no GPU: {said or last_line(done.stderr)}")
    return int(said)


def by_turns(suites: list[str], commit: str | None) -> list[str]:
    """The suites as sanitizers take them. There is no time for all, so each commit begins elsewhere;
    the large ones come last."""
    small = [suite for suite in suites if "Operations" not in suite]
    first = zlib.crc32((commit or "").encode()) % max(len(small), 1)
    return small[first:] + small[:first] + [suite for suite in suites if suite not in small]


class Stages(Measuring):
    commit: str | None = None  # that is tried

    # [(name, seconds, function)]: together at most eight minutes.
    def all(self):
        return [
            ("device", 10, self.device),
            ("parity", 30, self.parity),
            ("cuda_tests", 35, self.cuda_tests),
            ("bits", 50, self.bits),
            ("serving", 40, self.serving),
            ("benchmarks", 60, self.benchmarks),
            ("exchanges", 20, self.exchanges),
            ("peers", 95, self.peers),
            ("ranks", 40, self.ranks),
            ("sanitizers", 100, self.sanitizers),
        ]

    def device(self, record: Recorder) -> None:
        programs = self.programs
        programs.need(programs.outrider)
        record.result("libraries", {library.name: library._asdict()
                                    for library in programs.libraries})
        for library in programs.libraries:
            if library.path is None:
                raise Failed(library.missing())
        record.result("program", programs.run(programs.outrider, "--version").stdout.strip())
        if programs.device != "cuda":
            return
        done = programs.run("nvidia-smi", "topo", "-m", check=False)
        plain = re.sub(r"\x1b\[[0-9;]*m", "", done.stdout)
        record.result("topology", plain.splitlines())

    def suites(self, program: Path) -> list[str]:
        """Of a test program, as it lists them: "Suite." """
        listed = self.programs.run(program, "--gtest_list_tests").stdout
        names = (line.split("#")[0].strip() for line in listed.splitlines()
                 if not line.startswith(" "))
        return [name for name in names if name.endswith(".")]

    def google_test(self, record: Recorder, name: str) -> int:
        """How many of the program's tests failed. A process a suite: an error that a GPU does not
        recover from is that suite's alone, and what was found is kept."""
        programs = self.programs
        program = programs.test_program(name)
        tests, failed, skipped = 0, {}, []
        for suite in self.suites(program):
            output = programs.work / f"{name}.json"
            output.unlink(missing_ok=True)
            status, last = programs.run_logged(program, f"--gtest_filter={suite}*",
                                               f"--gtest_output=json:{output}", "--gtest_color=no")
            written = output.exists()
            report = json.loads(output.read_text()) if written else {"testsuites": []}
            cases = [(f"{found['name']}.{case['name']}", case) for found in report["testsuites"]
                     for case in found["testsuite"]]
            tests += len(cases)
            wrong = {case: found["failures"][0]["failure"][:500] for case, found in cases
                     if found.get("failures")}
            if (status != 0 or not written) and not wrong:
                wrong = {suite: f"exited with {status}: {last}"}
            failed |= wrong
            skipped += [case for case, found in cases if found["result"] == "SKIPPED"]
            record.result(name, {"tests": tests, "failed": failed, "skipped": skipped})
        if tests == 0:
            raise Failed(f"{program.name} has no tests")
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
        """Greedy answers are the same for every K and drafter, alone and among others. What a model
        that is here says wrong is told before that another is not."""
        checkpoints = self.programs.checkpoints
        jobs = [(checkpoints / "tiny", checkpoints / "tiny-draft", ranks, "model")
                for ranks in (1, 2, 3)]
        jobs.append((self.programs.model, None, 1, "head"))
        compared = differ = 0
        unavailable = None
        for model, draft, ranks, own in jobs:
            which = FEW_ANSWERS if self.programs.slow(ranks, self.gpus) else ALL_ANSWERS
            try:
                with self.programs.server(model, ranks, self.gpus, draft) as address:
                    found = self.compare_answers(address, which, own)
            except Unavailable as why:
                unavailable = why
                continue
            found["seconds to end"] = self.programs.seconds_to_end
            compared += found["compared"]
            differ += len(found["differences"])
            record.result(f"{model.name} on {ranks}", found)
            record.figure("answers_compared", compared)
            record.figure("answers_that_differ", differ)
        if differ > 0:
            raise Failed(f"{differ} of {compared} answers differ")
        if unavailable is not None:
            raise unavailable

    def compare_answers(self, address: str, which: Answers, own: str) -> dict:
        """own: the drafter that the model has of its own."""
        drafters = ["prompt_lookup", "ngram", "random", own]

        def ask(job):
            prompt, *flags = job
            return self.programs.answer(address, prompt, which.tokens, "--ignore-eos",
                                        *flags)["token_ids"]

        def drafts(k, drafter):
            return ("--num-speculative-tokens", str(k), "--drafter", drafter)

        ways = [drafts(k, drafter) for k in which.num_drafted
                for drafter in (drafters if k > 0 else drafters[:1])]
        ways.append((*drafts(4, own), "--num-alternatives", "3"))
        ways.append(())  # as the server chooses
        jobs = [(prompt, *way) for prompt in which.prompts for way in ways]
        alone = {prompt: ask((prompt, *drafts(0, drafters[0]))) for prompt in which.prompts}
        one_by_one = [ask(job) for job in jobs]
        with concurrent.futures.ThreadPoolExecutor(len(jobs)) as pool:
            together = list(pool.map(ask, jobs))
        differences = [[*job, how] for how, answers in (("alone", one_by_one), ("among", together))
                       for job, answer in zip(jobs, answers) if answer != alone[job[0]]]
        return {"compared": 2 * len(jobs), "differences": differences}

    def ranks(self, record: Recorder) -> None:
        """The real model on several ranks: a GPU each where there are, one for two and three
        otherwise. The long prompt's sums are large enough for the ranks to add a block each. How
        far the CPU says the same is told; a tie may fall either way, but not at the first token: a
        sum that is not one, or a slice of other weights, answers something else at once."""
        programs = self.programs
        prompts = {"short": PROMPTS[0], "long": LONG_PROMPT}

        def ask(address: str, prompt: str, tokens: int, k: int) -> list[int]:
            return programs.answer(address, prompt, tokens, "--ignore-eos",
                                   "--num-speculative-tokens", str(k))["token_ids"]

        with programs.server(programs.model, 1, 0) as address:
            cpu = {name: ask(address, prompt, 32, 0) for name, prompt in prompts.items()}
        for ranks in self.rank_counts() or [2, 3]:
            tokens = 4 if programs.slow(ranks, self.gpus) else 32
            with programs.server(programs.model, ranks, self.gpus) as address:
                answers = {name: ask(address, prompt, tokens, 0)
                           for name, prompt in prompts.items()}
                speculated = ask(address, prompts["short"], tokens, 4)
            alike = {name: len(os.path.commonprefix([cpu[name], found]))
                     for name, found in answers.items()}
            record.result(f"{ranks} ranks", {"gpus": min(ranks, self.gpus), "answers": answers,
                                             "with K = 4": speculated,
                                             "seconds to end": programs.seconds_to_end,
                                             "tokens like the CPU's": alike})
            for name, tokens_alike in alike.items():
                if tokens_alike == 0:
                    raise Failed(f"{ranks} ranks: no token of the {name} prompt's answer is that "
                                 "of the CPU")
            if answers["short"] != speculated:
                raise Failed(f"{ranks} ranks: the answer with K = 4 is not that with K = 0")

    def sanitizers(self, record: Recorder) -> None:
        """Over the parity list, a suite at a time, for as long as there is time."""
        sanitizer = shutil.which("compute-sanitizer") or shutil.which(
            "/usr/local/cuda/bin/compute-sanitizer")
        if sanitizer is None:
            raise Unavailable("there is no compute-sanitizer here")
        program = self.programs.test_program("parity_tests")
        suites = by_turns(self.suites(program), self.commit)
        wrong = [
            self.sanitize(record, [sanitizer, "--tool", tool], program, suites, figure, pattern)
            for tool, figure, pattern in (
                ("memcheck", "memcheck_errors", r"ERROR SUMMARY: (\d+) error"),
                ("racecheck", "racecheck_hazards", r"RACECHECK SUMMARY: (\d+) hazard"))]
        if any(wrong):
            raise Failed(next(text for text in wrong if text))
        if None in wrong:
            raise Unavailable("no suite ended in the time of its tool")

    def sanitize(self, record: Recorder, command, program, suites, figure, pattern) -> str | None:
        """What is wrong; empty where nothing is, None where nothing was seen to its end."""
        tool = command[-1]
        deadline = time.monotonic() + SANITIZER_SECONDS[tool]
        covered, count = [], 0
        for suite in suites:
            ended = self.programs.run_for(deadline - time.monotonic(), *command, program,
                                          f"--gtest_filter={suite}*")
            if ended is None:
                break
            status, output = ended
            found = re.search(pattern, output)
            if found is None:
                return f"{tool} said no summary: {last_line(output)}"
            # A program that failed, or that never ran, has no errors of the sanitizer's either.
            if int(found.group(1)) == 0 and (status != 0 or "[  PASSED  ]" not in output):
                return f"{suite} failed under {tool}, with status {status}: {last_line(output)}"
            covered.append(suite)
            count += int(found.group(1))
            left = [suite for suite in suites if suite not in covered]
            record.result(tool, {"suites": covered, "no time for": left, "found": count,
                                 "end": output.splitlines()[-5:]})
            record.figure(figure, count)
        if not covered:
            return None
        return f"{tool}: {count} found, see its results" if count > 0 else ""

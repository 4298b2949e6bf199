"""What the checklist does: a function a stage, in their order."""

import concurrent.futures
import json
import re
import shutil
import subprocess

from programs import Programs, last_line
from runner import Failed, Recorder, Unavailable

PROMPTS = (
    "Write a haiku about rivers.",
    "def fibonacci(n):",
    "Repeat after me: one two three one two three one two three.",
    "Why is the sky blue?",
)
TOKENS = 32
NUM_DRAFTED = (0, 1, 4, 8)
SHAPES = ("llama-1b", "llama-8b")


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
            ("device", 15, self.device),
            ("parity", 50, self.parity),
            ("cuda_tests", 60, self.cuda_tests),
            ("bits", 75, self.bits),
            ("serving", 60, self.serving),
            ("ranks", 50, self.ranks),
            ("benchmarks", 110, self.benchmarks),
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

    def google_test(self, record: Recorder, name: str, program, figure: str) -> None:
        programs = self.programs
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
        record.figure(figure, len(failed))
        if failed:
            raise Failed(f"{len(failed)} of {len(cases)} tests failed, first {failed[0]}")

    def parity(self, record: Recorder) -> None:
        self.google_test(record, "parity_tests", self.programs.test_program("parity_tests"),
                         "parity_failures")

    def cuda_tests(self, record: Recorder) -> None:
        self.google_test(record, "device_tests", self.programs.test_program("device_tests"),
                         "cuda_test_failures")

    def bits(self, record: Recorder) -> None:
        """Greedy answers are the same for every K and drafter, alone and among others."""
        checkpoints = self.programs.checkpoints
        jobs = [(checkpoints / "tiny", checkpoints / "tiny-draft", ranks) for ranks in (1, 2, 3)]
        jobs.append((self.programs.model, None, 1))
        compared = differ = 0
        for model, draft, ranks in jobs:
            with self.programs.server(model, ranks, self.gpus, draft) as address:
                found = self.compare_answers(address, draft is not None)
            compared += found["compared"]
            differ += len(found["differences"])
            record.result(f"{model.name} on {ranks}", found)
            record.figure("answers_compared", compared)
            record.figure("answers_that_differ", differ)
        if differ > 0:
            raise Failed(f"{differ} of {compared} answers differ")

    def compare_answers(self, address: str, with_draft: bool) -> dict:
        drafters = ["prompt_lookup", "random", *(["model"] if with_draft else [])]

        def ask(job):
            prompt, k, drafter = job
            flags = ("--ignore-eos", "--num-speculative-tokens", str(k), "--drafter", drafter)
            return self.programs.answer(address, prompt, TOKENS, *flags)["token_ids"]

        jobs = [(prompt, k, drafter) for prompt in PROMPTS for k in NUM_DRAFTED
                for drafter in (drafters if k > 0 else drafters[:1])]
        alone = {prompt: ask((prompt, 0, drafters[0])) for prompt in PROMPTS}
        one_by_one = [ask(job) for job in jobs]
        with concurrent.futures.ThreadPoolExecutor(len(jobs)) as pool:
            together = list(pool.map(ask, jobs))
        differences = [[*job, how] for how, answers in (("alone", one_by_one), ("among", together))
                       for job, answer in zip(jobs, answers) if answer != alone[job[0]]]
        return {"compared": 2 * len(jobs), "differences": differences}

    def serving(self, record: Recorder) -> None:
        programs = self.programs
        with programs.server(programs.model, 1, self.gpus) as address:
            for users, requests in ((1, 16), (16, 64)):
                output = programs.work / f"load-{users}.json"
                programs.run(programs.outrider, "loadtest", "--address", address, "--concurrency",
                             users, "--requests", requests, "--max-tokens", 64, "--ignore-eos",
                             "--temperature", 0, "--num-speculative-tokens", 0, "--report-every", 0,
                             "--json", output)
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
        """The real model on several ranks: a GPU each where there are, one for all otherwise."""
        counts = [n for n in (2, 4, 8) if n <= self.gpus] or [2, 3]
        for ranks in counts:
            with self.programs.server(self.programs.model, ranks, self.gpus) as address:
                answers = {k: self.programs.answer(address, PROMPTS[0], 8,
                                                   "--num-speculative-tokens", str(k))["token_ids"]
                           for k in (0, 4)}
            record.result(f"{ranks} ranks", {"gpus": min(ranks, self.gpus), "answers": answers})
            if answers[0] != answers[4]:
                raise Failed(f"{ranks} ranks: the answer with K = 4 is not that with K = 0")

    def benchmarks(self, record: Recorder) -> None:
        programs = self.programs
        programs.need(programs.outrider)
        for shape in SHAPES:
            path = programs.need(programs.shapes / f"{shape}.json")
            planned = programs.run(programs.outrider, "plan", "--model", path, "--json").stdout
            record.result(f"planned {shape}", json.loads(planned)["passes"])
        raise Unavailable("outrider bench decode does not take --device yet")

    def sanitizers(self, record: Recorder) -> None:
        programs = self.programs
        sanitizer = shutil.which("compute-sanitizer") or shutil.which(
            "/usr/local/cuda/bin/compute-sanitizer")
        if sanitizer is None:
            raise Unavailable("there is no compute-sanitizer here")
        program = programs.test_program("parity_tests")
        for tool, figure, pattern in (
                ("memcheck", "memcheck_errors", r"ERROR SUMMARY: (\d+) error"),
                ("racecheck", "racecheck_hazards",
                 r"RACECHECK SUMMARY: (\d+) hazard")):
            done = programs.run(sanitizer, "--tool", tool, program, check=False)
            found = re.search(pattern, done.stdout)
            if found is None:
                raise Failed(f"{tool} said no summary: {last_line(done.stdout)}")
            record.result(tool, done.stdout.splitlines()[-5:])
            record.figure(figure, int(found.group(1)))
            if int(found.group(1)) > 0:
                raise Failed(f"{tool}: {found.group(0)}")

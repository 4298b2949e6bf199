#!/usr/bin/env python3
"""The checklist where there is no GPU, and its machinery.

    gpu_checklist_test.py
"""

import collections
import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import types
import unittest
from pathlib import Path
from unittest import mock

SOURCE = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(SOURCE / "tests" / "gpu"))

from programs import Library, Programs, gpu_libraries  # noqa: E402
from report import FIGURES, NOT_MEASURED, Report  # noqa: E402
from runner import Failed, Unavailable, run_stage, session_members  # noqa: E402
from stages import Stages, by_turns  # noqa: E402

README = (SOURCE / "docs" / "benchmarks" / "gpu" / "README.md").read_text()


def table(heading: str) -> list[list[str]]:
    """Rows of README's table whose first column is called `heading`."""
    lines = README.split(f"| {heading} |", 1)[1].splitlines()[2:]
    rows = []
    for line in lines:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


def checklist(*arguments, path=None):
    with tempfile.TemporaryDirectory() as empty:
        return subprocess.run(
            [sys.executable, str(SOURCE / "tests" / "gpu_checklist"), *map(str, arguments)],
            env={**os.environ, "PATH": path or empty}, text=True, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)


class NoGpu(unittest.TestCase):
    def setUp(self):
        self.output = Path(self.enterContext(tempfile.TemporaryDirectory()))

    def run_it(self, *arguments, **more):
        done = checklist("--output", self.output, *arguments, **more)
        return done, json.loads((self.output / "gpu_report.json").read_text())

    def test_says_so_in_one_line_and_measures_nothing(self):
        done, report = self.run_it()
        self.assertEqual(done.returncode, 1)
        self.assertEqual(done.stdout, "")
        self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
        self.assertIn("nvidia-smi", done.stderr)
        self.assertEqual(report["status"], "unavailable")
        self.assertEqual({f["value"] for f in report["figures"]}, {NOT_MEASURED})
        self.assertEqual({s["status"] for s in report["stages"]}, {"not run"})
        self.assertIn("| decode_1b_ms | not measured |",
                      (self.output / "gpu_report.md").read_text())

    def test_a_driver_without_a_gpu(self):
        fake = self.output / "nvidia-smi"
        fake.write_text("#!/bin/sh\necho 'No devices were found'\nexit 6\n")
        fake.chmod(0o755)
        done, report = self.run_it(path=str(self.output))
        self.assertEqual(done.returncode, 1)
        self.assertIn("No devices were found", report["reason"])

    def test_the_report_is_what_the_readme_says(self):
        _, report = self.run_it()
        keys = {key for row in table("key") for key in re.findall(r"`(\w+)`", row[0])}
        self.assertEqual(set(report), keys)
        self.assertEqual([[s["name"], str(s["budget_seconds"])] for s in report["stages"]],
                         [row[:2] for row in table("stage")])
        self.assertEqual([[f["name"], f["unit"], f["goal"], f["best_known"]]
                          for f in report["figures"]], table("figure"))
        self.assertLessEqual(sum(s["budget_seconds"] for s in report["stages"]), 480)

    def test_a_stage_that_there_is_not(self):
        done = checklist("--only", "speed", "--output", self.output)
        self.assertEqual(done.returncode, 2)
        self.assertIn("there is no stage speed", done.stderr)

    def with_driver(self, gpus: int, error: int = 0):
        """Of which nvidia-smi shows two GPUs, and libcuda so many."""
        fake = self.output / "nvidia-smi"
        fake.write_text("#!/bin/sh\nfor i in 1 2; do "
                        "echo 'Fake GPU, 1 MiB, 1.0, 9.0, Enabled, Default, [N/A]'; done\n")
        fake.chmod(0o755)
        source = self.output / "cuda.c"
        source.write_text(f"int cuInit(unsigned flags) {{ return {error}; }}\n"
                          f"int cuDeviceGetCount(int* n) {{ *n = {gpus}; return 0; }}\n")
        subprocess.run(["cc", "-shared", "-fPIC", "-o", self.output / "libcuda.so.1", source],
                       check=True, stdin=subprocess.DEVNULL)
        self.enterContext(mock.patch.dict(os.environ, LD_LIBRARY_PATH=str(self.output)))
        return self.run_it("--build", self.output / "nowhere", path=str(self.output))

    def test_gpus_that_programs_are_not_shown(self):
        done, report = self.with_driver(0, error=100)
        self.assertEqual(done.returncode, 1)
        self.assertEqual(report["reason"], "CUDA's driver shows no GPU: error 100")

    def test_a_gpu_and_no_programs_is_a_valid_report(self):
        done, report = self.with_driver(1)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual((len(report["gpus"]), report["num_gpus"]), (2, 1))
        self.assertEqual(report["gpus"][0], {
            "name": "Fake GPU", "memory": "1 MiB", "driver": "1.0", "capability": "9.0",
            "persistence_mode": "Enabled", "compute_mode": "Default", "mig_mode": "[N/A]"})
        self.assertEqual({s["status"] for s in report["stages"]}, {"unavailable"})
        self.assertEqual({f["value"] for f in report["figures"]}, {NOT_MEASURED})


NCCL = "int ncclGetVersion(int* version) {{ *version = {}; return 0; }}"
BLAS = "#include <stddef.h>\nsize_t cublasLtGetVersion(void) {{ return {}; }}"


class Libraries(unittest.TestCase):
    def setUp(self):
        folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.toolkits, self.packages = folder / "local", folder / "packages"
        self.toolkit = self.toolkits / "cuda-13.1" / "lib64"
        self.enterContext(mock.patch.dict(os.environ, LD_LIBRARY_PATH=""))

    def make(self, folder: Path, name: str, source: str) -> str:
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run(["cc", "-shared", "-fPIC", "-x", "c", "-o", folder / name, "-"], text=True,
                       input=source, check=True)
        return str(folder / name)

    def find(self, built_nccl: int):
        # What the loader knows of this machine is not among them.
        nothing = types.SimpleNamespace(stdout="")
        real = subprocess.run
        with mock.patch.object(subprocess, "run", lambda command, **how: (
                nothing if "ldconfig" in command[0] else real(command, **how))):
            return gpu_libraries(built_nccl, self.toolkits, [str(self.packages)])

    def test_are_found_in_a_toolkit_and_in_python_packages(self):
        blas = self.make(self.toolkit, "libcublasLt.so.13", BLAS.format(130100))
        self.make(self.packages / "nvidia" / "cu13" / "lib", "libcublasLt.so.13", BLAS.format(1))
        nccl = self.make(self.packages / "nvidia" / "nccl" / "lib", "libnccl.so.2",
                         NCCL.format(22809))
        self.assertEqual(self.find(22809), [
            Library("libnccl.so.2", nccl, 22809, False, {}),
            Library("libcublasLt.so.13", blas, 130100, False, {})])

    def test_one_that_is_too_old_is_passed_over(self):
        old = self.make(self.toolkit, "libnccl.so.2", NCCL.format(21903))
        broken = self.packages / "nvidia" / "cu13" / "lib" / "libnccl.so.2"
        broken.parent.mkdir(parents=True)
        broken.touch()
        new = self.make(self.packages / "nvidia" / "nccl" / "lib", "libnccl.so.2",
                        NCCL.format(22902))
        unfit = {old: 21903, str(broken): None}
        self.assertEqual(self.find(22809)[0], Library("libnccl.so.2", new, 22902, False, unfit))
        os.environ["LD_LIBRARY_PATH"] = str(Path(new).parent)
        self.assertEqual(self.find(22809)[0], Library("libnccl.so.2", new, 22902, True, {}))

    def test_the_stage_says_which_is_missing(self):
        old = self.make(self.toolkit, "libnccl.so.2", NCCL.format(21903))
        programs = mock.Mock(libraries=self.find(22809))
        with self.assertRaisesRegex(Failed, f"there is no libnccl.so.2 .*; {old} is 21903"):
            Stages(programs, 1).device(mock.Mock())


# Two suites, of which the second may end with its process.
PROGRAM = """#!{python}
import json, sys
if "--gtest_list_tests" in sys.argv:
    print("First.\\n  Passes\\n  Fails\\nSecond/Types.  # TypeParam\\n  Dies")
    sys.exit()
flags = dict(word.lstrip("-").split("=", 1) for word in sys.argv[1:])
if flags["gtest_filter"].startswith("Second"):
    sys.exit(9)
cases = [dict(name="Passes", result="COMPLETED"), dict(name="Skips", result="SKIPPED"),
         dict(name="Fails", result="COMPLETED", failures=[dict(failure="no")])]
with open(flags["gtest_output"].removeprefix("json:"), "w") as file:
    json.dump(dict(testsuites=[dict(name="First", testsuite=cases)]), file)
sys.exit(1)
"""


class GoogleTests(unittest.TestCase):
    def test_a_suite_that_dies_is_one_failure_among_the_others(self):
        folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        program = folder / "bin" / "tests" / "cuda_parity_tests"
        program.parent.mkdir(parents=True)
        program.write_text(PROGRAM.format(python=sys.executable))
        program.chmod(0o755)
        stages = Stages(Programs(None, folder, SOURCE, "cuda", folder, folder / "log"), 1)
        heard = []
        recorder = types.SimpleNamespace(result=lambda name, found: heard.append(found))
        self.assertEqual(stages.google_test(recorder, "parity_tests"), 2)
        self.assertEqual([found["tests"] for found in heard], [3, 3])
        self.assertEqual(heard[-1]["skipped"], ["First.Skips"])
        self.assertEqual(heard[-1]["failed"]["First.Fails"], "no")
        self.assertIn("exited with 9", heard[-1]["failed"]["Second/Types."])

    def test_sanitizers_begin_elsewhere_for_each_commit(self):
        suites = ["Attention.", "CudaOperations.", "Linear.", "Verify."]
        orders = [by_turns(suites, str(commit)) for commit in range(50)]
        self.assertEqual({order[0] for order in orders}, {"Attention.", "Linear.", "Verify."})
        for order in orders:
            self.assertEqual((sorted(order), order[-1]), (suites, "CudaOperations."))
        self.assertEqual(by_turns(suites, "7"), by_turns(suites, "7"))
        self.assertEqual(sorted(by_turns(suites, None)), suites)
        self.assertEqual(by_turns([], None), [])

    def test_every_figure_is_somebodys(self):
        scripts = "".join(path.read_text() for path in (SOURCE / "tests" / "gpu").glob("*.py")
                          if path.name not in ("report.py", "gpu_checklist_test.py"))
        # Those that stand for a shape, or for a tool.
        built = ("_1b", "_8b", "memcheck_errors", "racecheck_hazards")
        for figure in FIGURES:
            if not any(part in figure.name for part in built):
                self.assertIn(f'"{figure.name}"', scripts)


# A server that is not right in the end.
SERVER = """#!{python}
import signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit({status}))
print("listening on 127.0.0.1:1, 1 ranks", flush=True)
signal.pause()
"""


class ServerEnd(unittest.TestCase):
    def serve(self, status: int, device="cuda", work=lambda: None) -> Programs:
        folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        tests = folder / "bin" / "tests"
        tests.mkdir(parents=True)
        for program in (tests.parent / "outrider", tests / "outrider_emu"):
            program.write_text(SERVER.format(python=sys.executable, status=status))
            program.chmod(0o755)
        (folder / "config.json").touch()
        programs = Programs(None, folder, SOURCE, device, folder, folder / "log")
        with programs.server(folder, 1, 1) as address:
            self.assertEqual(address, "127.0.0.1:1")
            work()
        return programs

    def test_in_order(self):
        self.assertGreaterEqual(self.serve(0).seconds_to_end, 0)

    def test_with_another_status_is_a_failure(self):
        with self.assertRaisesRegex(Failed, r"the server ended with 143 after 0\.\d+ s"):
            self.serve(143)
        with self.assertRaisesRegex(Failed, "the server ended with 142"):
            self.serve(142)

    def test_on_the_emulator_may_be_slow(self):
        self.serve(142, "emulator")
        with self.assertRaisesRegex(Failed, "the server ended with 143"):
            self.serve(143, "emulator")

    def test_comes_behind_what_went_wrong_before(self):
        def work():
            raise Failed("wrong answer")
        with self.assertRaisesRegex(Failed, "wrong answer"):
            self.serve(143, work=work)


class NoModel(unittest.TestCase):
    """Stages of which a part needs the real model, which is not here."""

    def setUp(self):
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.enterContext(mock.patch.dict(os.environ, OUTRIDER_CACHE=str(self.folder / "cache")))
        program = self.folder / "bin" / "outrider"
        program.parent.mkdir()
        program.touch()
        programs = Programs(None, self.folder, SOURCE, "cuda", self.folder, self.folder / "log")
        self.stages = Stages(programs, 1)
        self.record = mock.Mock()

    def bits(self, differences: list) -> None:
        programs = self.stages.programs

        @contextlib.contextmanager
        def server(model, *_):
            if model == programs.model:
                programs.need(model / "config.json")
            yield "nowhere"

        found = {"compared": 4, "differences": differences}
        with mock.patch.object(programs, "server", server), mock.patch.object(
                self.stages, "compare_answers", return_value=found):
            self.stages.bits(self.record)

    def test_wrong_answers_of_another_are_a_failure(self):
        with self.assertRaisesRegex(Failed, "3 of 12 answers differ"):
            self.bits([["a prompt", 1, "ngram", "alone"]])

    def test_right_answers_of_another_are_not_all(self):
        with self.assertRaisesRegex(Unavailable, "SmolLM2"):
            self.bits([])
        self.record.figure.assert_any_call("answers_compared", 12)

    def test_operations_are_measured_all_the_same(self):
        measured = []

        def bench(record, name, *arguments, **more):
            measured.append(name)
            entry = {"real_time": 1.0, "of_memory": 1.0}
            return {"context": {"memory_bytes_per_second": 1e9},
                    "entries": collections.defaultdict(lambda: entry)}

        planned = types.SimpleNamespace(stdout='{"passes": []}')
        with mock.patch.object(self.stages, "bench", bench), mock.patch.object(
                self.stages.programs, "run", return_value=planned):
            with self.assertRaisesRegex(Unavailable, "SmolLM2"):
                self.stages.benchmarks(self.record)
        self.assertEqual(measured, ["decode llama-1b", "decode llama-8b", "operations",
                                    "long prompts exact", "long prompts fast"])


class WhatIsFound(unittest.TestCase):
    """Stages whose programs end well and say what is not."""

    def setUp(self):
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.programs = Programs(None, self.folder, SOURCE, "cuda", self.folder,
                                 self.folder / "log")
        self.stages = Stages(self.programs, 2)
        self.enterContext(mock.patch.object(self.programs, "need", lambda path: path))
        self.enterContext(mock.patch.object(self.programs, "server", self.server))
        self.ranks = None

    @contextlib.contextmanager
    def server(self, _, ranks, gpus, **__):
        self.ranks = ranks if gpus > 0 else 0
        yield "nowhere"

    def answers(self, by_ranks: dict) -> None:
        """by_ranks: token ids with and without drafts; 0 ranks: the CPU's."""
        def answer(_, __, ___, *flags):
            return {"token_ids": by_ranks[self.ranks][flags[-1] != "0"]}
        with mock.patch.object(self.programs, "answer", answer):
            self.stages.ranks(mock.Mock())

    def test_ranks_may_leave_the_cpu_behind_the_first_token(self):
        self.answers({0: ([1, 2, 3],), 2: ([1, 2, 4], [1, 2, 4])})

    def test_ranks_that_answer_something_else_at_once(self):
        with self.assertRaisesRegex(Failed, "2 ranks: no token of the short prompt"):
            self.answers({0: ([1, 2, 3],), 2: ([4, 2, 3], [4, 2, 3])})

    def test_ranks_whose_drafts_change_the_answer(self):
        with self.assertRaisesRegex(Failed, "K = 4 is not that with K = 0"):
            self.answers({0: ([1, 2, 3],), 2: ([1, 2, 3], [1, 2, 4])})

    def serve(self, errors: dict) -> None:
        latency = {"p50": 1.0, "p99": 2.0}
        load = {"tokens_per_second": 1.0, "ttft_ms": latency, "tpot_ms": latency,
                "greedy": None, "errors": errors}

        def run(*command):
            command[-1].write_text(json.dumps(load))
        with mock.patch.object(self.programs, "run", run):
            self.programs.seconds_to_end = 0
            self.stages.serving(mock.Mock())

    def test_requests_that_fail(self):
        self.serve({})
        with self.assertRaisesRegex(Failed, "1 users: requests failed: .*UNAVAILABLE"):
            self.serve({"UNAVAILABLE": 1})

    def speculate(self, tokens_per_step: float) -> None:
        entry = {"profile_us": 1.0, "real_time": 1.0, "tokens_per_step": tokens_per_step}
        entries = collections.defaultdict(lambda: entry)
        with mock.patch.object(self.stages, "bench", return_value={"entries": entries}):
            self.stages.speculation(mock.Mock(), ())

    def test_drafts_that_are_worth_nothing(self):
        self.speculate(1.25)
        with self.assertRaisesRegex(Failed, "K = 4 makes 1.0 tokens; expected 1.1 or more"):
            self.speculate(1.0)


class Runner(unittest.TestCase):
    def run_body(self, body, budget=10):
        heard = []
        return (*run_stage(body, budget, lambda *message: heard.append(message)), heard)

    def test_what_a_stage_finds_is_heard(self):
        def body(record):
            record.result("a", [1])
            record.figure("b", 2.5)
        self.assertEqual(self.run_body(body),
                         ("passed", None, [("result", "a", [1]), ("figure", "b", 2.5)]))

    def test_how_stages_end(self):
        def unavailable(record):
            raise Unavailable("no such thing")

        def failed(record):
            raise Failed("wrong")

        def dies(record):
            os._exit(3)
        self.assertEqual(self.run_body(unavailable)[:2], ("unavailable", "no such thing"))
        self.assertEqual(self.run_body(failed)[:2], ("failed", "wrong"))
        self.assertEqual(self.run_body(dies)[:2], ("failed", "the stage ended without a word"))

    def test_a_stage_that_overruns_is_ended_with_all_its_processes(self):
        def body(record):
            record.result("session", os.getpid())
            # In a process group of its own, as ranks are.
            subprocess.Popen(["sleep", "1000"], process_group=0)
            record.result("begun", True)
            time.sleep(1000)
        status, reason, heard = self.run_body(body, budget=1)
        self.assertEqual((status, reason), ("overran", "ended after its 1 s"))
        self.assertEqual(heard[1], ("result", "begun", True))
        self.assertEqual(session_members(heard[0][2]), [])

    def test_a_rehearsal_has_no_figures(self):
        with tempfile.TemporaryDirectory() as directory:
            report = Report(Path(directory), [("device", 1)], "cpu")
            report.set_figure(FIGURES[0].name, 3.0)
            report.finish("rehearsal")
            found = json.loads((Path(directory) / "gpu_report.json").read_text())
            self.assertEqual({f["value"] for f in found["figures"]}, {NOT_MEASURED})
            self.assertIn("nothing below was seen on one",
                          (Path(directory) / "gpu_report.md").read_text())
            report = Report(Path(directory), [("device", 1)], "cuda")
            report.set_figure(FIGURES[0].name, 3.0)
            self.assertEqual(report.content["figures"][0]["value"], 3.0)


if __name__ == "__main__":
    unittest.main()

#!/usr/bin/env python3
"""Stages of the checklist on the emulator: what they run and read is there.

    rehearsal_test.py BUILD
"""

import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(SOURCE / "tests" / "gpu"))

from report import NOT_MEASURED  # noqa: E402

BUILD = Path(sys.argv.pop(1))

SANITIZER = """#!/bin/sh
{ran}
case $2 in
  memcheck) echo "========= ERROR SUMMARY: 0 errors" ;;
  racecheck) echo "========= RACECHECK SUMMARY: {hazards} hazards displayed (0 errors)" ;;
esac
exit {status}
"""


class Rehearsal(unittest.TestCase):
    def setUp(self):
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))

    def rehearse(self, stages: str) -> dict:
        done = subprocess.run(
            [sys.executable, str(SOURCE / "tests" / "gpu_checklist"), "--build", str(BUILD),
             "--rehearse", "--only", stages, "--output", str(self.folder)], text=True,
            env={**os.environ, "PATH": f"{self.folder}:{os.environ['PATH']}"}, check=False,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        report = json.loads((self.folder / "gpu_report.json").read_text())
        self.assertEqual(report["status"], "rehearsal")
        self.assertEqual({figure["value"] for figure in report["figures"]}, {NOT_MEASURED})
        found = {stage["name"]: stage for stage in report["stages"]}
        self.assertEqual(done.returncode == 0, all(
            found[name]["status"] == "passed" for name in stages.split(",")), done.stderr)
        return found

    def test_stages_pass(self):
        names = ["device", "serving", "benchmarks", "exchanges", "ranks"]
        found = self.rehearse(",".join(names))
        for name in names:
            self.assertEqual(found[name]["status"], "passed", found[name]["reason"])
        self.assertIn("outrider", found["device"]["results"]["program"])
        self.assertGreater(found["serving"]["results"]["1 users"]["tokens_per_second"], 0)
        measured = found["benchmarks"]["results"]
        self.assertIn("decode/target/rows:8", measured["decode tiny"]["benchmarks"])
        self.assertGreater(measured["speculation"]["benchmarks"]["serve/draft/k:4"]["real_time"], 0)
        exchanged = found["exchanges"]["results"]["comm exact on 2"]["benchmarks"]
        self.assertGreater(exchanged["comm/all_reduce_sum/rows:64"]["real_time"], 0)
        self.assertGreater(found["serving"]["results"]["seconds to end"], 0)
        self.assertIn("tokens like the CPU's", found["ranks"]["results"]["2 ranks"])
        self.assertGreater(found["ranks"]["results"]["2 ranks"]["seconds to end"], 0)
        self.assertEqual(found["bits"]["status"], "not run")

    def sanitize(self, hazards: int, ran='echo "[  PASSED  ] 3 tests."', status=0) -> dict:
        sanitizer = self.folder / "compute-sanitizer"
        sanitizer.write_text(SANITIZER.format(hazards=hazards, ran=ran, status=status))
        sanitizer.chmod(0o755)
        return self.rehearse("sanitizers")["sanitizers"]

    def test_sanitizers_cover_every_suite(self):
        stage = self.sanitize(0)
        self.assertEqual(stage["status"], "passed", stage["reason"])
        for tool in ("memcheck", "racecheck"):
            self.assertIn("CudaLinearTest.", stage["results"][tool]["suites"])
            self.assertEqual(stage["results"][tool]["no time for"], [])

    def test_a_program_that_failed_or_never_ran_fails_the_stage(self):
        for ran, status in (('echo "[  FAILED  ] 1 test."', 1), ('echo "[  PASSED  ]"', 1),
                            ("", 0)):
            with self.subTest(ran=ran):
                stage = self.sanitize(0, ran, status)
                self.assertEqual(stage["status"], "failed")
                self.assertRegex(stage["reason"],
                                 rf"^\w+\S* failed under memcheck, with status {status}")

    def test_a_hazard_fails_the_stage(self):
        stage = self.sanitize(2)
        self.assertEqual(stage["status"], "failed")
        self.assertIn("racecheck", stage["reason"])
        self.assertGreater(stage["results"]["racecheck"]["found"], 1)


if __name__ == "__main__":
    unittest.main()

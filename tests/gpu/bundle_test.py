#!/usr/bin/env python3
"""What tests/gpu_bundle makes works where it was moved to, with its own libraries alone.

    bundle_test.py BUILD        (the programs outrider and mpi_tests, and checkpoints, are there)
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

from bundle import (ON_EVERY_MACHINE, BundleError, archive, built_nccl, lay_out,  # noqa: E402
                    write_unpack)
from programs import openmpi_environment  # noqa: E402

BUILD = Path(sys.argv.pop(1)) if len(sys.argv) > 1 else None


def run(*command, env=None):
    return subprocess.run([str(part) for part in command], text=True, env=env, check=False,
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


class Pieces(unittest.TestCase):
    def setUp(self):
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        (self.folder / "in").mkdir()
        (self.folder / "in" / "noise").write_bytes(os.urandom(250_000))
        (self.folder / "in" / "program").write_text("#!/bin/sh\necho it runs\n")
        (self.folder / "in" / "program").chmod(0o755)
        self.out = self.folder / "out"
        self.out.mkdir()
        entries = {path.name: path for path in (self.folder / "in").iterdir()}
        self.pieces = archive(entries, "programs", self.out, 100_000)
        write_unpack(self.out)

    def unpack(self):
        return run(self.out / "unpack", self.folder / "to")

    def test_are_put_together(self):
        self.assertEqual([piece.name for piece in self.pieces],
                         [f"programs.tar.gz.{i:02}" for i in range(3)])
        self.assertLessEqual(max(piece.stat().st_size for piece in self.pieces), 100_000)
        done = self.unpack()
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual((self.folder / "to" / "noise").read_bytes(),
                         (self.folder / "in" / "noise").read_bytes())
        self.assertEqual(run(self.folder / "to" / "program").stdout, "it runs\n")

    def test_a_damaged_piece_is_named(self):
        damaged = bytearray(self.pieces[1].read_bytes())
        damaged[500] ^= 1
        self.pieces[1].write_bytes(damaged)
        done = self.unpack()
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("programs.tar.gz.01: FAILED", done.stdout)
        self.assertEqual(list((self.folder / "to").iterdir()), [])

    def test_a_missing_piece_is_named(self):
        self.pieces[2].unlink()
        done = self.unpack()
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("programs.tar.gz.02", done.stderr + done.stdout)


class BuiltFor(unittest.TestCase):
    def test_the_nccl_whose_header_was_found(self):
        build = Path(self.enterContext(tempfile.TemporaryDirectory()))
        (build / "CMakeCache.txt").write_text("A:BOOL=ON\n")
        self.assertIsNone(built_nccl(build))
        (build / "nccl.h").write_text("#define NCCL_MAJOR 2\n#define NCCL_VERSION_CODE 22809\n")
        (build / "CMakeCache.txt").write_text(f"A:BOOL=ON\nNCCL_INCLUDE_DIR:PATH={build}\n")
        self.assertEqual(built_nccl(build), "22809")


class Bundle(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.root = Path(cls.enterClassContext(tempfile.TemporaryDirectory())) / "bundle"
        lay_out(cls.root, BUILD, ("outrider", "tests/mpi_tests"))
        # Nothing of this shell's.
        cls.environment = {**openmpi_environment(cls.root / "openmpi"),
                           "LD_LIBRARY_PATH": str(cls.root / "libraries"), "HOME": "/"}
        cls.mpirun = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]

    def mpi(self, *command):
        done = run(self.root / "openmpi" / "bin" / self.mpirun[0], *self.mpirun[1:], *command,
                   env=self.environment)
        self.assertEqual(done.returncode, 0, done.stderr + done.stdout)
        return done.stdout

    def assert_all_ours(self, path: str):
        ours = path.startswith(str(self.root)) or Path(path).name.startswith(ON_EVERY_MACHINE)
        self.assertTrue(ours, path)

    def test_programs_find_all_their_libraries_in_it(self):
        for program in (self.root / "programs").iterdir():
            for line in run("ldd", program, env={**os.environ, **self.environment}
                            ).stdout.splitlines():
                self.assert_all_ours(line.strip().rpartition(" => ")[2].rsplit(" (", 1)[0])

    def test_it_has_what_the_checklist_serves_with(self):
        head = self.root / "models" / "SmolLM2-135M-Instruct-head"
        self.assertTrue((head / "model.safetensors").exists())
        self.assertTrue((self.root / "checkpoints" / "tiny-head" / "config.json").exists())

    def test_it_has_no_weights_that_nobody_reads(self):
        self.assertEqual([path.name for path in (self.root / "models").iterdir()],
                         ["SmolLM2-135M-Instruct-head"])

    def test_the_program_runs(self):
        done = run(self.root / "programs" / "outrider", "--version", env=self.environment)
        self.assertEqual(done.returncode, 0, done.stderr)
        done = run(self.root / "programs" / "outrider", "serve", "--device", "cuda", "--model",
                   self.root / "checkpoints" / "tiny", "--default-drafts", "none",
                   env=self.environment)
        self.assertEqual(done.returncode, 1)
        self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
        self.assertIn("--device cuda", done.stderr)

    def test_ranks_run_from_the_moved_openmpi(self):
        maps = self.mpi("-np", "1", "sh", "-c", "cat /proc/$PPID/maps")
        libraries = {line.split()[-1] for line in maps.splitlines() if ".so" in line}
        self.assertTrue(any("mca_" in path for path in libraries))
        for path in libraries:
            self.assert_all_ours(path)
        said = self.mpi("-np", "2", self.root / "programs" / "mpi_tests",
                        "--gtest_filter=World.*-World.FailsWhereAsked")
        self.assertIn("[  PASSED  ]", said)

    def test_its_checklist_says_that_there_is_no_gpu(self):
        report = self.root.parent / "report"
        with tempfile.TemporaryDirectory() as empty:
            done = run(sys.executable, self.root / "tests" / "gpu_checklist", "--bundle", self.root,
                       "--output", report, env={"PATH": empty})
        self.assertEqual(done.returncode, 1)
        found = json.loads((report / "gpu_report.json").read_text())
        self.assertEqual(found["status"], "unavailable")
        self.assertEqual(found["commit"], (self.root / "commit").read_text().strip())

    def test_a_build_without_the_programs(self):
        with tempfile.TemporaryDirectory() as empty:
            with self.assertRaisesRegex(BundleError, "nothing: no such program"):
                lay_out(Path(empty) / "to", BUILD, ("nothing",))


if __name__ == "__main__":
    unittest.main()

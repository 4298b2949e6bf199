#!/usr/bin/env python3
"""`outrider bench` with --device cuda, on the emulator: what it measures is there; nothing is said
of how fast it is.

    bench_test.py OUTRIDER_EMU SHAPE CHECKPOINT DRAFT HEAD MPIRUN
"""

import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

PROGRAM, SHAPE, CHECKPOINT, DRAFT, HEAD, MPIRUN = sys.argv[1:7]
del sys.argv[1:]


# Of which a small shape's operands fill a quarter in a few copies.
COPY_MIB = "0.0625"


def bench(*arguments, rows="1,5"):
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "bench.json"
        done = subprocess.run(
            [PROGRAM, "bench", *map(str, arguments), "--device", "cuda", "--json", str(file),
             "--repeats", "2", "--copy-mib", COPY_MIB, "--rows", rows],
            text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            timeout=240, check=False)
        report = json.loads(file.read_text()) if file.exists() else None
        return done, report


def bench_comm(ranks, *flags, **emulated):
    """Of so many ranks. emulated: OUTRIDER_EMU_…"""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "bench.json"
        done = subprocess.run(
            [MPIRUN, "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-np",
             str(ranks), PROGRAM, "bench", "comm", "--device", "cuda", "--hidden", "100",
             "--repeats", "2", "--json", str(file), *flags],
            text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            timeout=240, check=False,
            env={**os.environ, **{f"OUTRIDER_EMU_{k}": str(v) for k, v in emulated.items()}})
        report = json.loads(file.read_text()) if file.exists() else None
        return done, report


def names(report):
    return [entry["name"] for entry in report["benchmarks"]]


class Bench(unittest.TestCase):
    def check(self, done, report):
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(report["context"]["device"], "emulator")
        self.assertGreater(float(report["context"]["memory_bytes_per_second"]), 0)
        for entry in report["benchmarks"]:
            self.assertEqual(entry["time_unit"], "us")
            self.assertEqual(entry["iterations"], 2)

    def test_decode_of_a_shape(self):
        done, report = bench("decode", "--model", SHAPE, "--context", 20)
        self.check(done, report)
        parts = ("target", "target_without_graphs", "verify_greedy", "verify_rejection",
                 "verify_coupled", "all_reduce")
        self.assertEqual(names(report), [f"decode/{part}/rows:{rows}" for rows in (1, 5)
                                         for part in parts])
        one, five = (report["benchmarks"][i] for i in (0, 6))
        self.assertGreater(one["real_time"], 0)
        # As many kernels, whatever the rows; five are padded to eight, and compute for them.
        self.assertEqual(one["launches"], five["launches"])
        self.assertAlmostEqual(five["flops"] / one["flops"], 8, delta=1)
        self.assertIn("| 5 |", done.stdout)

    def test_decode_of_a_checkpoint_with_what_drafts(self):
        for flag, directory in (("--draft", DRAFT), ("--draft-head", HEAD)):
            with self.subTest(flag=flag):
                done, report = bench("decode", "--model", CHECKPOINT, flag, directory, "--context",
                                     20)
                self.check(done, report)
                self.assertEqual(names(report)[-2:], ["decode/draft", "decode/cycle/k:4"])
                for entry in report["benchmarks"][-2:]:
                    self.assertGreater(entry["real_time"], 0)
                self.assertIn("c = t_draft / t_target", done.stdout)

    def test_operations_of_a_shape(self):
        done, report = bench("op", "--shape", SHAPE, "--contexts", 20)
        self.check(done, report)
        found = names(report)
        name = Path(SHAPE).stem
        for part in ("qkv", "attention_out", "gate_up", "down", "lm_head"):
            self.assertTrue(any(f"linear/{name}/{part}/rows:5/" in entry for entry in found), part)
        self.assertIn(f"rope_and_attend/{name}/rows:5/context:20", found)
        self.assertIn(f"rms_norm/{name}/rows:1", found)
        for entry in report["benchmarks"]:
            self.assertGreater(entry["bytes_per_second"], 0)

    def test_operations_on_long_prompts(self):
        for numerics, backend in (("exact", "cuda/sm_90"), ("fast", "cuda/sm_90/fast, cuBLASLt 130100")):
            done, report = bench("op", "--shape", SHAPE, "--contexts", 20, "--numerics", numerics,
                                 rows="70")
            self.check(done, report)
            self.assertEqual(report["context"]["backend"], backend)
            self.assertTrue(all("/rows:70" in entry for entry in names(report)))

    def test_serving(self):
        # Of a sequence's steps its first, with the prompt, and its last are in no table, nor the
        # one that records a graph.
        tokens = 12
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "bench.json"
            done = subprocess.run(
                [PROGRAM, "bench", "serve", "--device", "cuda", "--model", CHECKPOINT,
                 "--num-speculative-tokens", "0", "--prompt-tokens", "8", "--max-tokens",
                 str(tokens), "--rounds", "1", "--prefill-chunk", "8", "--max-positions", "64",
                 "--copy-mib", "1", "--json", str(file)],
                text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.PIPE, timeout=240, check=False)
            self.assertEqual(done.returncode, 0, done.stderr)
            report = json.loads(file.read_text())
        step = next(entry for entry in report["benchmarks"] if entry["name"] == "serve/step/k:0")
        self.assertEqual(step["iterations"], tokens - 3)

    def test_exchanges(self):
        # The sum of two ranks is NCCL's own; that of three is ordered, of gathered parts (up to
        # 1310 rows of 100) or in blocks, unless numerics are fast.
        for ranks, rows, flags in ((2, "1,5", ()), (3, "5,1400", ()),
                                   (3, "5,1400", ("--numerics", "fast"))):
            with self.subTest(ranks=ranks, flags=flags):
                done, report = bench_comm(ranks, "--rows", rows, *flags, DEVICES=ranks)
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertEqual(report["context"]["device"], "emulator")
                self.assertEqual(report["context"]["ranks"], str(ranks))
                self.assertEqual(names(report), [
                    f"comm/{name}/rows:{n}" for n in rows.split(",")
                    for name in ("all_reduce_sum", "all_gather", "broadcast")] + [
                    f"comm/plan_round_trip/sequences:{n}" for n in (1, 8, 64)])
                for entry in report["benchmarks"]:
                    self.assertGreater(entry["real_time"], 0, entry["name"])
                    self.assertEqual(entry["iterations"], 2)
                    self.assertNotIn("bound_us", entry)
                self.assertIn(f"ranks {ranks}, emulator, rows of 100 floats\n", done.stdout)

    def test_exchanges_that_cannot_be(self):
        for emulated, why in (
                ({"DRIVER": 0}, "--device cuda: no NVIDIA driver was found"),
                ({"DEVICES": 1}, "--device cuda: 2 ranks on this host are shown 1 GPU; expected "
                                 "one each, or --share-gpus")):
            with self.subTest(emulated=emulated):
                done, report = bench_comm(2, **emulated)
                self.assertNotEqual(done.returncode, 0)
                self.assertIn(why, done.stderr)
                self.assertEqual((done.stdout, report), ("", None))

    def test_what_cannot_be(self):
        for arguments, why in (
                (("decode", "--model", "nothing.json"), "nothing.json: cannot open"),
                (("op", "--shape", CHECKPOINT), "expected"),
                (("decode", "--model", SHAPE, "--json", "/nothing/bench.json"),
                 "/nothing/bench.json: cannot be written")):
            done = subprocess.run([PROGRAM, "bench", *arguments, "--device", "cuda", "--copy-mib",
                                   "1", "--repeats", "1", "--rows", "1"], text=True, check=False,
                                  stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE, timeout=240)
            self.assertEqual(done.returncode, 1, arguments)
            self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
            self.assertIn(why, done.stderr)


if __name__ == "__main__":
    unittest.main()

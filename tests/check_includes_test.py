#!/usr/bin/env python3
"""Plants violations in a small tree, and sees that each is reported, and nothing else."""

import tempfile
import unittest
from pathlib import Path

import check_includes

# One header a layer, so that includes can be found.
HEADERS = [*(f"csrc/{layer}/{layer}.h"
             for layer in ("engine", "spec", "model", "backend", "comm", "core")),
           "kernels/kernels.h", "server/server.h", "launcher/launcher.h", "bench/bench.h",
           "tests/testing/tests.h"]


class CheckIncludesTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.root = Path(directory.name).resolve()
        for header in HEADERS:
            self.write(header, "#pragma once\n")

    def write(self, name: str, text: str) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def problems(self, name: str, *lines: str) -> list[str]:
        return list(check_includes.check_file(self.root, self.write(name, "\n".join(lines))))

    def assert_reported(self, name: str, line: str, reason: str):
        problems = self.problems(name, "// first line", line)
        self.assertEqual(len(problems), 1, f"{name}: {line}: {problems}")
        self.assertTrue(problems[0].startswith(f"{name}:2: "), problems[0])
        self.assertIn(reason, problems[0])

    def test_every_pair_of_layers(self):
        spelled = {layer: f"{layer}/{layer}.h" for layer in check_includes.LAYERS}
        folder = {layer: layer if layer in ("launcher", "server", "kernels") else f"csrc/{layer}"
                  for layer in check_includes.LAYERS}
        for i, user in enumerate(check_includes.LAYERS):
            for j, used in enumerate(check_includes.LAYERS):
                name, line = f"{folder[user]}/deep/user.cc", f'#include "{spelled[used]}"'
                if i <= j:
                    self.assertEqual(self.problems(name, line), [])
                else:
                    self.assert_reported(name, line,
                                         f"{user} includes {spelled[used]}, which is of {used}")

    def test_other_spellings_of_a_path(self):
        for line in ('#include "csrc/engine/engine.h"', '#include <engine/engine.h>',
                     '#include "../engine/engine.h"', '  #  include "engine/engine.h"  // why'):
            self.assert_reported("csrc/model/user.cc", line, "which is of engine")

    def test_bench_and_tests(self):
        self.assert_reported("bench/user.cc", '#include "launcher/launcher.h"', "of launcher")
        self.assert_reported("server/user.cc", '#include "bench/bench.h"', "of bench")
        for user in ("csrc/core/user.h", "launcher/user.cc", "bench/user.cc"):
            self.assert_reported(user, '#include "tests/testing/tests.h"', "of tests")
        self.assertEqual(self.problems("launcher/user.cc", '#include "bench/bench.h"'), [])
        self.assertEqual(self.problems("bench/user.cc", '#include "server/server.h"'), [])
        self.assertEqual(self.problems("tests/spec/user_test.cc", '#include "launcher/launcher.h"',
                                       '#include "bench/bench.h"', '#include <mpi.h>'), [])

    def test_cuda_sources(self):
        problems = self.problems("kernels/cuda/alone.cu", "")
        self.assertEqual(problems, ["kernels/cuda/alone.cu:1: has no twin; expected "
                                    "kernels/cpu/alone.cc"])
        self.write("kernels/cpu/user.cc", "")
        for line in ("kernel<<<1, 32>>>();", 'asm volatile("");', "#ifdef OUTRIDER_EMULATED"):
            self.assert_reported("kernels/cuda/user.cu", line, "cannot be emulated")
            self.assert_reported("csrc/comm/nccl/user.cu", line, "cannot be emulated")
            self.assertEqual(self.problems("kernels/cuda/ptx.cuh", line), [])

    def test_confined_headers(self):
        self.assert_reported("csrc/backend/user.cc", "#include <mpi.h>", "MPI headers")
        for header in ("nccl.h", "cuda_runtime.h", "cuda.h", "cublasLt.h", "cub/cub.cuh",
                       "cuda/std/span"):
            self.assert_reported("csrc/comm/user.cc", f"#include <{header}>", "CUDA headers")
            self.assertEqual(self.problems("kernels/cuda/user.cuh", f"#include <{header}>"), [])
        for header in ("grpcpp/grpcpp.h", "grpc/grpc.h", "outrider/v1/generation.grpc.pb.h",
                       "outrider/v1/generation.pb.h"):
            self.assert_reported("csrc/engine/user.h", f"#include <{header}>", "gRPC headers")
            self.assert_reported("bench/user.h", f'#include "{header}"', "gRPC headers")
            self.assertEqual(self.problems("launcher/user.cc", f'#include "{header}"'), [])
        self.assertEqual(self.problems("csrc/comm/user.cc", "#include <mpi.h>"), [])

    def test_conditional_on_cuda(self):
        for line in ("#ifdef WITH_CUDA", "#if defined(OUTRIDER_WITH_CUDA) && 1",
                     "# ifndef USE_CUDA"):
            self.assert_reported("csrc/backend/user.cc", line, "conditional on CUDA")

    def test_unknown_layer(self):
        problems = self.problems("csrc/helpers/user.h", "#pragma once")
        self.assertEqual(len(problems), 1)
        self.assertIn("no layer", problems[0])

    def test_finds_the_files(self):
        self.assertEqual(len(check_includes.source_files(self.root)), len(HEADERS))


if __name__ == "__main__":
    unittest.main()

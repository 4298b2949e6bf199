"""What tools/ptxas_table.py compiles, and when it need not; nvcc is a stand-in.

    ptxas_table_test.py SOURCE_DIR
"""

import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SOURCE = Path(sys.argv.pop())

NVCC = """#!/bin/sh
[ "$1" != --version ] || {{ echo "Cuda compilation tools, release 13.0, V13.0.88"; exit; }}
echo compiled >>{calls}
for architecture in 80 89 90a 100 120; do
  echo "ptxas info    : Compiling entry function '_Z6kernelv' for 'sm_$architecture'"
  echo "    0 bytes stack frame, {spilled} bytes spill stores, {spilled} bytes spill loads"
  echo "ptxas info    : Used {registers} registers, used 0 barriers, 64 bytes smem"
done >&2
"""


class Table(unittest.TestCase):
    def setUp(self):
        self.root = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.calls = self.root / 'calls'
        for folder in ('tools', 'kernels/cuda', 'docs/benchmarks/gpu'):
            (self.root / folder).mkdir(parents=True)
        shutil.copy(SOURCE / 'tools' / 'ptxas_table.py', self.root / 'tools')
        (self.root / 'kernels/cuda/a.cu').write_text('#include "kernels/cuda/a.cuh"\n')
        (self.root / 'kernels/cuda/a.cuh').write_text('#include "kernels/b.h"\n')
        (self.root / 'kernels/b.h').write_text('// as it was\n')
        self.table = self.root / 'docs/benchmarks/gpu/ptxas.md'
        self.nvcc()
        self.assertEqual(self.run_tool()[0], 0)

    def nvcc(self, registers=40, spilled=0):
        path = self.root / 'nvcc'
        path.write_text(NVCC.format(calls=self.calls, registers=registers, spilled=spilled))
        path.chmod(0o755)

    def run_tool(self, *arguments):
        """Exit status, how many files were compiled, and what was said."""
        self.calls.write_text('')
        done = subprocess.run([sys.executable, self.root / 'tools/ptxas_table.py', '--nvcc',
                               self.root / 'nvcc', *arguments], capture_output=True, text=True,
                              env=os.environ | {'PYTHONDONTWRITEBYTECODE': '1'}, check=False)
        return done.returncode, self.calls.read_text().count('compiled'), done.stdout

    def test_of_the_same_sources_compiles_nothing(self):
        self.assertIn('| a.cu | `kernel` | 64 | 0 | 40 | 40 | 40 | 40 | 40 |',
                      self.table.read_text())
        self.assertEqual(self.run_tool('--check')[:2], (0, 0))

    def test_of_other_sources_is_compared(self):
        (self.root / 'kernels/b.h').write_text('// as it is\n')
        self.assertEqual(self.run_tool('--check')[:2], (0, 1))
        self.nvcc(registers=41)
        status, compiled, said = self.run_tool('--check')
        self.assertEqual((status, compiled), (1, 1))
        self.assertIn('ptxas.md is stale', said)

    def test_with_other_flags_is_compared(self):
        tool = self.root / 'tools/ptxas_table.py'
        tool.write_text(tool.read_text().replace('"-O3"', '"-O2"'))
        self.assertEqual(self.run_tool('--check')[:2], (0, 1))

    def test_with_other_figures_is_compared(self):
        self.table.write_text(self.table.read_text().replace('| 40 |', '| 39 |', 1))
        status, compiled, said = self.run_tool('--check')
        self.assertEqual((status, compiled), (1, 1))
        self.assertIn('| 39 |', said)

    def test_spilled_registers_are_told_with_and_without_compiling(self):
        self.nvcc(spilled=8)
        self.assertEqual(self.run_tool()[:2], (1, 1))
        status, compiled, said = self.run_tool('--check')
        self.assertEqual((status, compiled), (1, 0))
        self.assertIn('40 (16 bytes spilled)', said)


if __name__ == '__main__':
    unittest.main()

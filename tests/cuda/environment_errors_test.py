"""What CUDA, NCCL or a checkpoint lacks ends a start in one line, before anything is served.

usage: environment_errors_test.py OUTRIDER_EMU CHECKPOINT MPIRUN
"""

import json
import os
from pathlib import Path
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

PROGRAM, CHECKPOINT, MPIRUN = sys.argv[1:4]
LIMIT_S = 120  # for anything: a hang, not a slow machine


class Refused(unittest.TestCase):
    def refused(self, pattern, *flags, ranks=1, model=CHECKPOINT, **emulated):
        """Serving on GPUs ends with one line that matches; emulated: OUTRIDER_EMU_…"""
        command = [PROGRAM, 'serve', '--model', str(model), '--port', '0', *flags]
        if '--device' not in flags:
            command += ['--device', 'cuda']
        if ranks > 1:
            command = [MPIRUN, '--allow-run-as-root', '--oversubscribe', '--bind-to', 'none', '-np',
                       str(ranks), *command]
        env = dict(os.environ, **{f'OUTRIDER_EMU_{k}': str(v) for k, v in emulated.items()})
        result = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                                timeout=LIMIT_S, env=env, check=False)
        self.assertNotEqual(result.returncode, 0)
        said = [line for line in result.stderr.splitlines() if line.startswith('outrider: ')]
        self.assertEqual(len(said), 1, result.stderr)
        self.assertRegex(said[0], pattern)
        self.assertNotIn('listening', result.stderr)

    def test_no_driver(self):
        self.refused(r'no NVIDIA driver was found; expected one for CUDA 13\.0', DRIVER=0)

    def test_a_driver_that_is_too_old(self):
        self.refused(r'driver is for CUDA 12\.4; expected CUDA 13\.0 or later', DRIVER=12040)

    def test_no_gpu(self):
        self.refused(r'the NVIDIA driver shows no GPU; expected one at least', DEVICES=0)

    def test_gpus_that_do_not_work(self):
        for device, start in (('cuda', '--device cuda: '), ('auto', '')):
            for ranks in (1, 2):
                self.refused(f'^outrider: {start}cudaGetDeviceCount failed: .*SystemNotReady'
                             '.*; expected GPUs that work, or --device cpu',
                             '--device', device, ranks=ranks, BROKEN=1)

    def test_fewer_gpus_than_ranks(self):
        self.refused(r'2 ranks on this host are shown 1 GPU; expected one each', ranks=2, DEVICES=1)

    def test_a_gpu_without_bf16(self):
        self.refused(r'GPU 0 \(emulator\) has compute capability 7\.5; expected 8\.0', CAPABILITY=75)

    def test_a_gpu_without_kernels(self):
        self.refused(r'no kernels for GPU 0 \(emulator, compute capability 13\.0\)', CAPABILITY=130)

    def test_a_gpu_that_others_fill(self):
        self.refused(r'GPU 0 \(emulator\) has no room for CUDA itself: cudaSetDevice failed; expected '
                     r'some 512 MiB of its 2048 MiB free', FULL=1)

    def test_too_little_pinned_memory(self):
        self.refused(r'host has no room for 33554432 bytes of pinned memory; expected .*ulimit -l',
                     PINNED_BYTES=1 << 20)

    def test_too_little_memory(self):
        for ranks in (1, 2):
            self.refused(r'GPU 0 \(emulator\) has 0\.0\d+ GiB for this rank; expected at least '
                         r'0\.\d+ GiB: .* for the weights, .* of KV cache',
                         ranks=ranks, DEVICES=ranks, MEMORY_BYTES=64 << 20)

    def test_too_little_memory_for_the_cache_asked_for(self):
        self.refused(r'expected at least \d+\.\d+ GiB: .*--kv-cache-tokens',
                     '--kv-cache-tokens', '100000000')

    def test_an_older_nccl(self):
        self.refused(r'NCCL library that was loaded is 2\.18\.5; expected 2\.28\.0 or later',
                     ranks=2, DEVICES=2, NCCL=21805)

    def test_fast_numerics_without_a_gpu(self):
        self.refused(r'--numerics fast is for GPUs alone; expected exact on the CPU \(--device cpu\)',
                     '--device', 'cpu', '--numerics', 'fast')

    def edited(self, edit):
        """A copy of the checkpoint whose config.json `edit` has changed."""
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        shutil.copytree(CHECKPOINT, directory.name, dirs_exist_ok=True)
        path = Path(directory.name, 'config.json')
        config = json.loads(path.read_text())
        edit(config)
        path.write_text(json.dumps(config))
        return Path(directory.name)

    def test_heads_that_are_too_wide(self):
        model = self.edited(lambda config: config.update(head_dim=512))
        self.refused(r'config\.json: head_dim is 512; expected .*256', model=model)

    def test_weights_of_another_type(self):
        model = self.edited(lambda config: None)
        shard = model / 'model.safetensors'
        data = shard.read_bytes()
        length = int.from_bytes(data[:8], 'little')
        header = re.sub(rb'"BF16"', b'"F16" ', data[8:8 + length])
        shard.write_bytes(data[:8] + header + data[8 + length:])
        self.refused(r'model\.safetensors: tensor .* has dtype F16; expected BF16', model=model)


class Restarted(unittest.TestCase):
    def test_what_served_on_gpus_waits_for_them(self):
        with tempfile.NamedTemporaryFile('w') as gpus:
            def shown(count):
                gpus.seek(0)
                gpus.write(str(count))
                gpus.flush()

            shown(2)
            process = subprocess.Popen(
                ['setpriv', '--pdeathsig', 'KILL', PROGRAM, 'launch', '--ranks', '2', '--', 'serve',
                 '--model', CHECKPOINT, '--port', '0', '--prefill-beside', '16', '--lookahead',
                 'fixed:4'],
                stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                env=os.environ | {'OUTRIDER_EMU_DEVICES': f'@{gpus.name}'})
            self.addCleanup(process.stderr.close)
            self.addCleanup(process.kill)

            def read_until(pattern):
                said = ''
                for line in process.stderr:
                    said += line
                    if re.search(pattern, line):
                        return said
                self.fail(f'the end came before {pattern!r}: {said}')

            def children(pid):
                return Path(f'/proc/{pid}/task/{pid}/children').read_text().split()

            read_until('listening on')
            shown(1)
            mpirun, = children(process.pid)
            os.kill(int(children(mpirun)[-1]), signal.SIGKILL)
            said = read_until('shown 1 GPU.*expected GPUs as before')
            self.assertNotIn('listening on', said)
            shown(2)
            read_until('listening on')
            process.send_signal(signal.SIGTERM)
            process.stderr.read()
            self.assertEqual(process.wait(LIMIT_S), 0)


if __name__ == '__main__':
    unittest.main(argv=sys.argv[:1])

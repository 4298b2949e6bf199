"""The tests on the emulator are alive: each defect that is planted here is seen by the test named.

usage: planted_defects.py BUILD_DIRECTORY [NAME… | --find]

--find: plants nothing; says whether every defect still has its place, and its tests.

A defect is a change of one file. The source that it is in is compiled anew, the test program linked with it,
and the test has to fail; unchanged it has to pass. A change that finds nothing to change, or does
not compile, is a failure of this suite: mend it together with the code.
"""

import dataclasses
import json
import os
from pathlib import Path
import shlex
import subprocess
import sys
import tempfile
import time

SOURCE = Path(__file__).resolve().parents[2]
LIMIT_S = 600  # for anything: a hang, not a slow machine


@dataclasses.dataclass(frozen=True)
class Defect:
    name: str
    file: str      # where it is planted
    before: str    # stands there once
    after: str
    compiled: str  # the source that is or has the file
    program: str   # the tests' program …
    tests: str     # … and those that must see it, as --gtest_filter


def defect(name, file, before, after, program, tests, compiled=None):
    return Defect(name, file, before, after, compiled or file, program, tests)


DEFECTS = [
    defect('barrier: warps are added up before all have written', 'kernels/cuda/block.cuh',
           '= value;\n  __syncthreads();\n  const T total', '= value;\n  const T total', 'parity_tests',
           '*OperationsTest.RmsNorm*', 'kernels/cuda/elementwise.cu'),
    defect('barrier: scores are weighed while maxima still come', 'kernels/cuda/attention_split.cuh',
           'scores, shared);\n  __syncthreads();\n  // The maxima', 'scores, shared);\n  // The maxima',
           'parity_tests', '*RopeAndAttention*', 'kernels/cuda/attention.cu'),
    defect('barrier: a stage is multiplied before all have copied it', 'kernels/cuda/linear_tile.cuh',
           '__syncthreads();  // the step is there', '// the step is there', 'parity_tests',
           'CudaLinearFormats.EveryTileGivesARowTheSameBits*', 'kernels/cuda/linear.cu'),
    defect('wait: a stage is multiplied before its copies have come', 'kernels/cuda/linear_tile.cuh',
           'cp_async_wait<Tile::kStages - 2>', 'cp_async_wait<Tile::kStages - 1>', 'parity_tests',
           'CudaLinearFormats.EveryTileGivesARowTheSameBits*', 'kernels/cuda/linear.cu'),
    defect('early: rows of a product are read before earlier kernels have ended',
           'kernels/cuda/linear_stream.cuh',
           'wait_for_earlier_kernels();\n#pragma unroll\n  for (int i = 0; i < kAhead; ++i) {\n'
           '    if (i < steps) stream.load_rows(i, loaded[i]);\n  }',
           'for (int i = 0; i < kAhead; ++i) {\n    if (i < steps) stream.load_rows(i, loaded[i]);\n'
           '  }\n  wait_for_earlier_kernels();', 'device_tests', '*CudaTransformer*',
           'kernels/cuda/linear.cu'),
    defect('early: queries are read before earlier kernels have ended',
           'kernels/cuda/attention_few.cuh',
           'wait_for_earlier_kernels();\n    QueryPart<kChunks> query;\n    query.load(few, group);',
           'QueryPart<kChunks> query;\n    query.load(few, group);\n    wait_for_earlier_kernels();',
           'device_tests', '*CudaTransformer*', 'kernels/cuda/attention.cu'),
    defect('index: an element behind the row', 'kernels/cuda/elementwise.cu',
           'if (i >= width) return;', 'if (i > width) return;', 'parity_tests',
           '*AnActivatedProductIsTheProductAndThenItsActivation*'),
    defect('index: gate and up change places', 'kernels/cuda/linear_product.cuh',
           '+ (row < width ? 0 : 8)', '+ (row < width ? 8 : 0)', 'parity_tests',
           '*AnActivatedProductIsTheProductAndThenItsActivation*', 'kernels/cuda/linear.cu'),
    defect("index: another gate's up", 'kernels/cuda/linear_stream.cuh',
           '(kAllLanes, total, 8)', '(kAllLanes, total, 7)', 'parity_tests',
           '*AnActivatedProductIsTheProductAndThenItsActivation*', 'kernels/cuda/linear.cu'),
    defect("index: another row's up", 'kernels/cuda/linear_tile.cuh', 'of_lane[2 + j])',
           'of_lane[3 - j])', 'parity_tests',
           '*AnActivatedProductIsTheProductAndThenItsActivation*', 'kernels/cuda/linear.cu'),
    defect("index: the gate's bias is added to the up", 'kernels/cuda/linear_product.cuh',
           'p.bias_of(p.columns + column)', 'p.bias_of(column)', 'parity_tests',
           '*AnActivatedProductIsTheProductAndThenItsActivation*', 'kernels/cuda/linear.cu'),
    defect("index: the up has the gate's scale", 'kernels/cuda/linear_product.cuh',
           'p.scale_of<Weights>(p.columns + column)', 'p.scale_of<Weights>(column)', 'parity_tests',
           '*AnActivatedProductIsTheProductAndThenItsActivation/int8', 'kernels/cuda/linear.cu'),
    defect('index: the numbers of 8 bits of the first block come again', 'kernels/cuda/linear_product.cuh',
           'eight(both.z, both.w)', 'eight(both.x, both.y)', 'parity_tests',
           'CudaLinearTest.AnInt8ProductIsThatOfItsNumbersTimesTheScale', 'kernels/cuda/linear.cu'),
    defect('index: scales are counted from the piece of a matrix', 'kernels/cuda/linear.cu',
           'packed_scales[first_row + row]', 'packed_scales[row]', 'parity_tests',
           '*CudaLinearFormats.PiecesPackLikeTheWhole/int8'),
    defect('sum: what is added to the residual stream does not stay', 'kernels/cuda/elementwise.cu',
           '    *reinterpret_cast<Neighbours<float, kWidth>*>(x + i) = sums;\n', '', 'parity_tests',
           '*NormsOfASum*'),
    defect('index: the split that a row has just begun is left out', 'kernels/cuda/attention_pass.cuh',
           'position / kSplitTokens + 1', '(position + kSplitTokens - 1) / kSplitTokens', 'parity_tests',
           '*RopeAndAttention*', 'kernels/cuda/attention.cu'),
    defect("order: a step's own keys are read before they are written", 'kernels/cuda/attention_few.cuh',
           '__syncthreads();\n      load();', '__syncthreads();', 'parity_tests',
           'CudaAttentionTest.FewRowsGetTheSameBits', 'kernels/cuda/attention.cu'),
    defect('order: the first share that is done adds up all', 'kernels/cuda/block.cuh',
           'last = count_arrival(arrivals, blocks) == blocks - 1',
           'last = count_arrival(arrivals, blocks) == 0', 'parity_tests',
           'CudaAttentionTest.FewRowsGetTheSameBits', 'kernels/cuda/attention.cu'),
    defect('wait: a norm begins before what it adds is there', 'kernels/cuda/elementwise.cu',
           '(weight, hidden);\n  wait_for_earlier_kernels();', '(weight, hidden);', 'parity_tests',
           '*OperationsTest.RmsNorm*'),
    defect('early: a segment is attended to before the one before it has been written',
           'kernels/cuda/attention_few.cuh', 'if (!few.reads_early) wait_for_earlier_kernels();', '',
           'device_tests', '*CudaTransformer.OtherCandidatesDoNotShow*', 'kernels/cuda/attention.cu'),
    defect('order: splits are merged from the last to the first', 'kernels/cuda/attention_pass.cuh',
           'for (int split = 0; split < num_splits; ++split, values += head_dim / 2) {',
           'values += num_splits * head_dim / 2;\n'
           '  for (int split = num_splits - 1; split >= 0; --split) {\n    values -= head_dim / 2;',
           'parity_tests', 'CudaAttentionTest.SplitsAreAddedInOrder', 'kernels/cuda/attention.cu'),
    defect('layout: a row has room for the splits of another context', 'kernels/cuda/attention.cu',
           'static_cast<int>(divide_up(context, kSplitTokens))',
           'static_cast<int>(divide_up(map.max_pages * kPageTokens, kSplitTokens))', 'parity_tests',
           'CudaAttentionTest.WorkspaceDoesNotShow'),
    defect('barrier: a row is read before what it masks is masked', 'kernels/cuda/sample.cu',
           '= kUnscoredLogit;\n    }\n    __syncthreads();\n', '= kUnscoredLogit;\n    }\n',
           'parity_tests', '*VerifyParity.AlternativesAreTheCpus*'),
    defect('index: a row of another tile', 'kernels/cuda/linear_tile.cuh',
           'first_row + group * kMmaRows + 2 * t + j', 'first_row + group * kMmaRows + 2 * t + 1 - j',
           'parity_tests', 'CudaLinearFormats.EveryTileGivesARowTheSameBits*', 'kernels/cuda/linear.cu'),
    defect('shard: tokens are counted from the shard', 'kernels/cuda/summarise.cuh',
           '.argmax = row.first_token + (', '.argmax = (', 'parity_tests',
           '*VerifyParity.StepsAreTheCpus*', 'kernels/cuda/distribution.cu'),
    defect('count: blocks that are done are counted on in the next kernel', 'kernels/cuda/block.cuh',
           'count_arrival(arrivals, blocks) ==', 'count_arrival(arrivals, blocks + 1) ==', 'parity_tests',
           '*VerifyParity.StepsAreTheCpus*', 'kernels/cuda/verify.cu'),
    defect('index: a listed token is edited a second time', 'kernels/cuda/processors.cu',
           'if ((state & kTokenListed) != 0) continue;', '', 'parity_tests',
           '*ProcessorsParity*'),
    defect('barrier: drafted tokens are counted before they are there', 'kernels/cuda/processors.cu',
           '  __syncthreads();\n', '', 'parity_tests', '*ProcessorsParity*'),
    defect("index: a draft's logits are kept by its row, not by its token's place",
           'kernels/cuda/sample.cu', 'q_logits + draft.drafted * vocab_size',
           'q_logits + blockIdx.y * vocab_size', 'parity_tests', '*VerifyParity.DraftsAreTheCpus*'),
    defect("shard: another shard's embedding", 'kernels/cuda/linear.cu',
           'tokens[blockIdx.x] - first_token', 'tokens[blockIdx.x] - first_token + 1', 'parity_tests',
           '*GatherAndEmbedAreExact*'),
    defect("shard: another rank's block of a sum", 'csrc/comm/nccl/nccl_communicator.cc',
           'float* const sum = x + rank_ * block', 'float* const sum = x + (rank_ + 1) % size_ * block',
           'nccl_tests', '*NcclRanks.DoWhatEveryCommunicatorMust*'),
    defect('end: graphs outlive the communicator in them', 'csrc/backend/cuda/cuda_backend.h',
           'forget_replayed() override { graphs_.clear(); }', 'forget_replayed() override {}',
           'device_tests', '*CudaEngineRanks.AgreeAndSpeculationDoesNotShow/0',
           'csrc/backend/cuda/cuda_backend.cc'),
    defect('room: a rank forgets a graph with collectives by itself', 'csrc/backend/cuda/graphs.cc',
           'if (pass.collective || pass.graph == nullptr) continue;',
           'if (pass.graph == nullptr) continue;', 'device_tests', '*CudaGraphs.*'),
    defect('room: the memory of a graph is taken by its first launch', 'csrc/backend/cuda/graphs.cc',
           'result = cudaGraphUpload(*executable, stream);', '', 'device_tests', '*CudaGraphs.*'),
    defect('time: a step that records is taken for one like the others',
           'csrc/backend/cuda/graphs.cc', 'return records;', 'return false;', 'device_tests',
           'CudaSteps.*'),
    defect('index: the parts of a weight lie on each other', 'csrc/backend/cuda/pack.cc',
           '{rows, packed.k}, first_row * bytes)', '{rows, packed.k}, 0)', 'device_tests',
           'FastNumerics.ManyRowsAreSumsInAnotherOrder'),
    defect("order: NCCL's sums where they are not wanted", 'csrc/comm/nccl/nccl_communicator.cc',
           'if (nccl_sums(size_, numerics_)) {\n      check_nccl(ncclAllReduce(data,',
           'if (!nccl_sums(size_, numerics_)) {\n      check_nccl(ncclAllReduce(data,', 'nccl_tests',
           'NcclRanks.FastSumsAreInAnOrderOfNccls'),
    defect('memory: what a smaller model reserves takes the place of more',
           'csrc/backend/cuda/cuda_backend.cc', 'if (bytes <= scratch.bytes()) return;',
           'if (bytes == scratch.bytes()) return;', 'device_tests', 'Reserve.*'),
    defect('time: what a graph notes is not seen outside', 'csrc/backend/cuda/cuda_backend.cc',
           '? cudaEventRecordExternal', '? cudaEventRecordDefault', 'device_tests',
           'CudaMarks.AreNotedByEveryReplay'),
    defect("order: NCCL's own sum of three ranks", 'csrc/comm/nccl/nccl_communicator.cc',
           'if (nccl_sums(size_, numerics_)) {\n      check_nccl(ncclAllReduce(data,',
           'if (nccl_sums(2, numerics_)) {\n      check_nccl(ncclAllReduce(data,', 'nccl_tests',
           '*NcclRanks.DoWhatEveryCommunicatorMust*'),
    defect('order: ranks are added from the last to the first', 'csrc/comm/nccl/ordered_sum.cu',
           'add(total, parts[rank * n + i])', 'add(total, parts[(ranks - rank) * n + i])',
           'nccl_tests', '*NcclRanks.DoWhatEveryCommunicatorMust*'),
    defect('order: parts of k are added from the last to the first', 'kernels/cuda/linear_stream.cuh',
           'total += partial[s]', 'total += partial[p.splits - 1 - s]', 'parity_tests',
           'CudaLinearFormats.EveryTileGivesARowTheSameBits*', 'kernels/cuda/linear.cu'),
]


def fail(text):
    sys.exit('planted_defects: ' + text)


def run(command, directory, env=None):
    return subprocess.run(command, cwd=directory, stdin=subprocess.DEVNULL, text=True, check=False,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=LIMIT_S, env=env)


class Build:
    """A build directory made by ninja."""

    def __init__(self, directory):
        self.directory = Path(directory).resolve()
        self.commands = json.loads((self.directory / 'compile_commands.json').read_text())

    def make(self, programs):
        made = run(['cmake', '--build', '.', '--target', *programs], self.directory)
        if made.returncode != 0:
            fail('the tests do not build:\n' + made.stdout)

    def compile(self, defect, source, overlay, output):
        """Compiles `source` in place of defect.compiled, with overlay's headers before others."""
        entry, = [entry for entry in self.commands
                  if Path(entry['file']) == SOURCE / defect.compiled
                  and 'outrider_cuda_emu.dir' in entry['command']]
        words = shlex.split(entry['command'])
        words[words.index('-o') + 1] = str(output)
        words[words.index('-c') + 1] = str(source)
        first_include = next(i for i, word in enumerate(words) if word.startswith('-I'))
        words[first_include:first_include] = [f'-I{overlay}', f'-I{overlay}/csrc']
        return run(words, entry['directory'])

    def link(self, program, mutant, output):
        """The program with `mutant` before the library that has the same symbols."""
        target = f'bin/tests/{program}'
        shown = run(['ninja', '-t', 'commands', '-s', target], self.directory).stdout
        words = shlex.split(next(part for part in shown.split('&&') if f'-o {target}' in part))
        words[words.index('-o') + 1] = str(output)
        words.insert(next(i for i, word in enumerate(words) if word.endswith('.o')), str(mutant))
        return run(words, self.directory)


def plant(defect, directory):
    """Writes the changed file under `directory`, in its folders. Returns what is to be compiled."""
    text = (SOURCE / defect.file).read_text()
    if text.count(defect.before) != 1:
        fail(f'"{defect.name}": {defect.file} has "{defect.before}" {text.count(defect.before)} times; '
             'expected it once')
    changed = directory / defect.file
    changed.parent.mkdir(parents=True)
    changed.write_text(text.replace(defect.before, defect.after))
    return changed if defect.compiled == defect.file else SOURCE / defect.compiled


def find(build):
    """Whether all places and tests are there still."""
    missing = []
    for d in DEFECTS:
        if (SOURCE / d.file).read_text().count(d.before) != 1:
            missing.append(f'"{d.name}": {d.file} does not have "{d.before}" once')
        listed = run(['./' + d.program, '--gtest_list_tests', f'--gtest_filter={d.tests}'],
                     build.directory / 'bin/tests').stdout
        if not any(line.startswith('  ') for line in listed.splitlines()):
            missing.append(f'"{d.name}": {d.program} has no test {d.tests}')
    if missing:
        fail('\n'.join(missing))
    print(f'all {len(DEFECTS)} defects have their place and their tests')


def run_tests(program, tests):
    return run([str(program), f'--gtest_filter={tests}', '--gtest_brief=1'], program.parent,
               dict(os.environ, GTEST_FAIL_FAST='1', OUTRIDER_EMU_SEED='1'))


def seen(build, defect):
    """Whether the tests fail with the defect, and how they say so."""
    with tempfile.TemporaryDirectory() as place:
        directory = Path(place)
        source = plant(defect, directory)
        mutant, program = directory / 'mutant.o', directory / defect.program
        for step in (lambda: build.compile(defect, source, directory, mutant),
                     lambda: build.link(defect.program, mutant, program)):
            result = step()
            if result.returncode != 0:
                fail(f'"{defect.name}" does not build:\n{result.stdout}')
        result = run_tests(program, defect.tests)
    said = [line for line in result.stdout.splitlines()
            if 'Failure' in line or line.startswith('emulator: ') or 'FAILED' in line]
    return result.returncode != 0, said[0] if said else f'exit status {result.returncode}'


def main():
    build = Build(sys.argv[1])
    if sys.argv[2:] == ['--find']:
        return find(build)
    chosen = [d for d in DEFECTS if not sys.argv[2:] or any(name in d.name for name in sys.argv[2:])]
    build.make(sorted({d.program for d in chosen}))
    for program, tests in sorted({(d.program, d.tests) for d in chosen}):
        result = run_tests(build.directory / 'bin/tests' / program, tests)
        if result.returncode != 0 or '[  PASSED  ] 0 tests' in result.stdout:
            fail(f'{program} --gtest_filter={tests} does not pass as it is:\n{result.stdout}')
    unseen = []
    for d in chosen:
        begin = time.monotonic()
        is_seen, how = seen(build, d)
        print(f'{"seen  " if is_seen else "UNSEEN"} {time.monotonic() - begin:5.1f} s  {d.name}: '
              f'{how if is_seen else d.tests + " passes"}', flush=True)
        if not is_seen:
            unseen.append(d.name)
    if unseen:
        fail(f'{len(unseen)} of {len(chosen)} defects were not seen')
    print(f'all {len(chosen)} defects were seen')


if __name__ == '__main__':
    main()

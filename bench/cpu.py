"""What docs/benchmarks/cpu.md says of a step, its parts and the exchanges between ranks: tables of
`outrider bench` on this CPU, with each of its instruction sets.
"""

import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import typing
from pathlib import Path

from page import HEAD, ROOT, chosen_isas, isas, table

REPEATS, SHORT_REPEATS = 31, 21
# As root, where there is nobody else; ranks may be more than cores.
ENVIRONMENT = {'OMPI_ALLOW_RUN_AS_ROOT': '1', 'OMPI_ALLOW_RUN_AS_ROOT_CONFIRM': '1',
               'OMPI_MCA_rmaps_base_oversubscribe': '1'}


class Result(typing.NamedTuple):
    command: str  # as one would type it
    said: str  # Markdown
    report: dict  # of --json


def bench(arguments, isa, name, *flags, ranks=None):
    """`outrider bench NAME`, on all ranks where no number is given."""
    job = ['mpirun', '--bind-to', 'none', '-x', 'OUTRIDER_CPU_ISA', '-np',
           str(ranks or arguments.ranks)]
    with tempfile.NamedTemporaryFile(suffix='.json') as report:
        done = subprocess.run(
            [*job, arguments.program, 'bench', name, *flags, '--json', report.name],
            env=os.environ | ENVIRONMENT | {'OUTRIDER_CPU_ISA': isa}, capture_output=True,
            text=True, check=False)
        if done.returncode != 0:
            said = done.stderr.strip().splitlines() or [f'exit status {done.returncode}']
            sys.exit(f'reproduce: bench {name}, {isa}: {said[0]}')
        found = json.loads(Path(report.name).read_text(encoding='utf-8'))
    typed = {arguments.model: 'DIR', HEAD: HEAD.relative_to(ROOT)}
    command = shlex.join([*job, 'build/cpu/bin/outrider', 'bench', name,
                          *(str(typed.get(flag, flag)) for flag in flags)])
    return Result(f'OUTRIDER_CPU_ISA={isa} {command}', done.stdout.strip(), found)


def target_steps(report):
    """{rows: that entry of `bench decode`'s report}."""
    begin = 'decode/target/rows:'
    return {int(entry['name'].removeprefix(begin)): entry for entry in report['benchmarks']
            if entry['name'].startswith(begin)}


def spread(reports):
    """How one row, and eight, came out in runs one after the other."""
    rows, shares, ratios = [], [], []
    for report in reports:
        steps = target_steps(report)
        shares.append(steps[1]['of_memory'])
        ratios.append(steps[8]['to_first'])
        memory = float(report['context']['memory_bytes_per_second']) / 1e9
        rows.append([f'{memory:.1f}', f'{steps[1]["real_time"] / 1000:.2f}',
                     f'{100 * shares[-1]:.0f} %', f'{ratios[-1]:.2f}'])
    return (table(['machine reads, GB/s', 'a step of one row, ms', 'of the machine',
                   'eight rows over one'], rows)
            + f'\nOne row: {100 * min(shares):.0f} to {100 * max(shares):.0f} % of what memory '
            f'delivers, {100 * statistics.median(shares):.0f} in the median. Eight rows over one: '
            f'{min(ratios):.2f} to {max(ratios):.2f}, {statistics.median(ratios):.2f} in the '
            'median.\n')


def cpu_text(arguments, draw):
    """draw: of {isa: target_steps}, Markdown that shows them."""
    best, *_ = names = isas() + chosen_isas()
    decode = ['--model', arguments.model, '--draft-head', HEAD, '--repeats']
    results = {isa: bench(arguments, isa, 'decode', *decode, str(REPEATS)) for isa in names}
    text = '### The decode step\n\n' + draw(
        {isa: target_steps(result.report) for isa, result in results.items()})
    for result in results.values():
        text += f'```\n{result.command}\n```\n\n{result.said}\n\n'
    again = [bench(arguments, best, 'decode', *decode, str(SHORT_REPEATS), '--rows', '1,8')
             for _ in range(arguments.rounds or 8)]
    text += (f'### Again, {len(again)} times\n\n```\n{again[0].command}\n```\n\n'
             + spread([result.report for result in again]))
    for title, name, flags in (
            ('A step of the server', 'serve', ['--model', arguments.model, '--draft-head', HEAD]),
            ('Exchanges', 'comm', [])):
        result = bench(arguments, best, name, *flags)
        text += f'\n### {title}\n\n```\n{result.command}\n```\n\n{result.said}\n'
    # A thread for each rank, which share the work by themselves.
    on = ['op', '--threads', str(arguments.ranks), '--isas']
    text += '\n### Operations\n'
    for flags in ([best], *([isa, '--only', 'prefill'] for isa in chosen_isas())):
        result = bench(arguments, best, *on, *flags, ranks=1)
        text += f'\n```\n{result.command}\n```\n\n{result.said}\n'
    return text

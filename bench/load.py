"""Latency against load, with speculation and without: `outrider loadtest --compare` at one load
after the other, and what docs/benchmarks/load.md says of it.

A report is the `compare` of that command's JSON: arms[0] asks without drafts, arms[1] adaptively.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from page import table

ARMS = ('plain', 'adaptive')
GOAL = 1.01  # a P99 with speculation over that without, at most
LEAST_TURN_S = 8  # or queues would not be long enough to be those of a load
LEAST_TURNS = 10  # or loadtest gives no intervals


def compare(program, port, load, rounds, arguments, measured_s=LEAST_TURN_S):
    """The report of one load, which must be without errors. load: loadtest's flags, which say what
    is asked and how often; measured_s: of each turn, behind what warms up."""
    with tempfile.NamedTemporaryFile(suffix='.json') as report:
        done = subprocess.run(
            [program, 'loadtest', '--port', str(port), '--compare', 'K=0,adaptive', *load,
             '--rounds', str(rounds), '--duration', f'{measured_s + arguments.warmup:g}',
             '--warmup', str(arguments.warmup), '--temperature', '0', '--ignore-eos', '--seed',
             str(arguments.seed), '--report-every', '0', '--json', report.name],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
        if done.returncode != 0:
            said = done.stderr.strip().splitlines() or [f'exit status {done.returncode}']
            sys.exit(f'reproduce: {" ".join(load)}: {said[-1]}')
        found = json.loads(Path(report.name).read_text(encoding='utf-8'))['compare']
    for arm in found['arms']:
        if arm['errors'] or arm['warmup_errors'] or arm['gave_up']:
            sys.exit(f'reproduce: {" ".join(load)}: {arm["name"]}: expected no errors, found '
                     f'{arm["errors"]} of {arm["requests"]} requests and {arm["warmup_errors"]} '
                     f'while it warmed up: {arm["first_error_by_code"]}')
    return found


def milliseconds(summary, share):
    value = summary[share]
    return 'n/a' if value is None else f'{value:.1f}'


def arm_ratio(report, what, share='p99'):
    """That of adaptive to plain as (ratio, low, high); None where it, or its 95 % interval, is not
    known."""
    found = (report['ratios'][0][what] or {}).get(share)
    return (found['ratio'], *found['ci95']) if found and found['ci95'] else None


def ratio_cell(ratio):
    return 'n/a' if ratio is None else '{:.3f} ({:.3f}, {:.3f})'.format(*ratio)


def load_table(quantity, loads, reports):
    """loads: of each report, numbers of the quantity."""
    shown = [('TTFT', 'ttft_ms', 'p50'), ('TTFT', 'ttft_ms', 'p99'), ('TPOT', 'tpot_ms', 'p50'),
             ('TPOT', 'tpot_ms', 'p99'), ('end to end', 'e2e_ms', 'p99')]
    compared = [of for of in shown if of[1:] != ('tpot_ms', 'p50')]
    rows = []
    for load, report in zip(loads, reports, strict=True):
        for name, arm in zip(ARMS, report['arms'], strict=True):
            ratios = [ratio_cell(arm_ratio(report, what, share)) if name == 'adaptive' else ''
                      for _, what, share in compared]
            rows.append([f'{load:g}', name, arm['requests'], f'{arm["tokens_per_second"]:.1f}',
                         *(milliseconds(arm[what], share) for _, what, share in shown), *ratios])
    return table([quantity, 'arm', 'requests', 'tokens/s',
                  *(f'{quantity} {share.upper()}, ms' for quantity, _, share in shown),
                  *(f'adaptive / plain, {quantity} {share.upper()}'
                    for quantity, _, share in compared)], rows)


def verdict(reports):
    """At how many loads the goal is shown, and at how many that it is missed."""
    lines = []
    for name, what in (('TTFT', 'ttft_ms'), ('TPOT', 'tpot_ms'), ('End to end', 'e2e_ms')):
        ratios = [ratio for report in reports if (ratio := arm_ratio(report, what))]
        kept = sum(high <= GOAL for _, _, high in ratios)
        missed = sum(low > GOAL for _, low, _ in ratios)
        lines.append(f'- {name}: P99 with speculation at most {GOAL} of P99 without is shown at '
                     f'{kept} of {len(reports)} loads, more than that at {missed}; neither at '
                     f'{len(reports) - kept - missed}.\n')
    return ''.join(lines)


def draw(panel, reports):
    """Throughput against the P99 of TPOT, a line an arm, with 95 % intervals. panel: Matplotlib's
    Axes."""
    for number, (name, marker) in enumerate(zip(ARMS, 'os', strict=True)):
        arms = [report['arms'][number] for report in reports]
        summaries = [arm['tpot_ms'] for arm in arms]
        p99 = [summary['p99'] for summary in summaries]
        ends = [(summary['ci95'] or {}).get('p99', [value, value])
                for summary, value in zip(summaries, p99)]
        panel.errorbar([arm['tokens_per_second'] for arm in arms], p99,
                       [[max(0, value - low) for value, (low, _) in zip(p99, ends)],
                        [max(0, high - value) for value, (_, high) in zip(p99, ends)]],
                       fmt=marker + '-', capsize=3, label=name)
    panel.set(xlabel='tokens/s', ylabel='TPOT P99, ms')
    panel.set_xlim(left=0)
    panel.set_ylim(bottom=0)
    panel.legend()

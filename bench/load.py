"""Latency against load, with speculation and without: `outrider loadtest --compare` at one load
after the other, and what docs/benchmarks/load.md says of it; and `outrider bench load`, the same in
virtual time.

A report is the `compare` of that command's JSON, as it is of a sweep's one load: arms[0] asks
without drafts, arms[1] adaptively, each with whether it saturated the server. `one_speed` is added
to it, TPOT on a machine that is always as fast: {tpot_ms: the P99 of each arm, ratio: (that of
adaptive to plain, low, high), shared: Answers.shared_steps()}.
"""

import collections
import json
import math
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from cpu import bench
from one_speed import Answers, read_trace
from page import HEAD, isas, table

ARMS = ('plain', 'adaptive')
RUNS = ('K=0', 'K=adaptive')  # as loadtest calls them
GOAL = 1.01  # a P99 with speculation over that without, at most
LEAST_TURN_S = 8  # or queues would not be long enough to be those of a load
LEAST_TURNS = 10  # or loadtest gives no intervals


def compare(program, port, trace, load, flags, rounds, arguments, measured_s=LEAST_TURN_S):
    """The report of one load, which must be without errors. trace: the server's. load: 'rate=4' or
    'users=8'; flags: loadtest's, which say what is asked; measured_s: of each turn, behind what
    warms up."""
    with (tempfile.NamedTemporaryFile(suffix='.json') as report,
          tempfile.NamedTemporaryFile(suffix='.jsonl') as samples,
          trace.open(encoding='utf-8') as events):
        events.read()  # what was before
        done = subprocess.run(
            [program, 'loadtest', '--port', str(port), '--compare', 'K=0,adaptive', '--sweep', load,
             *flags, '--rounds', str(rounds), '--duration', f'{measured_s + arguments.warmup:g}',
             '--warmup', str(arguments.warmup), '--timeout', '600', '--temperature', '0', '--ignore-eos', '--seed',
             str(arguments.seed), '--report-every', '0', '--json', report.name, '--samples',
             samples.name],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
        if done.returncode != 0:
            said = done.stderr.strip().splitlines() or [f'exit status {done.returncode}']
            sys.exit(f'reproduce: {load}: {said[-1]}')
        sweep = json.loads(Path(report.name).read_text(encoding='utf-8'))['sweep']
        records = [json.loads(line) for line in
                   Path(samples.name).read_text(encoding='utf-8').splitlines()]
        time.sleep(1)  # the trace is written five times a second
        lines = events.readlines()
    found = sweep['steps'][0]['compare']
    for arm in found['arms']:
        if arm['errors'] or arm['warmup_errors'] or arm['gave_up']:
            sys.exit(f'reproduce: {load}: {arm["name"]}: expected no errors, found '
                     f'{arm["errors"]} of {arm["requests"]} requests and {arm["warmup_errors"]} '
                     f'while it warmed up: {arm["first_error_by_code"]}')
    return found | {'one_speed': at_one_speed(read_trace(lines), load, records, rounds,
                                              arguments.warmup)}


def at_one_speed(trace, load, records, rounds, warmup_s):
    """records: loadtest's samples."""
    answers = Answers(trace, [
        [[(f'loadtest-{record["index"]}', len(record['token_ids'])) for record in records
          if record['run'] == f'{load}, {run}, round {number}' and record['due_s'] >= warmup_s
          and len(record['token_ids']) > 1] for number in range(rounds)] for run in RUNS])
    return {'tpot_ms': answers.p99(), 'ratio': answers.p99_ratio(),
            'shared': answers.shared_steps()}


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
        of_arms = zip(ARMS, report['arms'], report['one_speed']['tpot_ms'], strict=True)
        for name, arm, at_one_speed_ms in of_arms:
            ratios = [ratio_cell(arm_ratio(report, what, share)) for _, what, share in compared]
            ratios += [ratio_cell(report['one_speed']['ratio']),
                       f'{report["one_speed"]["shared"]:.2f}']
            shown_name = name + (' (saturated)' if arm['saturated'] else '')
            rows.append([f'{load:g}', shown_name, arm['requests'],
                         f'{arm["tokens_per_second"]:.1f}',
                         *(milliseconds(arm[what], share) for _, what, share in shown),
                         f'{at_one_speed_ms:.1f}',
                         *(ratios if name == 'adaptive' else [''] * len(ratios))])
    return table([quantity, 'arm', 'requests', 'tokens/s',
                  *(f'{quantity} {share.upper()}, ms' for quantity, _, share in shown),
                  'TPOT P99 at one speed, ms',
                  *(f'adaptive / plain, {quantity} {share.upper()}'
                    for quantity, _, share in compared),
                  'adaptive / plain, TPOT P99 at one speed', 'steps as plain has'], rows)


def verdict(reports):
    """At how many loads that the server keeps up with plainly the goal is shown, and at how many
    that it is missed, as it is wherever speculation alone saturates it."""
    kept_up = [report for report in reports if not report['arms'][0]['saturated']]

    def ratios(of):
        return [(math.inf, math.inf, math.inf) if report['arms'][1]['saturated'] else of(report)
                for report in kept_up]

    of_reports = {name: ratios(lambda report, what=what: arm_ratio(report, what)) for name, what in
                  (('TTFT', 'ttft_ms'), ('TPOT', 'tpot_ms'), ('End to end', 'e2e_ms'))}
    of_reports['TPOT at one speed'] = ratios(lambda report: report['one_speed']['ratio'])
    said = ''.join(map(counted, of_reports, of_reports.values()))
    if left_out := len(reports) - len(kept_up):
        said += f'- Not counted: loads that saturate the server without drafts, {left_out}.\n'
    return said


def counted(name, found):
    """found: the ratio of adaptive to plain at each load, as arm_ratio gives it."""
    ratios = [ratio for ratio in found if ratio]
    kept = sum(high <= GOAL for _, _, high in ratios)
    missed = sum(low > GOAL for _, low, _ in ratios)
    return (f'- {name}: P99 with speculation at most {GOAL} of P99 without is shown at {kept} of '
            f'{len(found)} loads, more than that at {missed}; neither at '
            f'{len(found) - kept - missed}.\n')


def virtual_text(arguments, show):
    """`outrider bench load` at all rates and numbers of users. show: of {load: {quantity: the P99s'
    ratio}}, Markdown that shows them."""
    loads = ['--rates', ','.join(f'{rate:g}' for rate in arguments.rates), '--users',
             ','.join(map(str, arguments.users)), '--requests', str(arguments.requests),
             '--rounds', str(arguments.rounds)]
    result = bench(arguments, isas()[0], 'load', '--model', arguments.model, '--draft-head', HEAD,
                   *loads)
    names = {'ttft': 'TTFT', 'tpot': 'TPOT', 'e2e': 'End to end'}
    ratios = {name: [] for name in names.values()}
    by_load = collections.defaultdict(dict)
    for of in result.report['benchmarks']:
        _, at, arm, key = of['name'].split('/')
        if arm == 'adaptive':
            ratios[names[key]].append((of['p99_to_plain'], of['p99_to_plain_low'],
                                       of['p99_to_plain_high']))
            by_load[at][names[key]] = of['p99_to_plain']
    return (f'```\n{result.command}\n```\n\n{show(by_load)}{result.said}\n\n'
            + ''.join(map(counted, ratios, ratios.values())))


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

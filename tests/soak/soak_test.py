"""A server of two ranks under 64 streams at once: no error, no leak, and every greedy answer is the
one that its prompt gets alone.

    soak_test.py PROGRAM CHECKPOINT SECONDS
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / 'testing'))
from program import GREEDY, MPIRUN, PROGRAM, Server  # noqa: E402

SECONDS = float(sys.argv[3])
STREAMS = 64
LONGEST = 48  # tokens of an answer
PAUSE_S = 0.1  # between looks at the server
# From a few words to several chunks of prefill.
PROMPTS = [f'Story {number}. ' + 'The river went on. ' * length
           for number, length in enumerate((0, 1, 2, 3, 5, 8, 13, 21, 34, 1, 2, 55))]
# What may be added on a rank from the middle to the end: allocators settle within the first, and the
# second is of each request that was begun between the two. A minute on two cores has some 20,000 of
# these, of which 40 bytes each were seen.
ALLOWED_GROWTH_KB, ALLOWED_REQUEST_BYTES = 1024, 250
ALLOWED_DESCRIPTORS = 2


def resident_kb(pid):
    status = Path(f'/proc/{pid}/status').read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith('VmRSS:'))


def look(pids):
    """(resident KiB, descriptors) of each rank."""
    return [(resident_kb(pid), len(os.listdir(f'/proc/{pid}/fd'))) for pid in pids]


def start_load(server, directory, name, *arguments):
    return subprocess.Popen(
        [PROGRAM, 'loadtest', '--address', server.address, '--prompts', directory / 'prompts.jsonl',
         '--json', directory / f'{name}.json', '--samples', directory / f'{name}.jsonl', *GREEDY,
         *arguments], stdin=subprocess.DEVNULL)


def results(process, directory, name):
    assert process.wait() == 0, f'{name}: exit code {process.returncode}'
    samples = (directory / f'{name}.jsonl').read_text().splitlines()
    return (json.loads((directory / f'{name}.json').read_text()),
            [json.loads(line) for line in samples])


def most_at_once(samples):
    changes = sorted([(s['sent_s'], 1) for s in samples] + [(s['end_s'], -1) for s in samples])
    running = most = 0
    for _, change in changes:
        running += change
        most = max(most, running)
    return most


def check_answers(report, samples, alone):
    assert report['errors'] == 0, report['errors_by_code']
    assert report['greedy']['differences'] == []
    assert most_at_once(samples) == STREAMS, most_at_once(samples)
    assert len(samples) >= 2 * STREAMS, len(samples)
    for sample in samples:
        assert len(sample['token_ids']) == sample['max_tokens'], sample['index']
        assert sample['token_ids'] == alone[sample['prompt']][:sample['max_tokens']], sample['index']
    assert report['server_afterwards'] == {'num_requests_running': 0, 'num_requests_waiting': 0,
                                           'kv_pages_used': 0}


def check_resources(looks, num_ranks, num_requests):
    """Compares the fifth in the middle with the last one. num_requests: of all looks."""
    assert len(looks) >= 20, f'only {len(looks)} looks at the server'
    middle = looks[len(looks) * 2 // 5:len(looks) * 3 // 5]
    end = looks[len(looks) * 4 // 5:]
    allowed = ALLOWED_GROWTH_KB + ALLOWED_REQUEST_BYTES * num_requests * 2 / 5 / 1024
    for rank in range(num_ranks):
        before, after = (statistics.median(one[rank][0] for one in part) for part in (middle, end))
        print(f'rank {rank}: {before:.0f} KiB resident in the middle, {after:.0f} KiB at the end')
        # The address sanitizer's allocator keeps for a while what is freed.
        assert after - before < allowed or 'ASAN_OPTIONS' in os.environ, f'rank {rank} grew'
        before, after = (statistics.median(one[rank][1] for one in part) for part in (middle, end))
        print(f'rank {rank}: {before} descriptors in the middle, {after} at the end')
        assert after - before <= ALLOWED_DESCRIPTORS, f'rank {rank} opened more'


def main():
    with (tempfile.TemporaryDirectory() as name, Server(*MPIRUN, '--quiet', '-np', '2') as server):
        directory = Path(name)
        (directory / 'prompts.jsonl').write_text(
            ''.join(json.dumps({'text': text}) + '\n' for text in PROMPTS))
        # Each prompt once, one after the other.
        _, samples = results(start_load(server, directory, 'alone', '--concurrency', '1',
                                        '--requests', str(len(PROMPTS)), '--output-length',
                                        f'fixed:{LONGEST}'), directory, 'alone')
        alone = {sample['prompt']: sample['token_ids'] for sample in samples}
        assert len(alone) == len(PROMPTS)

        load = start_load(server, directory, 'load', '--concurrency', str(STREAMS), '--duration',
                          str(SECONDS), '--output-length', f'uniform:4:{LONGEST}')
        looks, end = [], time.monotonic() + SECONDS
        while load.poll() is None:
            if time.monotonic() < end:  # while the load is on
                looks.append(look(server.ranks))
            time.sleep(PAUSE_S)
        report, samples = results(load, directory, 'load')
        check_answers(report, samples, alone)
        check_resources(looks, len(server.ranks), len(samples))
        print(f'{len(samples)} answers, {report["tokens_per_second"]:.0f} tokens/s: all as alone')


if __name__ == '__main__':
    main()

"""What commands of bench/ write into docs/benchmarks/: tables, the machine, a part of a page."""

import datetime
import os
import platform
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGES = ROOT / 'docs' / 'benchmarks'
HEAD = ROOT / 'models' / 'SmolLM2-135M-Instruct-head'
# Of /proc/cpuinfo's flags, best first, those that kernels are written for, and their names there.
# Without any of them there is what C++ itself gives.
SCALAR = 'scalar'
AMX = 'amx_bf16'  # the flag, and the name of what has to be chosen
ISAS = {'avx512_bf16': 'avx512_bf16', 'avx512f': 'avx512', 'avx2': 'avx2'}


def table(header, rows):
    """Markdown; cells of any type."""
    lines = [header, ['---'] * len(header), *rows]
    return '\n'.join('| ' + ' | '.join(map(str, line)) + ' |' for line in lines) + '\n'


def git(root, *arguments):
    return subprocess.run(['git', '-C', root, *arguments], check=True, capture_output=True,
                          text=True).stdout.strip()


def commit(root=ROOT):
    """The commit of root, -dirty where files outside of docs/ differ from it: what was measured
    may be of another state, and pages are written one after the other. 'unknown' without git."""
    try:
        changed = git(root, 'status', '--porcelain', '--', ':/', ':(top,exclude)docs')
        return git(root, 'rev-parse', '--short', 'HEAD') + ('-dirty' if changed else '')
    except (OSError, subprocess.CalledProcessError):
        return 'unknown'


def cpuinfo(field):
    text = Path('/proc/cpuinfo').read_text(encoding='ascii')
    found = re.search(rf'^{field}\s*: (.*)', text, re.M)
    return found[1] if found else ''


def isas():
    flags = cpuinfo('flags').split()
    return [name for flag, name in ISAS.items() if flag in flags] or [SCALAR]


def chosen_isas():
    """Those that nobody gets who does not ask for them."""
    return [AMX] if AMX in cpuinfo('flags').split() else []


def machine():
    """Its CPU, cores and instruction set, today, and the commit, in one line. The name of a CPU on
    a rented machine may be its maker's alone: family and model tell its kind."""
    kind = [f'{field} {cpuinfo(name)}' for field, name in
            (('family', 'cpu family'), ('model', 'model')) if cpuinfo(name)]
    parts = [' '.join([cpuinfo('model name') or platform.machine(), *kind]),
             f'{os.cpu_count()} cores',
             *isas()[:1], str(datetime.date.today()), f'commit `{commit()}`']
    return ', '.join(part for part in parts if part)


def check_page(path, name):
    """Exits where text could not be put there: before what it is to say takes an hour."""
    page = path.read_text(encoding='utf-8')
    begin, end = marks(name)
    if end not in page.partition(begin)[2]:
        sys.exit(f'{path}: expected {begin.strip()} and {end.strip()}, found not both')
    if not os.access(path, os.W_OK):
        sys.exit(f'{path}: cannot be written')


def marks(name):
    return f'<!-- {name} -->\n', f'<!-- end of {name} -->\n'


def replace(path, name, text):
    """Puts text between name's marks in the page at path."""
    check_page(path, name)
    begin, end = marks(name)
    before, _, rest = path.read_text(encoding='utf-8').partition(begin)
    path.write_text(before + begin + text + end + rest.partition(end)[2], encoding='utf-8')

"""What commands of bench/ write into docs/benchmarks/: tables, the machine, a part of a page."""

import datetime
import platform
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGES = ROOT / 'docs' / 'benchmarks'


def table(header, rows):
    """Markdown; cells of any type."""
    lines = [header, ['---'] * len(header), *rows]
    return '\n'.join('| ' + ' | '.join(map(str, line)) + ' |' for line in lines) + '\n'


def machine():
    """Its CPU, today, and the commit, in one line."""
    cpu = re.search(r'model name\s*: (.*)', Path('/proc/cpuinfo').read_text(encoding='ascii'))
    commit = subprocess.run(['git', '-C', ROOT, 'rev-parse', '--short', 'HEAD'], check=True,
                            capture_output=True, text=True).stdout.strip()
    return f'{cpu[1] if cpu else platform.machine()}, {datetime.date.today()}, commit `{commit}`'


def replace(path, name, text):
    """Puts text between name's marks in the page at path."""
    page = path.read_text(encoding='utf-8')
    begin, end = f'<!-- {name} -->\n', f'<!-- end of {name} -->\n'
    before, found, rest = page.partition(begin)
    if not found or end not in rest:
        sys.exit(f'{path}: expected {begin.strip()} and {end.strip()}, found not both')
    path.write_text(before + begin + text + end + rest.partition(end)[2], encoding='utf-8')

"""What bench/peers and bench/reproduce share of their command lines: flags, what is checked before
anything runs, and how a page says what was asked. What is wrong is said in one line, with exit
status 2.
"""

import argparse
import json
import math
import os
import shlex
import sys
from pathlib import Path

from page import ROOT

# Longer than what a first step may bring: 15 drafted tokens and one more.
LEAST_TOKENS = 32


class Parser(argparse.ArgumentParser):
    def error(self, message):
        self.exit(2, f'{self.prog}: {message}\n')


def end_without(program, missing, remedy):
    """missing: the ModuleNotFoundError."""
    print(f'{program}: this Python has no package {missing.name}; {remedy}', file=sys.stderr)
    sys.exit(2)


def at_least(least, most=math.inf):
    expected = f'of at least {least}' if most == math.inf else f'of {least} to {most}'

    def number(text):
        if not (text.isascii() and text.isdecimal() and least <= int(text) <= most):
            raise argparse.ArgumentTypeError(f'expected a number {expected}, found {text}')
        return int(text)
    return number


def positive(text):
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f'expected a number above 0, found {text}')
    return value


def shell_words(text):
    try:
        shlex.split(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f'{text!r}: {error}') from error
    return text


def add_server(parser):
    """The flags of an Outrider to measure, which are checked by check_program and check_model."""
    parser.add_argument('--program', required=True)
    parser.add_argument('--model', type=Path, required=True)
    parser.add_argument('--ranks', type=at_least(1), default=2, help='of Outrider')
    parser.add_argument('--serve', type=shell_words, default='',
                        help='more flags of serve, in one word, quoted as for a shell')


def sources():
    """Files that the program is made of, whatever devices it is built for."""
    return [path for folder in ('bench', 'csrc', 'kernels', 'launcher', 'proto', 'server')
            for path in sorted((ROOT / folder).rglob('*'))
            if path.suffix in ('.cc', '.h', '.proto') and not {'cuda', 'nccl'} & {*path.parts}]


def check_program(parser, program):
    if not (os.path.isfile(program) and os.access(program, os.X_OK)):
        parser.error(f'--program {program}: no program there; expected the built one')
    newer = [source for source in sources() if source.stat().st_mtime > os.stat(program).st_mtime]
    if newer:
        parser.error(f'--program {program}: is older than {newer[0]}; expected it built of what '
                     'is here, since pages name the commit')


def check_model(parser, model):
    if not (model / 'config.json').is_file():
        parser.error(f'--model {model}: no config.json there; expected a Hugging Face '
                     'directory, as tools/fetch_model.py prints')


def given(parser, arguments, *left_out):
    """The flags that are not as they would be anyway, as one would type them. left_out: the names
    of those that a page says otherwise or not at all."""
    words = []
    for name, value in vars(arguments).items():
        if value == parser.get_default(name) or name in ('program', 'model', *left_out):
            continue
        if name == 'serve':
            value = json.dumps(value)
        elif isinstance(value, list):
            value = ' '.join(f'{one:g}' for one in value)
        elif isinstance(value, float):
            value = f'{value:g}'
        words.append(f'--{name.replace("_", "-")} {value}')
    return words

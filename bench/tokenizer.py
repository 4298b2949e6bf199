"""What docs/benchmarks/tokenizer.md says: `outrider bench tokenizer`, how fast text becomes ids."""

import subprocess
import sys
from pathlib import Path

from page import ROOT

TEXT = 'LICENSE'  # prose that stays as it is, so that only machines and commits differ
CORPUS = 'tokenizer_corpus.bin'  # of the build's target testdata


def tokenizer_text(arguments, draw):
    """draw: of {input: MB/s}, Markdown that shows them."""
    corpus = Path(arguments.program).resolve().parents[1] / CORPUS
    if not corpus.is_file():
        sys.exit(f'reproduce: {corpus}: no corpus there; expected what `cmake --build build/cpu '
                 '--target testdata` makes')
    done = subprocess.run(
        [Path(arguments.program).resolve(), 'bench', 'tokenizer', '--model',
         arguments.model.resolve(), '--text', TEXT, '--corpus', corpus],
        cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f'reproduce: bench tokenizer: {done.stderr.strip()}')
    rates = {}
    for line in done.stdout.splitlines()[2:]:
        name, *_, rate = line.strip('| ').split(' | ')
        rates[name] = float(rate)
    command = (f'build/cpu/bin/outrider bench tokenizer --model DIR --text {TEXT} --corpus '
               f'build/cpu/{CORPUS}')
    return f'```\n{command}\n```\n\n{draw(rates)}{done.stdout}'

#!/usr/bin/env python3
"""Which characters the `tokenizers` package takes for what, found by asking it about every one.

  unicode_categories.py --golden FILE   ranges of letters, numbers, white space and what normal forms
                                        change (tests/model/testdata/unicode_classes.json)
  unicode_categories.py --newer         kNewerCategories of csrc/model/unicode_newer.h: what was
                                        assigned after Unicode 14 (by Python 3.11, which has that)
Takes minutes.
"""

import argparse
import json
import sys
import unicodedata
from pathlib import Path

from tokenizers import Regex, normalizers, pre_tokenizers

CATEGORIES = "Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So".split()
CODE_POINTS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]


def matched(pattern: str) -> set[int]:
    rule = pre_tokenizers.Split(Regex(pattern), "removed")
    left = set()
    for begin in range(0, len(CODE_POINTS), 20_000):
        for piece, _ in rule.pre_tokenize_str(
            "".join(map(chr, CODE_POINTS[begin : begin + 20_000]))
        ):
            left.update(map(ord, piece))
    return set(CODE_POINTS) - left


def changed_by_nfkd() -> set[int]:
    """Those that decompose or change places with marks, unlike U+E000 in their place."""
    form = normalizers.NFKD()
    frame = "{0}a\u0301{0}\u0316{0}"
    inert = form.normalize_str(frame.format("\ue000"))
    return {
        c
        for c in CODE_POINTS
        if form.normalize_str(frame.format(chr(c))) != inert.replace("\ue000", chr(c))
    }


def ranges(points: set[int]) -> list[list[int]]:
    result: list[list[int]] = []
    for point in sorted(points):
        if result and result[-1][1] == point - 1:
            result[-1][1] = point
        else:
            result.append([point, point])
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--golden", type=Path, help="file to write")
    parser.add_argument("--newer", action="store_true", help="print the entries of the table")
    arguments = parser.parse_args()
    if arguments.golden is not None:
        classes = {pattern: ranges(matched(pattern)) for pattern in (r"\p{L}", r"\p{N}", r"\s")}
        classes["NFKD"] = ranges(changed_by_nfkd())
        lines = [
            f"{json.dumps(name)}: {json.dumps(value, separators=(',', ':'))}"
            for name, value in classes.items()
        ]
        arguments.golden.write_text("{" + ",\n".join(lines) + "}\n")
    if arguments.newer:
        if unicodedata.unidata_version != "14.0.0":
            parser.error(
                f"Python has Unicode {unicodedata.unidata_version}; expected PCRE2 10.42's, 14.0.0"
            )
        entries = []
        for category in CATEGORIES:
            newer = {
                c for c in matched(rf"\p{{{category}}}") if unicodedata.category(chr(c)) == "Cn"
            }
            entries += [(first, last, category) for first, last in ranges(newer)]
        for first, last, category in sorted(entries):
            print(f'{{0x{first:X}, 0x{last:X}, "{category}"}},')
    return 0


if __name__ == "__main__":
    sys.exit(main())

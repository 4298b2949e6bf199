#!/usr/bin/env python3
"""Prints what faults took, why tests were skipped, and how many passed, failed and were skipped,
from a JUnit report.

    python3 tests/count_results.py build/cpu/tests.xml
"""

import re
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter

# GoogleTest prints the reason of GTEST_SKIP on the line after its file and line.
SKIP_REASON = re.compile(r"^\S+:\d+: Skipped\n(.+)$", re.MULTILINE)
# What tests/fault/figures.py prints.
FAULT_TABLE = re.compile(r"^fault +until .*(?:\n\S.*)*", re.MULTILINE)


def main(path: str) -> None:
    counts: Counter[str] = Counter()
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        status = {"run": "passed", "notrun": "skipped"}.get(case.get("status", ""), "failed")
        skipped = case.find("skipped")
        message = skipped.get("message", "") if skipped is not None else ""
        if message == "Fixture dependency failed":
            status = "failed"  # as ctest counts it
        counts[status] += 1
        output = case.findtext("system-out", default="")
        for table in FAULT_TABLE.findall(output):
            print(table)
        if status == "skipped":
            reason = SKIP_REASON.search(output)
            print(f"skipped: {case.get('name')}: {reason.group(1) if reason else message}")
    print(f"{counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped")


if __name__ == "__main__":
    main(sys.argv[1])

"""Keeps how long each file of tests takes: `python -m tests.durations build/tests.xml`.

Reads what pytest wrote with --junitxml and writes `durations.tsv`, by which the sessions of
`make test` share the files; prints the slowest files and tests.
"""

from __future__ import annotations

import collections
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

TABLE = Path(__file__).with_suffix(".tsv")
SHOWN = 15


def read() -> dict[str, float]:
    """The seconds of each file, by its path below tests/."""
    rows = (line.split("\t") for line in TABLE.read_text().splitlines()[1:])
    return {name: float(seconds) for seconds, name in rows}


def main(report: str) -> None:
    """Writes the table of a report."""
    files: collections.Counter[str] = collections.Counter()
    tests: collections.Counter[str] = collections.Counter()
    for case in ElementTree.parse(report).iter("testcase"):
        seconds = float(case.get("time", "0"))
        parts = case.get("classname", "").split(".")[1:]
        # A test of a class has the class behind its module.
        last = max(i for i, part in enumerate(parts) if part.startswith(("test_", "on_")))
        file = "/".join(parts[: last + 1]) + ".py"
        files[file] += seconds
        tests[f"{file}::{case.get('name')}"] += seconds
    rows = [f"{seconds:.1f}\t{name}" for name, seconds in files.most_common() if seconds >= 0.05]
    TABLE.write_text("\n".join(["seconds\tfile", *rows]) + "\n")
    for title, counted in (("files", files), ("tests", tests)):
        print(f"slowest {title}, seconds with all that ran at the same time:")
        for name, seconds in counted.most_common(SHOWN):
            print(f"{seconds:8.1f}  {name}")


if __name__ == "__main__":
    main(*sys.argv[1:])

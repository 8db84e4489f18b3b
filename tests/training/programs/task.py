"""One process of a run of programs: see `tests.training.conformance.task`."""

from __future__ import annotations

import sys

from tests.training.conformance import task
from tests.training.programs.all_programs import PROGRAMS

if __name__ == "__main__":
    task.end_with_parent()
    task.main(*sys.argv[1:], table=PROGRAMS)

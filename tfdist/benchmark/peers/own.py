"""The work of tfdist's own benchmarks, which run in processes as those of contenders do."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tfdist.benchmark.peers.work import Work


def accuracy(work: Work) -> dict[str, list[float]]:
    """Trains with each option of `tfdist bench accuracy`."""
    from tfdist.benchmark import accuracy

    return accuracy.train(**work.options)


def growth(work: Work) -> dict[str, float]:
    """Trains one size of `tfdist bench growth`."""
    from tfdist.benchmark import growth

    return growth.train(work.warm_up, work.steps, **work.options)


def trial(work: Work) -> dict[str, float]:
    """Trains one point of `tfdist bench scaling` or `tfdist bench batch`."""
    from tfdist.benchmark import trial

    return trial.train(**work.options)


def collectives(work: Work) -> dict[str, int]:
    """Measures as a worker of `tfdist bench collectives`; the chief writes a line a row."""
    from tfdist.benchmark.collectives import local, task
    from tfdist.benchmark.collectives.cells import Cell, Row

    def take(row: Row) -> None:
        if os.environ["RANK"] == "0":
            with Path(work.output).with_suffix(f".{local.ROWS}").open("a") as file:
                file.write(json.dumps(row.to_dict()) + "\n")

    options = dict(work.options)
    task.measure([Cell(*cell) for cell in options.pop("cells")], **options, take=take)
    return {}

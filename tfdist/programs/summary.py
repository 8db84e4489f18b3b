"""Prints the results of a training run as a table."""

from __future__ import annotations

import pathlib
from dataclasses import dataclass

from tfdist.scaling.plan import Plan


@dataclass(frozen=True)
class Summary:
    """The results of a run. Prints as a table.

    Attributes:
        strategy: The strategy's class.
        replicas: Replicas in sync.
        dataset: Its full name.
        parameters: The number of the model's parameters.
        metrics: Losses and metrics of the last epoch, by name.
        images_per_second: Over all replicas, excluding the first step of the run and evaluation;
            0.0 where there was no other.
        seconds: Duration of the training, in seconds.
        plan: Batch and learning rate.
        model_path: The file of the saved model, if there is one.
    """

    strategy: str
    replicas: int
    dataset: str
    parameters: int
    metrics: dict[str, float]
    images_per_second: float
    seconds: float
    plan: Plan
    model_path: pathlib.Path | None

    def __str__(self) -> str:
        rows = [
            ("strategy", f"{self.strategy}, {self.replicas} replica(s)"),
            ("dataset", self.dataset),
            ("parameters", f"{self.parameters:,}"),
            *self._results(),
            *self._speed(),
            *(tuple(line.split("  ", 1)) for line in str(self.plan).splitlines()),
            ("model", str(self.model_path or "not saved (give --output-dir)")),
        ]
        width = max(len(row[0]) for row in rows)
        return "\n".join(f"{row[0]:<{width}}  {row[1].strip()}" for row in rows)

    def _results(self) -> list[tuple[str, str]]:
        found = {name.removeprefix("val_"): v for name, v in self.metrics.items() if "val_" in name}
        kind = "test" if found else "training"
        found = found or self.metrics
        formats = {"accuracy": ".2%", "loss": ".4f"}
        return [(f"{kind} {n}", format(found[n], f)) for n, f in formats.items() if n in found]

    def _speed(self) -> list[tuple[str, str]]:
        if not self.seconds:
            return [("training time", "none: the run was done before")]
        speed = (
            f"{self.images_per_second:.1f}"
            if self.images_per_second
            else "not measured in one step"
        )
        return [("images per second", speed), ("training time", f"{self.seconds:.0f} s")]

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
        images_per_second: Over all replicas, excluding the first step of the run and evaluation.
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
            ("test accuracy", f"{self.metrics['val_accuracy']:.2%}"),
            ("test loss", f"{self.metrics['val_loss']:.4f}"),
            *self._speed(),
            *(tuple(line.split("  ", 1)) for line in str(self.plan).splitlines()),
            ("model", str(self.model_path or "not saved (give --output_dir)")),
        ]
        width = max(len(row[0]) for row in rows)
        return "\n".join(f"{row[0]:<{width}}  {row[1].strip()}" for row in rows)

    def _speed(self) -> list[tuple[str, str]]:
        if not self.seconds:
            return [("training time", "none: the run was done before")]
        return [
            ("images per second", f"{self.images_per_second:.1f}"),
            ("training time", f"{self.seconds:.0f} s"),
        ]

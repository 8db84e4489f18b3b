"""Holds the batch sizes, steps and learning rates of a run."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import TYPE_CHECKING, Any

from tfdist.errors import ConfigError
from tfdist.notebook import Rows

if TYPE_CHECKING:
    import keras

RULES = {"linear": "linear", "sqrt": "square root", "none": "not scaled"}
DECAYS = ("constant", "step", "cosine")


@dataclasses.dataclass(frozen=True)
class RateCurve:
    """The learning rate over the steps of a run.

    Attributes:
        peak: The rate after warmup.
        warmup_start: The rate of the first step, where there is warmup.
        warmup_steps: Steps from there to the peak.
        decay: The decay after warmup: constant, step or cosine.
        boundary_steps: For step decay: the first steps at each lower rate.
        decay_factor: For step decay: the factor.
        decay_steps: For cosine decay: steps from the end of warmup to the end of the run.
        final_fraction: For cosine decay: the fraction of the peak that it ends at.
    """

    peak: float
    warmup_start: float
    warmup_steps: int
    decay: str
    boundary_steps: tuple[int, ...] = ()
    decay_factor: float = 0.1
    decay_steps: int = 1
    final_fraction: float = 0.0

    def __call__(self, step: int) -> float:
        """Returns the rate of a step, counted from 0."""
        if step < self.warmup_steps:
            return self.warmup_start + (self.peak - self.warmup_start) * step / self.warmup_steps
        if self.decay == "step":
            passed = sum(step >= boundary for boundary in self.boundary_steps)
            return self.peak * self.decay_factor**passed
        if self.decay == "cosine":
            done = min(1.0, (step - self.warmup_steps) / self.decay_steps)
            cosine = 0.5 * (1 + math.cos(math.pi * done))
            return self.peak * ((1 - self.final_fraction) * cosine + self.final_fraction)
        return self.peak


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan(Rows):
    """The batch sizes, steps and learning rates of a run. Made by `scale`.

    A step is one update of the weights. Without accumulation it is also one
    global batch; with it, `accumulate_steps` global batches make one step.
    Prints as a table.

    Attributes:
        per_replica_batch: The per-replica batch: examples per replica and step.
        num_replicas: Replicas in sync.
        accumulate_steps: Global batches whose gradients make one update.
        base_learning_rate: The rate tuned for `base_batch`.
        base_batch: The batch that `base_learning_rate` was tuned for.
        rule: The rule that scales the rate with the batch: linear, sqrt or none.
        peak_learning_rate: The rate after warmup.
        warmup_epochs: Epochs from `warmup_start` to the peak.
        warmup_start: The rate of the first step, where there is warmup.
        decay: The decay after warmup: constant, step or cosine.
        boundaries: Epochs at which step decay multiplies by `decay_factor`.
        decay_factor: The factor of step decay.
        final_fraction: The fraction of the peak that cosine decay ends at.
        epochs: Epochs of the run, if known.
        batches_per_epoch: Global batches per epoch, if known.

    Example:
        >>> plan = tfdist.scale(
        ...     per_replica_batch=32, num_replicas=8, base_learning_rate=0.1, num_examples=50_000
        ... )
        >>> plan.global_batch, plan.steps_per_epoch, plan.warmup_steps
        (256, 196, 980)
    """

    per_replica_batch: int
    num_replicas: int
    accumulate_steps: int
    base_learning_rate: float
    base_batch: int
    rule: str
    peak_learning_rate: float
    warmup_epochs: float
    warmup_start: float
    decay: str
    boundaries: tuple[float, ...]
    decay_factor: float
    final_fraction: float
    epochs: float | None
    batches_per_epoch: int | None

    @property
    def global_batch(self) -> int:
        """Examples per step over all replicas: the batch size of the dataset."""
        return self.per_replica_batch * self.num_replicas

    @property
    def update_batch(self) -> int:
        """Examples per update of the weights: the batch size that the rule scales the rate by."""
        return self.global_batch * self.accumulate_steps

    @property
    def steps_per_epoch(self) -> int | None:
        """Updates per epoch, None if the size of the data is not known.

        A group of batches cut short by the end of the epoch is an update too.
        """
        if self.batches_per_epoch is None:
            return None
        return -(-self.batches_per_epoch // self.accumulate_steps)

    @property
    def warmup_steps(self) -> int:
        """Steps of warmup.

        Raises:
            ConfigError: There is warmup, and the length of an epoch is not known.
        """
        return self._steps(self.warmup_epochs)

    @property
    def boundary_steps(self) -> tuple[int, ...]:
        """The first steps at each lower rate of step decay.

        Raises:
            ConfigError: There are boundaries, and the length of an epoch is not known.
        """
        return tuple(self._steps(epoch) for epoch in self.boundaries)

    @property
    def total_steps(self) -> int | None:
        """Steps of the whole run, None if its length is not known."""
        if self.epochs is None or self.batches_per_epoch is None:
            return None
        return self._steps(self.epochs)

    def learning_rate(self, step: int) -> float:
        """Returns the learning rate of a step, counted from 0.

        Raises:
            ConfigError: `step` is negative, or the length of an epoch is needed
                and not known.

        Example:
            >>> plan = tfdist.scale(
            ...     per_replica_batch=32, num_replicas=64, base_learning_rate=0.1,
            ...     warmup_epochs=5, steps_per_epoch=100,
            ... )
            >>> [round(plan.learning_rate(step), 3) for step in (0, 250, 500)]
            [0.1, 0.45, 0.8]
        """
        if step < 0:
            raise ConfigError(f"Plan.learning_rate(step): {step} is below 0; steps count from 0")
        return self.curve(step)

    @property
    def curve(self) -> RateCurve:
        """The learning rate over the run.

        Raises:
            ConfigError: The length of an epoch is needed and not known.
        """
        return RateCurve(
            peak=self.peak_learning_rate,
            warmup_start=self.warmup_start,
            warmup_steps=self.warmup_steps,
            decay=self.decay,
            boundary_steps=self.boundary_steps,
            decay_factor=self.decay_factor,
            decay_steps=self.decay_steps if self.decay == "cosine" else 1,
            final_fraction=self.final_fraction,
        )

    @property
    def decay_steps(self) -> int:
        """Steps between the end of warmup and the end of the run, at least 1.

        Raises:
            ConfigError: The length of the run is not known.
        """
        if self.epochs is None:
            raise ConfigError("scale(epochs): missing; cosine decay needs the length of the run")
        return max(1, self._steps(self.epochs) - self.warmup_steps)

    def schedule(self) -> keras.optimizers.schedules.LearningRateSchedule:
        """Returns the same rates as a Keras schedule, which plain Keras can load again.

        Raises:
            ConfigError: The length of an epoch is needed and not known.

        Example:
            >>> plan = tfdist.scale(
            ...     per_replica_batch=32, num_replicas=64, base_learning_rate=0.1,
            ...     warmup_epochs=5, steps_per_epoch=100,
            ... )
            >>> optimizer = keras.optimizers.SGD(plan.schedule(), momentum=0.9)
            >>> round(float(optimizer.learning_rate), 3)
            0.1
        """
        from tfdist.scaling.schedule import keras_schedule  # It loads Keras.

        return keras_schedule(self.curve)

    def to_dict(self) -> dict[str, Any]:
        """Returns the plan and the values derived from it, ready for JSON.

        `Plan.from_dict` reads it back.

        Example:
            >>> plan = tfdist.scale(per_replica_batch=32, num_replicas=8, base_learning_rate=0.1)
            >>> plan.to_dict()["global_batch"]
            256
        """
        return dataclasses.asdict(self) | {
            "boundaries": list(self.boundaries),
            "global_batch": self.global_batch,
            "update_batch": self.update_batch,
            "steps_per_epoch": self.steps_per_epoch,
            "total_steps": self.total_steps,
        }

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> Plan:
        """Returns the plan that `to_dict` wrote.

        Example:
            >>> plan = tfdist.scale(per_replica_batch=32, num_replicas=8, base_learning_rate=0.1)
            >>> tfdist.Plan.from_dict(plan.to_dict()) == plan
            True
        """
        fields = {field.name: saved[field.name] for field in dataclasses.fields(cls)}
        fields["boundaries"] = tuple(fields["boundaries"])
        return cls(**fields)

    def to_json(self) -> str:
        """Returns `to_dict` as indented JSON, to save with a run.

        Example:
            >>> plan = tfdist.scale(per_replica_batch=32, num_replicas=8, base_learning_rate=0.1)
            >>> print(plan.to_json())
            {
              "per_replica_batch": 32,
              "num_replicas": 8,
            ...
        """
        return json.dumps(self.to_dict(), indent=2) + "\n"

    def changes_since(self, before: Plan) -> list[str]:
        """Returns the differences from an earlier plan, one line each.

        Example:
            >>> before, now = (
            ...     tfdist.scale(per_replica_batch=32, num_replicas=n, base_learning_rate=0.1)
            ...     for n in (8, 16)
            ... )
            >>> now.changes_since(before)[0]
            'global batch: 256 = 32 x 8 replicas before, 512 = 32 x 16 replicas now'
        """
        was, now = dict(before._rows()), dict(self._rows())
        return [
            f"{name}: {was.get(name, 'none')} before, {now.get(name, 'none')} now"
            for name in (was | now)
            if was.get(name) != now.get(name)
        ]

    def __str__(self) -> str:
        width = max(len(name) for name, _ in self._rows())
        return "\n".join(f"{name:<{width}}  {value}" for name, value in self._rows())

    def _rows(self) -> list[tuple[str, str]]:
        batch = f"{self.global_batch:,} = {self.per_replica_batch} x {self.num_replicas} replicas"
        rows = [("global batch", batch)]
        if self.accumulate_steps > 1:
            rows.append(
                ("update batch", f"{self.update_batch:,} = {self.accumulate_steps} global batches")
            )
        rows.append(
            (
                "learning rate",
                f"{self.peak_learning_rate:.6g} = {self.base_learning_rate:.6g} "
                f"for {self.base_batch}, {RULES[self.rule]}",
            )
        )
        if self.warmup_epochs:
            steps = "" if self.batches_per_epoch is None else f" ({self.warmup_steps:,} steps)"
            text = f"{self.warmup_epochs:g} epochs{steps} from {self.warmup_start:.6g}"
            rows.append(("warmup", text))
        rows.append(("then", self._decay_text()))
        if self.steps_per_epoch is not None:
            rows.append(("steps per epoch", f"{self.steps_per_epoch:,}"))
        if self.epochs is not None:
            total = "" if self.total_steps is None else f" ({self.total_steps:,} steps)"
            rows.append(("epochs", f"{self.epochs:g}{total}"))
        return rows

    def _decay_text(self) -> str:
        if self.decay == "step":
            epochs = ", ".join(f"{epoch:g}" for epoch in self.boundaries)
            return f"x{self.decay_factor:g} at epochs {epochs}"
        if self.decay == "cosine":
            return f"cosine to {self.final_fraction * self.peak_learning_rate:.6g}"
        return "constant"

    def _steps(self, epochs: float) -> int:
        if not epochs:
            return 0
        if self.steps_per_epoch is None:
            raise ConfigError(
                "scale(num_examples): missing, and so is steps_per_epoch; "
                "give one to turn epochs into steps"
            )
        return round(epochs * self.steps_per_epoch)

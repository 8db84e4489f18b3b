"""Batch and learning-rate arithmetic for training on many replicas.

The rules are those of Goyal et al., "Accurate, Large Minibatch SGD: Training
ImageNet in 1 Hour" (2017): when the batch grows k times, multiply the rate by
k (§2.1), and climb there linearly, step by step, from the reference rate over
the first epochs (§2.2). Nothing here needs TensorFlow; `Plan.schedule` alone
loads Keras, when it is called.
"""

from __future__ import annotations

import dataclasses
import json
import math
import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tfdist.errors import ConfigError

if TYPE_CHECKING:
    import keras

RULES = ("linear", "sqrt", "none")
DECAYS = ("constant", "step", "cosine")
GOYAL_BOUNDARIES = (30.0, 60.0, 80.0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """How a run is batched and how its learning rate moves. Made by `scale`.

    A step is one update of the weights. Without accumulation it is also one
    global batch; with it, `accumulate_steps` global batches make one step.

    Attributes:
        per_replica_batch: Examples a replica takes at a time.
        num_replicas: Replicas in sync.
        accumulate_steps: Global batches whose gradients make one update.
        base_learning_rate: The rate tuned for `base_batch`.
        base_batch: The batch that `base_learning_rate` was tuned for.
        rule: How the rate follows the batch: linear, sqrt or none.
        peak_learning_rate: The rate after warmup.
        warmup_epochs: Epochs from `warmup_start` to the peak.
        warmup_start: The rate of the first step, where there is warmup.
        decay: What follows warmup: constant, step or cosine.
        boundaries: Epochs at which step decay multiplies by `decay_factor`.
        decay_factor: The factor of step decay.
        final_fraction: What cosine decay leaves of the peak at the end.
        epochs: Epochs of the run, if known.
        batches_per_epoch: Global batches an epoch, if known.
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
        """Examples all replicas take at a time: what a dataset is batched by."""
        return self.per_replica_batch * self.num_replicas

    @property
    def update_batch(self) -> int:
        """Examples behind one update of the weights: what the rule scales by."""
        return self.global_batch * self.accumulate_steps

    @property
    def steps_per_epoch(self) -> int | None:
        """Updates an epoch, None if the size of the data is not known.

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
        """The rate of step `step`, counted from 0.

        Raises:
            ConfigError: `step` is negative, or the length of an epoch is needed
                and not known.
        """
        if step < 0:
            raise ConfigError(f"Plan.learning_rate(step): {step} is below 0; steps count from 0")
        warmup = self.warmup_steps
        if step < warmup:
            climb = self.peak_learning_rate - self.warmup_start
            return self.warmup_start + climb * step / warmup
        if self.decay == "step":
            passed = sum(step >= boundary for boundary in self.boundary_steps)
            return self.peak_learning_rate * self.decay_factor**passed
        if self.decay == "cosine":
            done = min(1.0, (step - warmup) / self.decay_steps)
            cosine = 0.5 * (1 + math.cos(math.pi * done))
            return self.peak_learning_rate * (
                (1 - self.final_fraction) * cosine + self.final_fraction
            )
        return self.peak_learning_rate

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
        """The same rates as a Keras schedule, which plain Keras can load again.

        Raises:
            ConfigError: The length of an epoch is needed and not known.
        """
        # The one import that points up: Keras is loaded only here.
        from tfdist.training.schedule import keras_schedule

        return keras_schedule(self)

    def to_dict(self) -> dict[str, Any]:
        """The plan and what follows from it, ready for JSON.

        `Plan.from_dict` reads it back.
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
        """The plan that `to_dict` wrote."""
        fields = {field.name: saved[field.name] for field in dataclasses.fields(cls)}
        fields["boundaries"] = tuple(fields["boundaries"])
        return cls(**fields)

    def to_json(self) -> str:
        """`to_dict` as indented JSON, to save beside a run."""
        return json.dumps(self.to_dict(), indent=2) + "\n"

    def changes_since(self, before: Plan) -> list[str]:
        """What differs from another plan, a line each: its name, what it was, what it is."""
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
                f"for {self.base_batch}, {_RULE_TEXT[self.rule]}",
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


_RULE_TEXT = {"linear": "linear", "sqrt": "square root", "none": "not scaled"}


def scale(
    *,
    per_replica_batch: int,
    num_replicas: int,
    base_learning_rate: float,
    base_batch: int = 256,
    rule: str = "linear",
    warmup_epochs: float = 5,
    warmup_start: float | None = None,
    decay: str = "constant",
    boundaries: Sequence[float] | None = None,
    decay_factor: float = 0.1,
    final_fraction: float = 0.0,
    epochs: float | None = None,
    num_examples: int | None = None,
    steps_per_epoch: int | None = None,
    drop_remainder: bool = False,
    accumulate_steps: int = 1,
) -> Plan:
    """Plan batch and learning rate for a number of replicas.

    The defaults are Goyal et al.'s: linear scaling from a batch of 256, and
    five epochs of warmup that begin at the base rate. Where the batch is
    smaller than `base_batch`, the base rate is above the peak; warmup then
    begins at 0.

    Args:
        per_replica_batch: Examples a replica takes at a time.
        num_replicas: Replicas in sync (`strategy.num_replicas_in_sync`).
        base_learning_rate: The rate tuned for `base_batch`.
        base_batch: The batch that rate was tuned for.
        rule: "linear" multiplies the rate by batch / base_batch, "sqrt" by its
            square root, "none" leaves it.
        warmup_epochs: Epochs of linear warmup, 0 for none.
        warmup_start: The rate warmup begins at, if not as said above.
        decay: After warmup: "constant", "step" or "cosine".
        boundaries: For "step": the epochs, counted from the start of the run,
            at which the rate is multiplied by `decay_factor`; 30, 60, 80 if None.
        decay_factor: For "step": the factor.
        final_fraction: For "cosine": what is left of the peak at the end.
        epochs: Epochs of the run; "cosine" needs it.
        num_examples: Examples an epoch; or give `steps_per_epoch`.
        steps_per_epoch: Global batches an epoch, as `fit` counts them.
        drop_remainder: Whether a ragged last batch is dropped.
        accumulate_steps: Global batches whose gradients make one update.

    Returns:
        The plan. Without `num_examples` and `steps_per_epoch` it knows batch
        and peak rate, and refuses what needs the length of an epoch.

    Raises:
        ConfigError: An argument is out of range, or two contradict each other.
    """
    per_replica_batch = _whole("per_replica_batch", per_replica_batch)
    num_replicas = _whole("num_replicas", num_replicas)
    accumulate_steps = _whole("accumulate_steps", accumulate_steps)
    base_batch = _whole("base_batch", base_batch)
    base_learning_rate = _number("base_learning_rate", base_learning_rate, above=0)
    warmup_epochs = _number("warmup_epochs", warmup_epochs, least=0)
    decay_factor = _number("decay_factor", decay_factor, above=0)
    final_fraction = _number("final_fraction", final_fraction, least=0, most=1)
    _choice("rule", rule, RULES)
    _choice("decay", decay, DECAYS)
    if epochs is not None:
        epochs = _number("epochs", epochs, above=0)
    batches = _batches_per_epoch(
        num_examples, steps_per_epoch, per_replica_batch * num_replicas, drop_remainder
    )
    if boundaries is not None and decay != "step":
        raise ConfigError(f"scale(boundaries): given with decay={decay!r}; only 'step' has any")
    if decay == "cosine":
        if epochs is None:
            raise ConfigError("scale(epochs): missing; cosine decay needs the length of the run")
        if epochs <= warmup_epochs:
            raise ConfigError(
                f"scale(warmup_epochs): {warmup_epochs:g} leaves nothing of {epochs:g} epochs "
                "for cosine decay; warm up for less"
            )

    ratio = per_replica_batch * num_replicas * accumulate_steps / base_batch
    factor = {"linear": ratio, "sqrt": math.sqrt(ratio), "none": 1.0}[rule]
    peak = base_learning_rate * factor
    if warmup_start is None:
        warmup_start = base_learning_rate if factor > 1 else 0.0
    return Plan(
        per_replica_batch=per_replica_batch,
        num_replicas=num_replicas,
        accumulate_steps=accumulate_steps,
        base_learning_rate=base_learning_rate,
        base_batch=base_batch,
        rule=rule,
        peak_learning_rate=peak,
        warmup_epochs=warmup_epochs,
        warmup_start=_number("warmup_start", warmup_start, least=0),
        decay=decay,
        boundaries=_boundaries(boundaries, warmup_epochs) if decay == "step" else (),
        decay_factor=decay_factor,
        final_fraction=final_fraction,
        epochs=epochs,
        batches_per_epoch=batches,
    )


def _batches_per_epoch(
    num_examples: int | None, steps_per_epoch: int | None, global_batch: int, drop_remainder: bool
) -> int | None:
    if num_examples is not None and steps_per_epoch is not None:
        raise ConfigError("scale(steps_per_epoch): given beside num_examples; give one of the two")
    if steps_per_epoch is not None:
        return _whole("steps_per_epoch", steps_per_epoch)
    if num_examples is None:
        return None
    num_examples = _whole("num_examples", num_examples)
    if not drop_remainder:
        return -(-num_examples // global_batch)
    if num_examples < global_batch:
        raise ConfigError(
            f"scale(num_examples): {num_examples} do not fill one global batch of {global_batch}; "
            "set drop_remainder=False or take a smaller batch"
        )
    return num_examples // global_batch


def _boundaries(boundaries: Sequence[float] | None, warmup_epochs: float) -> tuple[float, ...]:
    if boundaries is None:
        boundaries = GOYAL_BOUNDARIES
    epochs = tuple(_number("boundaries", epoch, above=0) for epoch in boundaries)
    if not epochs or any(a >= b for a, b in zip(epochs, epochs[1:], strict=False)):
        raise ConfigError(
            f"scale(boundaries): {list(epochs)} are not rising epochs; give such as [30, 60, 80]"
        )
    if epochs[0] < warmup_epochs:
        raise ConfigError(
            f"scale(boundaries): {epochs[0]:g} is inside the {warmup_epochs:g} epochs of warmup; "
            "decay later or warm up for less"
        )
    return epochs


def _whole(name: str, value: Any) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        number = 0
    if number < 1 or isinstance(value, bool):
        raise ConfigError(f"scale({name}): {value!r} is not a whole number of 1 or more")
    return number


def _number(
    name: str,
    value: Any,
    *,
    above: float | None = None,
    least: float | None = None,
    most: float | None = None,
) -> float:
    limits = []
    if above is not None:
        limits.append(f"above {above}")
    if least is not None:
        limits.append(f"of at least {least}")
    if most is not None:
        limits.append(f"of at most {most}")
    try:
        number = math.nan if isinstance(value, (bool, str)) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    inside = (
        math.isfinite(number)
        and (above is None or number > above)
        and (least is None or number >= least)
        and (most is None or number <= most)
    )
    if not inside:
        raise ConfigError(f"scale({name}): {value!r} is not a number {' and '.join(limits)}")
    return number


def _choice(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ConfigError(f"scale({name}): {value!r} is not one of {', '.join(allowed)}")

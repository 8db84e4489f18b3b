"""Computes batch size and learning rate for training on many replicas.

The rules are those of Goyal et al., "Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour"
(2017): when the batch grows k times, multiply the rate by k (§2.1), and increase it to there
linearly, step by step, from the reference rate over the first epochs (§2.2).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tfdist.errors import ConfigError
from tfdist.scaling.plan import DECAYS, RULES, Plan
from tfdist.validation import number, one_of, whole_number

# Of rates and epochs: with more, arithmetic overflows.
_MOST = 1e12
_GOYAL_BOUNDARIES = (30.0, 60.0, 80.0)


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
    """Plans batch size and learning rate for a number of replicas.

    The defaults are those of Goyal et al.: linear scaling from a batch of 256,
    and five epochs of warmup that begin at the base rate. Where scaling does not
    raise the rate, warmup begins at 0.

    Args:
        per_replica_batch: The per-replica batch: examples per replica and step.
        num_replicas: Replicas in sync (`strategy.num_replicas_in_sync`).
        base_learning_rate: The rate tuned for `base_batch`.
        base_batch: The batch that rate was tuned for.
        rule: "linear" multiplies the rate by batch / base_batch, "sqrt" by its
            square root, "none" leaves it.
        warmup_epochs: Epochs of linear warmup, 0 for none.
        warmup_start: The rate that warmup begins at; None for the above.
        decay: After warmup: "constant", "step" or "cosine".
        boundaries: For "step": the epochs, counted from the start of the run,
            at which the rate is multiplied by `decay_factor`; 30, 60, 80 if None.
        decay_factor: For "step": the factor.
        final_fraction: For "cosine": the fraction of the peak at the end.
        epochs: Epochs of the run; "cosine" needs it.
        num_examples: Examples per epoch; or give `steps_per_epoch`.
        steps_per_epoch: Global batches per epoch, as `fit` counts them.
        drop_remainder: Whether a partial last batch is dropped.
        accumulate_steps: Global batches whose gradients make one update.

    Returns:
        The plan. Without `num_examples` and `steps_per_epoch` it has the batch
        sizes and the peak rate only; what needs the length of an epoch raises
        ConfigError.

    Raises:
        ConfigError: An argument is out of range, or two contradict each other.

    Example:
        >>> plan = tfdist.scale(
        ...     per_replica_batch=32, num_replicas=256, base_learning_rate=0.1,
        ...     epochs=90, num_examples=1_281_167, decay="step",
        ... )
        >>> print(plan)
        global batch     8,192 = 32 x 256 replicas
        learning rate    3.2 = 0.1 for 256, linear
        warmup           5 epochs (785 steps) from 0.1
        then             x0.1 at epochs 30, 60, 80
        steps per epoch  157
        epochs           90 (14,130 steps)
    """
    per_replica_batch = whole_number("scale(per_replica_batch)", per_replica_batch)
    num_replicas = whole_number("scale(num_replicas)", num_replicas)
    accumulate_steps = whole_number("scale(accumulate_steps)", accumulate_steps)
    base_batch = whole_number("scale(base_batch)", base_batch)
    base_learning_rate = number(
        "scale(base_learning_rate)", base_learning_rate, above=0, most=_MOST
    )
    warmup_epochs = number("scale(warmup_epochs)", warmup_epochs, least=0, most=_MOST)
    decay_factor = number("scale(decay_factor)", decay_factor, above=0, most=_MOST)
    final_fraction = number("scale(final_fraction)", final_fraction, least=0, most=1)
    one_of("scale(rule)", rule, RULES)
    one_of("scale(decay)", decay, DECAYS)
    if epochs is not None:
        epochs = number("scale(epochs)", epochs, above=0, most=_MOST)
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
    factor = _rate_factor(rule, ratio)
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
        warmup_start=number("scale(warmup_start)", warmup_start, least=0, most=_MOST),
        decay=decay,
        boundaries=_boundaries(boundaries, warmup_epochs) if decay == "step" else (),
        decay_factor=decay_factor,
        final_fraction=final_fraction,
        epochs=epochs,
        batches_per_epoch=batches,
    )


def _rate_factor(rule: str, ratio: float) -> float:
    """Returns the factor of the rate for a batch `ratio` times the one it was tuned for."""
    return {"linear": ratio, "sqrt": math.sqrt(ratio), "none": 1.0}[rule]


def _batches_per_epoch(
    num_examples: int | None, steps_per_epoch: int | None, global_batch: int, drop_remainder: bool
) -> int | None:
    if num_examples is not None and steps_per_epoch is not None:
        raise ConfigError("scale(steps_per_epoch): num_examples is given too; give one of the two")
    if steps_per_epoch is not None:
        return whole_number("scale(steps_per_epoch)", steps_per_epoch)
    if num_examples is None:
        return None
    num_examples = whole_number("scale(num_examples)", num_examples)
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
        boundaries = _GOYAL_BOUNDARIES
    epochs = tuple(number("scale(boundaries)", epoch, above=0, most=_MOST) for epoch in boundaries)
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

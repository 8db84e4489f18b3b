"""Makes a plan's learning rate a Keras schedule that plain Keras can load again.

A saved model carries its schedule. One made of Keras' own classes loads where
tfdist is not installed, so every plan becomes one of those.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import keras
from keras import ops
from keras.optimizers.schedules import (
    CosineDecay,
    LearningRateSchedule,
    PiecewiseConstantDecay,
)

if TYPE_CHECKING:
    from tfdist.scaling.plan import RateCurve

# Keras adds several operations to the graph for each piece, so a long warmup
# is saved in this many levels. Only plain Keras, loading in mid-warmup, sees them.
_SAVED_WARMUP_PIECES = 500


def keras_schedule(curve: RateCurve) -> LearningRateSchedule:
    """Returns the Keras schedule that gives `curve(step)` for every step."""
    peak, warmup = curve.peak, curve.warmup_steps
    if curve.decay == "step":
        values = [peak * curve.decay_factor**n for n in range(len(curve.boundary_steps) + 1)]
        # Keras' boundaries are the last steps at the old rate.
        boundaries = [step - 1 for step in curve.boundary_steps]
        if not warmup:
            return PiecewiseConstantDecay(boundaries, values)
        return WarmupPiecewise(boundaries, values, curve.warmup_start, warmup)
    # Constant is a cosine decay that keeps the whole of its peak.
    constant = curve.decay == "constant"
    decay_steps = 1 if constant else curve.decay_steps
    alpha = 1.0 if constant else curve.final_fraction
    if not warmup:
        return CosineDecay(peak, decay_steps, alpha=alpha)
    return CosineDecay(
        curve.warmup_start, decay_steps, alpha=alpha, warmup_target=peak, warmup_steps=warmup
    )


class WarmupPiecewise(PiecewiseConstantDecay):
    """Linear warmup, then steps down. Saved as `PiecewiseConstantDecay`.

    Keras has no schedule for it. Its piecewise-constant one is exact with one
    piece for every warmup step, but slow to trace, so this class computes the
    line and only its saved form has the pieces.

    Args:
        boundaries: The last steps at each rate but the lowest, after warmup.
        values: The rates between them, the peak first.
        warmup_start: The rate of step 0.
        warmup_steps: Steps from there to the peak.
        name: As in Keras.
    """

    def __init__(
        self,
        boundaries: list[int],
        values: list[float],
        warmup_start: float,
        warmup_steps: int,
        name: str = "PiecewiseConstant",
    ) -> None:
        super().__init__(boundaries, values, name=name)
        self.warmup_start = warmup_start
        self.warmup_steps = warmup_steps

    # Keras names the class it saves after __class__.
    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return PiecewiseConstantDecay

    def __call__(self, step: Any) -> keras.KerasTensor:
        """Returns the rate of `step` as a float32 scalar."""
        step = ops.convert_to_tensor(step)
        passed = ops.sum(ops.cast(step > ops.cast(self.boundaries, step.dtype), "int32"))
        decayed = ops.take(ops.convert_to_tensor(self.values, "float32"), passed)
        done = ops.cast(step, "float32") / self.warmup_steps
        climb = self.warmup_start + (self.values[0] - self.warmup_start) * done
        return ops.where(step < self.warmup_steps, climb, decayed)

    def get_config(self) -> dict[str, Any]:
        """Returns Keras' configuration of the equivalent `PiecewiseConstantDecay`."""
        pieces = min(self.warmup_steps, _SAVED_WARMUP_PIECES)
        starts = [piece * self.warmup_steps // pieces for piece in range(pieces + 1)]
        climb = (self.values[0] - self.warmup_start) / self.warmup_steps
        # A piece of several steps has the mean of their rates.
        levels = [
            self.warmup_start + climb * (first + last - 1) / 2
            for first, last in zip(starts, starts[1:], strict=False)
        ]
        ends = [start - 1 for start in starts[1:]]
        boundaries, values = list(self.boundaries), list(self.values)
        if boundaries[0] == ends[-1]:  # decay right after warmup: the peak is never held
            boundaries, values = boundaries[1:], values[1:]
        return {
            "boundaries": ends + boundaries,
            "values": levels + values,
            "name": self.name,
        }

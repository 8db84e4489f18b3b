"""Computes the learning rate from the batch size, and its curve over a run: arithmetic only.

The rules are those of Goyal et al., "Accurate, Large Minibatch SGD: Training
ImageNet in 1 Hour" (2017): when the batch grows k times, multiply the rate by
k (§2.1), and increase it to there linearly, step by step, from the reference
rate over the first epochs (§2.2).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

RULES = {"linear": "linear", "sqrt": "square root", "none": "not scaled"}
DECAYS = ("constant", "step", "cosine")
GOYAL_BOUNDARIES = (30.0, 60.0, 80.0)


def rate_factor(rule: str, ratio: float) -> float:
    """Returns the factor of the rate for a batch `ratio` times the one it was tuned for."""
    return {"linear": ratio, "sqrt": math.sqrt(ratio), "none": 1.0}[rule]


@dataclass(frozen=True)
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

"""Says what a Trainer trains, and how far it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tfdist.notebook import Rows
from tfdist.strategy.kinds import kind_of

if TYPE_CHECKING:
    import keras
    import tensorflow as tf

    from tfdist.training.timing import EpochTiming


class Described(Rows):
    """The model and the strategy of a Trainer, and its latest training, as rows.

    Attributes:
        model: The model.
        strategy: The strategy that it was made under.
        timings: Those of the latest training's epochs.
    """

    model: keras.Model
    strategy: tf.distribute.Strategy
    timings: list[EpochTiming]

    def __repr__(self) -> str:
        return f"<Trainer of {', '.join(f'{name} {text}' for name, text in self._rows())}>"

    def _rows(self) -> list[tuple[str, str]]:
        model: Any = self.model
        size = f", {model.count_params():,} parameters" if model.built else ""
        replicas = self.strategy.num_replicas_in_sync
        rows = [
            ("model", f"{model.name}{size}"),
            ("strategy", f"{kind_of(self.strategy).public}, replicas: {replicas}"),
        ]
        if self.timings:
            seconds = sum(timing.seconds for timing in self.timings)
            steps = sum(timing.steps for timing in self.timings)
            text = f"{len(self.timings)} epochs, {steps:,} steps in {seconds:.1f} s"
            rows.append(("latest fit", text))
        return rows

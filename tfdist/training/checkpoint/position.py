"""Holds the position of a training run, as a checkpoint stores it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Position:
    """The position of a training run.

    Attributes:
        fit: The number of the call of `fit`, from 0.
        first_epoch: The epoch that call began with.
        epoch: The current epoch.
        step: Batches of this epoch that were trained on.
        total: Batches that were trained on altogether, in earlier calls too.
        seed: The seed of the order of arrays, which depends on the epoch too.
        global_batch: Rows of a batch over all workers.
        finished: Whether this call of `fit` is done, even if epochs are left.
        steps: Batches that this epoch has, None if unknown before its end.
    """

    fit: int = 0
    first_epoch: int = 0
    epoch: int = 0
    step: int = 0
    total: int = 0
    seed: int = 0
    global_batch: int = 0
    finished: bool = False
    steps: int | None = None

    def after(self, steps: int, global_batch: int) -> int:
        """Converts a number of steps to steps of another global batch, by examples."""
        if self.global_batch in (0, global_batch):
            return steps
        return steps * self.global_batch // global_batch

    def next_fit(self, initial_epoch: int, seed: int, global_batch: int) -> Position:
        """Returns where the next call of `fit` begins, if no checkpoint says otherwise.

        Args:
            initial_epoch: The epoch to start at.
            seed: The seed of the order of arrays.
            global_batch: Rows of a batch over all workers.
        """
        return Position(
            fit=self.fit + 1,
            first_epoch=initial_epoch,
            epoch=initial_epoch,
            total=self.total,
            seed=seed,
            global_batch=global_batch,
        )

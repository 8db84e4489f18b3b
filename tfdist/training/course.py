"""The course of one `fit`: where it is, when it saves, and when it stops before its end."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import keras

from tfdist.errors import CheckpointError, Preempted
from tfdist.heartbeat import Heart
from tfdist.training.checkpoint import Checkpoints, Position
from tfdist.training.place import Place
from tfdist.training.preemption import Sigterm
from tfdist.training.wishes import Wish, Wishes


class Course:
    """Follows training from call to call of TensorFlow.

    Args:
        place: This process's place in the strategy.
        loop: The loop that trains.
        heart: Where the heartbeats go.
        position: Where training begins.
        checkpoints: Where it is saved; None if nowhere.
        callbacks: The callbacks, some of which remember things.
        sigterm: Whether this process was asked to stop.
        wishes: Tells of it, and whether any worker was.
        accumulate_steps: Batches a weight update.
    """

    def __init__(
        self,
        place: Place,
        loop: Any,
        heart: Heart,
        position: Position,
        *,
        checkpoints: Checkpoints | None,
        callbacks: list[keras.callbacks.Callback],
        sigterm: Sigterm,
        wishes: Wishes,
        accumulate_steps: int,
    ) -> None:
        self.position = position
        self._place = place
        self._loop = loop
        self._heart = heart
        self._checkpoints = checkpoints
        self._callbacks = callbacks
        self._sigterm = sigterm
        self._wishes = wishes
        self._accumulate_steps = accumulate_steps
        self._kept: Any = None
        self._called = 0.0
        self._traced = False
        self._evaluated = False

    def before(self, count: int) -> int:
        """Begins a call of at most `count` steps; returns how many it is to make.

        The number is the same on every worker, and the call ends where a checkpoint is due.
        """
        self._pass_wish_on()
        step = self.position.step
        if self._checkpoints is not None:
            due = self._checkpoints.until_due(self.position.total)
            count = count if due is None else min(count, due)
            aligned = (step + count) // self._accumulate_steps * self._accumulate_steps
            count = aligned - step if aligned > step else count
        phase = "training" if self._traced else "tracing"
        self._heart.write(phase, self.position.epoch, step)
        self._called = time.monotonic()
        return count

    def after(self, count: int) -> None:
        """Ends a call of `count` steps: saves where that is due, stops where all agree to.

        Raises:
            Preempted: A worker was asked to stop. All is saved.
            CheckpointError: A checkpoint could not be written.
        """
        before = self.position
        self.position = dataclasses.replace(
            before, step=before.step + count, total=before.total + count
        )
        self._traced = True
        self._heart.write(
            "training",
            before.epoch,
            self.position.step,
            step_seconds=(time.monotonic() - self._called) / count,
        )
        if self._checkpoints is None:
            return
        self._checkpoints.check()
        if self.position.step % self._accumulate_steps:
            return  # Gradients are under way that no checkpoint holds.
        if self._stops():
            self._save()
            self._preempt()
        if self._checkpoints.is_due(self.position.total):
            self._save()

    def trained(self) -> None:
        """Keeps what the epoch has come to, before validation starts the metrics anew."""
        if self._checkpoints is not None:
            self._kept = self._loop.progress()

    def evaluating(self, step: int) -> None:
        """Follows validation, after its step number `step` at the latest.

        Raises:
            Preempted: A worker was asked to stop. What is saved is the end of training in
                this epoch: the next start validates anew.
        """
        # The first validation compiles its step, which may take long.
        phase = "evaluating" if self._evaluated or step else "tracing"
        self._heart.write(phase, self.position.epoch, step)
        self._pass_wish_on()
        if self._checkpoints is not None and step and self._stops():
            self._save(self._kept)
            self._preempt()

    def next_epoch(self, *, finished: bool, last: bool) -> None:
        """Goes on to the next epoch, after the callbacks of this one's end.

        Args:
            finished: Whether this `fit` is done whatever number of epochs is asked for.
            last: Whether no epoch follows.

        Raises:
            CheckpointError: A checkpoint could not be written.
        """
        self._evaluated = True
        self.position = dataclasses.replace(
            self.position, epoch=self.position.epoch + 1, step=0, finished=finished
        )
        if self._checkpoints is not None and (last or self._checkpoints.by_epoch):
            self._save()

    def end(self) -> None:
        """Waits until the end of training is on the disk.

        Raises:
            CheckpointError: It could not be written.
        """
        if self._checkpoints is not None:
            self._checkpoints.wait()
        self._heart.write("done", self.position.epoch, self.position.step)

    def abandon(self) -> None:
        """Lets a checkpoint that is being written be finished, when an exception ends training."""
        if self._checkpoints is not None:
            try:
                self._checkpoints.wait()
            except CheckpointError:
                return  # The exception under way is what the user is to see.

    def _stops(self) -> bool:
        if self._place.share.workers > 1:
            return self._wishes.agreed(Wish.LEAVE)
        return self._sigterm.came

    def _pass_wish_on(self) -> None:
        if self._sigterm.came:
            self._wishes.wish(Wish.LEAVE)

    def _save(self, progress: Any = None) -> None:
        assert self._checkpoints is not None
        self._heart.write("saving", self.position.epoch, self.position.step)
        self._loop.settle()
        progress = self._loop.progress() if progress is None else progress
        self._checkpoints.save(self.position, progress, self._callbacks)

    def _preempt(self) -> None:
        assert self._checkpoints is not None
        self._checkpoints.wait_together()
        self._heart.write("done", self.position.epoch, self.position.step)
        raise Preempted(
            f"stopped by SIGTERM in epoch {self.position.epoch + 1} after step "
            f"{self.position.step}, which is saved; start again to go on"
        )

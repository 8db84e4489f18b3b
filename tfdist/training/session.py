"""Listens to one `fit`: resumes it, saves it, times it, writes heartbeats, stops it on SIGTERM."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator
from typing import Protocol

import keras
from typing_extensions import override

from tfdist.collectives.process_group import ProcessGroup
from tfdist.collectives.worker_flags import Flag, WorkerFlags
from tfdist.errors import CheckpointError, ConfigError, Preempted
from tfdist.runtime.heartbeat import HeartbeatWriter
from tfdist.runtime.log import LOGGER
from tfdist.runtime.sigterm import Sigterm
from tfdist.training.checkpoint import callback_state
from tfdist.training.checkpoint.manager import Checkpoints
from tfdist.training.checkpoint.saved import Position, Saved
from tfdist.training.input.feed import Feed
from tfdist.training.input.intake import of_waiting
from tfdist.training.loops.base import EpochProgress, Loop


@dataclasses.dataclass(frozen=True)
class EpochTiming:
    """Where the time of an epoch's training steps went, without validation and callbacks.

    Attributes:
        epoch: The epoch, from 0.
        steps: Its steps, as far as this process made them.
        seconds: Of all steps.
        input_seconds: Of that, how long they waited for data.
    """

    epoch: int
    steps: int
    seconds: float
    input_seconds: float


class StepListener(Protocol):
    """An object that is notified of each call of TensorFlow."""

    def before_training(self, count: int) -> int:
        """Begins a call of at most `count` steps; returns the number of steps to make."""

    def after_training(self, count: int) -> None:
        """Ends a call of `count` steps."""

    def before_evaluating(self, step: int) -> None:
        """Begins a call of evaluation, at step number `step`."""


class HeartbeatOnly(StepListener):
    """Listens to an evaluation outside `fit`: it only writes heartbeats.

    Args:
        heartbeat: Writes the heartbeats.
    """

    def __init__(self, heartbeat: HeartbeatWriter) -> None:
        self._heartbeat = heartbeat

    @override
    def before_training(self, count: int) -> int:
        return count

    @override
    def after_training(self, count: int) -> None:
        pass

    @override
    def before_evaluating(self, step: int) -> None:
        # The first call compiles, which may take long.
        self._heartbeat.write("evaluating" if step else "tracing", 0, step)


class Session:
    """Follows training from call to call of TensorFlow.

    Args:
        group: The processes that train.
        loop: The loop that trains.
        heartbeat: Writes the heartbeats.
        flags: Carries a SIGTERM of any worker to all.
        position: The position at which training begins.
        checkpoints: The checkpoints to save; None for none.
        callbacks: The callbacks, of which some have state to save.
        before_save: Called before a save in which all workers take part.
        timings: Receives the timing of each epoch.
        if_slow: What to do where the steps wait for data, if the data set itself knows.
    """

    def __init__(
        self,
        group: ProcessGroup,
        loop: Loop,
        heartbeat: HeartbeatWriter,
        flags: WorkerFlags,
        position: Position,
        *,
        checkpoints: Checkpoints | None,
        callbacks: list[keras.callbacks.Callback],
        before_save: Callable[[], None] = lambda: None,
        timings: list[EpochTiming],
        if_slow: str | None = None,
    ) -> None:
        self._if_slow = if_slow
        self.position = position
        self._group = group
        self._loop = loop
        self._heartbeat = heartbeat
        self._flags = flags
        self._checkpoints = checkpoints
        self._callbacks = callbacks
        self._before_save = before_save
        self._timings = timings
        self._sigterm = Sigterm()
        self._trained: EpochProgress | None = None
        self._called = 0.0
        self._in_calls = 0.0  # Seconds of the calls of this epoch.
        self._made = 0  # Steps of these calls.
        self._warned_of_waiting = False
        self._traced = False
        self._evaluated = False

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Follows one `fit`; if it has checkpoints, SIGTERM makes it save and stop.

        Raises:
            Preempted: SIGTERM came, and training is saved.
        """
        self._flags.clear()
        with contextlib.ExitStack() as stack:
            if self._checkpoints is not None:
                stack.enter_context(self._sigterm)
            stack.callback(self._abandon)
            yield
            self._end()
            if self._sigterm.came:
                raise Preempted("stopped by SIGTERM; fit had finished, and its end is saved")

    def begin_epoch(self, steps: int | None) -> None:
        """Begins an epoch, or continues one in which a checkpoint was saved.

        Args:
            steps: The number of its steps, with those before the checkpoint; None if unknown.

        Raises:
            ConfigError: It had another number of steps when the checkpoint was written, so it
                would continue with other examples, or count as finished.
        """
        was = self.position.steps
        if self.position.step and None not in (was, steps) and was != steps:
            fewer = " or fewer" if steps == self.position.step else ""
            raise ConfigError(
                f"data: an epoch has {steps}{fewer} batches, but had {was} when the checkpoint was "
                f"written after {self.position.step} of them; put the data back as it was, or give "
                "this job its own checkpoint_dir"
            )
        self.position = dataclasses.replace(self.position, steps=steps)
        self._in_calls, self._made = 0.0, 0
        self._loop.input_seconds()

    def before_training(self, count: int) -> int:
        """Begins a call of at most `count` steps; returns the number of steps to make.

        The number is the same on every worker, and the call ends where a checkpoint is due.
        """
        self._raise_flag()
        if self._checkpoints is not None:
            due = self._checkpoints.until_due(self.position.total)
            count = count if due is None else min(count, due)
            count = self._loop.update.calls_to_end(count)
        phase = "training" if self._traced else "tracing"
        self._heartbeat.write(phase, self.position.epoch, self.position.step)
        self._called = time.monotonic()
        return count

    def after_training(self, count: int) -> None:
        """Ends a call of `count` steps: saves if a checkpoint is due, stops if all workers agree.

        Raises:
            Preempted: A worker was asked to stop. Training is saved.
            CheckpointError: A checkpoint could not be written.
        """
        before = self.position
        self.position = dataclasses.replace(
            before, step=before.step + count, total=before.total + count
        )
        seconds = time.monotonic() - self._called
        self._in_calls += seconds
        self._made += count
        self._traced = True
        self._heartbeat.write(
            "training", before.epoch, self.position.step, step_seconds=seconds / count
        )
        if self._checkpoints is None:
            return
        self._checkpoints.check()
        if not self._loop.update.is_complete():
            return  # A checkpoint does not hold accumulated gradients.
        if self._stops():
            self._before_save()
            self._save()
            self._preempt()
        if self._checkpoints.is_due(self.position.total):
            # A checkpoint due by time is due at another moment on each worker.
            if self._checkpoints.is_due_by_steps(self.position.total):
                self._before_save()
            self._save()

    def trained(self) -> None:
        """Keeps the progress of the epoch, before validation resets the metrics.

        Warns, once in a `fit`, if its steps waited for data.
        """
        waited, reads_all = self._loop.input_seconds(), self._loop.reads_all
        timing = EpochTiming(self.position.epoch, self._made, self._in_calls, waited)
        self._timings.append(timing)
        if not self._warned_of_waiting:
            warning = of_waiting(waited, self._in_calls, reads_all=reads_all, advice=self._if_slow)
            self._warned_of_waiting = bool(warning)
            if warning:
                LOGGER.warning(warning)
        if self._checkpoints is not None:
            self._trained = self._loop.progress()

    def before_evaluating(self, step: int) -> None:
        """Follows validation, before its step number `step`.

        Raises:
            Preempted: A worker was asked to stop. The end of training in this epoch is
                saved: the next start repeats the validation.
        """
        # The first validation compiles its step, which may take long.
        phase = "evaluating" if self._evaluated or step else "tracing"
        self._heartbeat.write(phase, self.position.epoch, step)
        self._raise_flag()
        if self._checkpoints is not None and step and self._stops():
            self._save(self._trained)
            self._preempt()

    def next_epoch(self, *, finished: bool, last: bool) -> None:
        """Moves on to the next epoch, after the callbacks of this one's end.

        Args:
            finished: Whether this `fit` is done, even if epochs are left.
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

    def _end(self) -> None:
        """Waits until the end of training is on the disk."""
        if self._checkpoints is not None:
            self._checkpoints.wait()
        self._heartbeat.write("done", self.position.epoch, self.position.step)

    def _abandon(self) -> None:
        """Waits for a checkpoint that is being written, when an exception ends training."""
        if self._checkpoints is not None:
            # The user is to see the exception that ended training.
            with contextlib.suppress(CheckpointError):
                self._checkpoints.wait()
            self._checkpoints.release()

    def _stops(self) -> bool:
        if self._group.layout.workers > 1:
            return self._flags.seen(Flag.SAVE_AND_END)
        return self._sigterm.came

    def _raise_flag(self) -> None:
        if self._sigterm.came:
            self._flags.set(Flag.SAVE_AND_END)

    def _save(self, progress: EpochProgress | None = None) -> None:
        assert self._checkpoints is not None
        self._heartbeat.write("saving", self.position.epoch, self.position.step)
        self._loop.settle()
        progress = self._loop.progress() if progress is None else progress
        self._checkpoints.save(self.position, progress, self._callbacks)

    def _preempt(self) -> None:
        assert self._checkpoints is not None
        self._checkpoints.wait_together()
        self._heartbeat.write("done", self.position.epoch, self.position.step)
        raise Preempted(
            f"stopped by SIGTERM in epoch {self.position.epoch + 1} after step "
            f"{self.position.step}, which is saved; start again to continue"
        )


def resume(
    start: Position,
    saved: Saved | None,
    checkpoints: Checkpoints | None,
    feed: Feed,
    loop: Loop,
    epochs: int,
) -> Position:
    """Restores model and data from a checkpoint.

    Args:
        start: The position at which the call of `fit` would begin without it.
        saved: The checkpoint; None for none.
        checkpoints: The directory that it was found in.
        feed: The data of the call.
        loop: The loop that trains.
        epochs: The epoch that the call ends before.

    Returns:
        The position at which the call begins; `finished` if the call was done when the
        checkpoint was written.
    """
    if saved is None or checkpoints is None:
        return start
    was, batch = saved.position, start.global_batch
    loop.build(feed)
    checkpoints.restore(saved, loop, batch if was.fit == start.fit else was.global_batch)
    if was.fit > start.fit:  # This call was done when a later one was saved.
        return dataclasses.replace(start, finished=True)
    checkpoints.announce(saved, batch, epochs)
    # With another global batch, rounded down: a few examples may be used twice.
    step = was.after(was.step, batch)
    feed.resume(was.first_epoch, was.epoch, step)
    # In a cluster of another size the number of batches may differ by one.
    same = batch == was.global_batch and checkpoints.has_as_many_workers(saved)
    steps = was.steps if same else None
    return dataclasses.replace(was, step=step, global_batch=batch, steps=steps)


def restore_callback_state(
    saved: Saved, position: Position, callbacks: list[keras.callbacks.Callback]
) -> None:
    """Restores the state of callbacks from a checkpoint of the same call, and closes it."""
    if position.fit == saved.position.fit:
        arrays = saved.read_all(callback_state.PREFIX)
        callback_state.restore(callbacks, saved.manifest["callbacks"], arrays)
        saved.close()

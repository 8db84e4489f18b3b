"""Prints progress as lines of text: position, speed and remaining time."""

from __future__ import annotations

import time
from typing import Any

import keras

# Seconds between two lines.
_EVERY = 5.0


class Progress(keras.callbacks.Callback):
    """Prints a line every few seconds of training, and one at the end of each epoch.

    Args:
        global_batch: Examples per step, for the images per second.
        epochs: Epochs of the run.
    """

    def __init__(self, global_batch: int, epochs: int) -> None:
        super().__init__()
        self._batch = global_batch
        self._epochs = epochs
        self._steps = 0
        self._timed_steps = 0
        self._timed_seconds = 0.0
        self._last = 0.0
        self._began = 0.0
        self._total = 0.0

    @property
    def images_per_second(self) -> float:
        """Training speed over all replicas, excluding the run's first step, which compiles."""
        return self._timed_steps * self._batch / max(self._timed_seconds, 1e-9)

    @property
    def seconds(self) -> float:
        """Duration of the training so far, in seconds, including evaluation."""
        return self._total

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Starts the clock."""
        self._began = self._last = time.monotonic()

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Stores the number of the epoch."""
        self._epoch = epoch
        self._previous = -1
        self._mark = time.monotonic()

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Prints a line if the last one is a few seconds old."""
        now = time.monotonic()
        done = batch - self._previous
        if self._steps > 0:
            self._timed_steps += done
            self._timed_seconds += now - self._mark
        self._steps += done
        self._previous, self._mark = batch, now
        if now - self._last >= _EVERY:
            self._last = now
            self._print(batch + 1, logs or {}, now)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Prints the epoch's results."""
        self._total = time.monotonic() - self._began
        text = "  ".join(f"{name} {value:.4f}" for name, value in (logs or {}).items())
        print(f"epoch {epoch + 1}/{self._epochs} done  {text}", flush=True)
        self._last = time.monotonic()

    def _print(self, step: int, logs: dict[str, Any], now: float) -> None:
        per_epoch = self.params.get("steps")
        text = f"epoch {self._epoch + 1}/{self._epochs}  step {step}"
        if per_epoch:
            text += f"/{per_epoch}"
        text += "".join(f"  {name} {value:.4f}" for name, value in logs.items())
        if self._timed_steps:
            text += f"  {self.images_per_second:.1f} images/s"
        if per_epoch and self._timed_steps:
            left = per_epoch * self._epochs - (per_epoch * self._epoch + step)
            text += f"  {_duration(left * self._timed_seconds / self._timed_steps)} left"
        print(text, flush=True)


class TimeLimit(keras.callbacks.Callback):
    """Ends training after the batch, and the epoch, in which its time is over.

    Args:
        seconds: The time, from the start of this process's training.
    """

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds = seconds
        self._end = 0.0

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Starts the clock."""
        self._end = time.monotonic() + self._seconds

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Stops training once the time is over."""
        if time.monotonic() >= self._end and not self.model.stop_training:
            self.model.stop_training = True
            print(f"stopped: {self._seconds:g} s are over (--max-time)", flush=True)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}"

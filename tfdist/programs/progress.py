"""Shows progress: a bar on a terminal, lines elsewhere."""

from __future__ import annotations

import sys
import time
from typing import Any

import keras
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress
from typing_extensions import override

# Seconds between two lines.
_EVERY = 5.0


class Progress(keras.callbacks.Callback):
    """Prints a line every few seconds of training, and one at the end of each epoch.

    On a terminal a bar of the epoch takes the place of the lines in between.

    Args:
        global_batch: Examples per step, for the images per second.
        epochs: Epochs of the run.
        console: Where it is printed; standard output by default.
    """

    def __init__(self, global_batch: int, epochs: int, console: Console | None = None) -> None:
        super().__init__()
        console = console or Console(file=sys.stdout, highlight=False, soft_wrap=True)
        self._bar = _Bar(console) if console.is_terminal else None
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

    @override
    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        self._began = self._last = time.monotonic()

    @override
    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._epoch = epoch
        self._previous = -1
        self._mark = time.monotonic()
        if self._bar is not None:
            self._bar.begin(f"epoch {epoch + 1}/{self._epochs}", self.params.get("steps"))

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Prints a line if the last one is a few seconds old."""
        now = time.monotonic()
        done = batch - self._previous
        if self._steps > 0:
            self._timed_steps += done
            self._timed_seconds += now - self._mark
        self._steps += done
        self._previous, self._mark = batch, now
        if self._bar is not None:
            self._bar.show(batch + 1, f"{_metrics(logs)}{self._speed()}")
        elif now - self._last >= _EVERY:
            self._last = now
            self._print(batch + 1, logs or {}, now)

    def close(self) -> None:
        """Leaves the terminal as it was, also where an epoch was not finished."""
        if self._bar is not None:
            self._bar.end()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Prints the epoch's results."""
        self._total = time.monotonic() - self._began
        if self._bar is not None:
            self._bar.end()
        print(f"epoch {epoch + 1}/{self._epochs} done{_metrics(logs)}", flush=True)
        self._last = time.monotonic()

    def _print(self, step: int, logs: dict[str, Any], now: float) -> None:
        per_epoch = self.params.get("steps")
        text = f"epoch {self._epoch + 1}/{self._epochs}  step {step}"
        if per_epoch:
            text += f"/{per_epoch}"
        text += f"{_metrics(logs)}{self._speed()}"
        if per_epoch and self._timed_steps:
            left = per_epoch * self._epochs - (per_epoch * self._epoch + step)
            text += f"  {_duration(left * self._timed_seconds / self._timed_steps)} left"
        print(text, flush=True)

    def _speed(self) -> str:
        return f"  {self.images_per_second:.1f} images/s" if self._timed_steps else ""


class _Bar:
    """The bar of an epoch, gone when that ends.

    Args:
        console: The terminal.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._shown: RichProgress | None = None

    def begin(self, title: str, steps: int | None) -> None:
        """Shows it, at its start."""
        self.end()
        self._shown = RichProgress(
            TextColumn(title),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.description}"),
            console=self._console,
            transient=True,
        )
        self._task = self._shown.add_task("", total=steps)
        self._shown.start()

    def show(self, step: int, text: str) -> None:
        """Moves it on; it is drawn ten times a second."""
        if self._shown is not None:
            self._shown.update(self._task, completed=step, description=text)

    def end(self) -> None:
        """Removes it."""
        if self._shown is not None:
            self._shown.stop()
            self._shown = None


def _metrics(logs: dict[str, Any] | None) -> str:
    return "".join(f"  {name} {value:.4f}" for name, value in (logs or {}).items())


class TimeLimit(keras.callbacks.Callback):
    """Ends training after the batch, and the epoch, in which its time is over.

    Args:
        seconds: The time, from the start of this process's training.
    """

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds = seconds
        self._end = 0.0

    @override
    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        self._end = time.monotonic() + self._seconds

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Stops training once the time is over."""
        if time.monotonic() >= self._end and not self.model.stop_training:
            self.model.stop_training = True
            print(f"stopped: {self._seconds:g} s are over (--max-time)", flush=True)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}"

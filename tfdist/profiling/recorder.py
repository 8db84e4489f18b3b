"""Records TensorFlow's profile of some training steps, a folder a task."""

from __future__ import annotations

import pathlib
from typing import Any

import keras
import tensorflow as tf

from tfdist.profiling.trace import STEP, folder_of


class Recorder(keras.callbacks.Callback):
    """Records steps `first` to `last` of a `fit`, counted from 1 over all its epochs.

    See https://www.tensorflow.org/guide/profiler.

    Args:
        first: The first step.
        last: The last one.
        folder: The folder that has a folder for each task.
        task: This task, such as `worker/0`.
    """

    def __init__(self, first: int, last: int, folder: pathlib.Path, task: str) -> None:
        super().__init__()
        self._first, self._last = first, last
        self._folder = folder_of(folder, task)
        self._steps = 0
        self._span: Any = None
        self._is_on = False

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Begins to record if the step is the first one."""
        number = self._steps + 1
        if number == self._first:
            self._folder.mkdir(parents=True, exist_ok=True)
            tf.profiler.experimental.start(str(self._folder))
            self._is_on = True
        if self._is_on:
            self._span = tf.profiler.experimental.Trace(STEP, step_num=number, _r=1)
            self._span.__enter__()

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Ends the recording if the step is the last one."""
        self._steps += 1
        if self._span is not None:
            self._span.__exit__(None, None, None)
            self._span = None
        if self._steps == self._last:
            self._stop()

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Ends the recording if the `fit` ends first."""
        self._stop()

    def _stop(self) -> None:
        if self._is_on:
            self._is_on = False
            tf.profiler.experimental.stop()

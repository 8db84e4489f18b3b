"""Saves a training run to a directory, and restores a run from there."""

from __future__ import annotations

import dataclasses
import json
import re
import time
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist import __version__
from tfdist.collectives.process_group import ProcessGroup
from tfdist.errors import CheckpointError, ConfigError, TfdistError
from tfdist.runtime.log import LOGGER
from tfdist.strategy.kinds import public_name
from tfdist.training.checkpoint import callback_state
from tfdist.training.checkpoint.directory import CheckpointDirectory
from tfdist.training.checkpoint.file import LazyArray, Reader
from tfdist.training.checkpoint.saved import Position, Saved
from tfdist.training.loops.base import EpochProgress, Loop
from tfdist.training.model.inspection import all_optimizers, inner_optimizer

# Keras numbers the names of objects: dense, dense_1. How many this process created before does not
# describe the model.
_NUMBERED = re.compile(r"_\d+(?=_|/|$)")


class Checkpoints:
    """The checkpoints of one model's training.

    Between two steps all workers hold the same weights, so the chief saves alone.

    Args:
        model: The model.
        group: The processes that train the model.
        directory: The directory, which only the chief reads and writes.
        steps: The number of batches between checkpoints; None for the end of every epoch.
        seconds: The number of seconds after which to save as well.
        keep: The number of checkpoints to keep.
    """

    def __init__(
        self,
        model: keras.Model,
        group: ProcessGroup,
        directory: str,
        *,
        steps: int | None,
        seconds: float | None,
        keep: int,
    ) -> None:
        self._model = model
        self._group = group
        self._directory = CheckpointDirectory(directory, keep)
        self._steps = steps
        self._seconds = seconds
        self._last_total = 0
        self._last_time = time.monotonic()
        self._found: Saved | None = None
        self._reader: Reader | None = None
        self._looked = False

    def find(self, fit: int) -> Saved | None:
        """Returns the checkpoint that call number `fit` of `fit` resumes from, if there is one.

        All workers must call it at the same point.

        Raises:
            ConfigError: The directory cannot be used, or another job uses it, or it holds damaged
                checkpoints only.
        """
        if not self._looked:
            self._found = self._look()
            self._looked = True
        else:
            self._from_chief(self._lock)
        if self._found is None or self._found.position.fit < fit:
            return None
        return self._found

    def _look(self) -> Saved | None:
        """Reads the chief's checkpoint on every worker; the chief's errors are raised on all."""
        message = self._from_chief(self._read)
        if not message:
            return None
        name, manifest, arrays = json.loads(message)
        return Saved(name, manifest, arrays, self._group, self._reader)

    def _from_chief(self, of_chief: Callable[[], bytes]) -> bytes:
        """Returns on every worker what a function returns on the chief, or raises its error."""
        message = b""
        if self._group.is_chief:
            try:
                message = b"=" + of_chief()
            except ConfigError as error:
                message = b"!" + str(error).encode()
        message = self._group.broadcast(message)
        if message.startswith(b"!"):
            raise ConfigError(message[1:].decode())
        return message[1:]

    def _lock(self) -> bytes:
        self._directory.prepare()
        return b""

    def _read(self) -> bytes:
        self._directory.prepare()
        newest = self._directory.newest()
        if newest is None:
            return b""
        path, self._reader = newest
        arrays = []
        for name in self._reader.names:
            dtype, shape = self._reader.describe(name)
            arrays.append((name, dtype.name, shape))
        return json.dumps((str(path), self._reader.manifest, arrays)).encode()

    def release(self) -> None:
        """Releases the directory's lock, until `find` is called again."""
        self._directory.release()

    def restore(self, saved: Saved, loop: Loop, global_batch: int) -> None:
        """Assigns the saved values to the model and its optimizers.

        With another global batch the optimizers' step counters are converted to the same number
        of examples, because learning-rate schedules depend on them.

        Args:
            saved: The checkpoint that `find` returned.
            loop: The loop that trains the model, which has been built.
            global_batch: Rows of a batch from here on.

        Raises:
            ConfigError: It is the checkpoint of another model or another optimizer.
        """
        manifest = saved.manifest
        for kind, variables in _kinds(self._model).items():
            self._compare(saved, kind, manifest[kind], variables)
            for index, variable in enumerate(variables):
                variable.value.assign(_tensor(saved.read(f"{kind}/{index}")))
        for optimizer in all_optimizers(self._model):
            counter = inner_optimizer(optimizer).iterations
            counter.assign(saved.position.after(int(counter.numpy()), global_batch))
        totals = None
        if manifest["metrics"] == _describe(self._model.metrics_variables):
            totals = [_tensor(saved.read(f"metrics/{i}")) for i in range(len(manifest["metrics"]))]
        own = loop.update.variables
        # Of a checkpoint written with other settings there may be none, or others.
        if manifest.get("update", []) == _shapes(own):
            for index, variable in enumerate(own):
                variable.assign(_tensor(saved.read(f"update/{index}")))
        loop.resume(totals, manifest["logs"])
        self._last_total = saved.position.total

    def _compare(
        self, saved: Saved, kind: str, there: list[list[Any]], variables: list[keras.Variable]
    ) -> None:
        here = _describe(variables)
        if here == there:
            return
        pairs = zip(there, here, strict=False)
        different = next(((a, b) for a, b in pairs if a != b), None)
        if different is None:
            detail = f"{len(there)} variables there, {len(here)} here"
        else:
            detail = " here, ".join(
                f"{path} {tuple(shape)} {dtype}" for path, shape, dtype in reversed(different)
            )
            detail = f"{detail} there"
        raise ConfigError(
            f"checkpoint_dir: {saved.name} is of another job: its {kind} differs ({detail}); give "
            "this job its own directory, or put the model and optimizer back as they were"
        )

    def announce(self, saved: Saved, global_batch: int, epochs: int) -> None:
        """Logs on the chief which checkpoint is resumed, and what has changed since then."""
        if self._group.is_chief:
            LOGGER.info(self._describe(saved, global_batch, epochs))

    def _describe(self, saved: Saved, global_batch: int, epochs: int) -> str:
        position, cluster = saved.position, saved.manifest["cluster"]
        if position.epoch >= epochs:
            return (
                f"{position.epoch} of {epochs} epochs are done in {self._directory.path}; raise "
                "epochs to train on, or remove it to start over"
            )
        if position.finished:
            return (
                f"training was stopped after {position.epoch} of {epochs} epochs, saved in "
                f"{self._directory.path}; remove it to start over"
            )
        line = f"resuming from {saved.name}: epoch {position.epoch + 1}, step {position.step}"
        now = self._cluster(global_batch)
        changes = []
        if cluster["replicas"] != now["replicas"]:
            changes.append(f"replicas {cluster['replicas']} to {now['replicas']}")
        if cluster["strategy"] != now["strategy"]:
            changes.append(f"{cluster['strategy']} to {now['strategy']}")
        if position.global_batch != global_batch:
            changes.append(
                f"global batch {position.global_batch} to {global_batch} (the rate is as compiled "
                "now, and its schedule continues at the step of the same example)"
            )
        elif changes and cluster["replicas"] != now["replicas"]:
            changes.append(
                f"global batch {global_batch} as before, "
                f"{global_batch / cluster['replicas']:g} to {global_batch / now['replicas']:g} "
                "a replica"
            )
        return f"{line}; now {', '.join(changes)}" if changes else line

    def has_as_many_workers(self, saved: Saved) -> bool:
        """Returns whether as many workers train as when the checkpoint was written."""
        return bool(saved.manifest["cluster"]["workers"] == self._group.layout.workers)

    def until_due(self, total: int) -> int | None:
        """Returns the number of batches until the next checkpoint; None if not saved by steps."""
        return None if self._steps is None else self._steps - total % self._steps

    def is_due(self, total: int) -> bool:
        """Returns whether the chief is to save after `total` batches, by steps or by time."""
        if self.is_due_by_steps(total):
            return True
        return self._seconds is not None and time.monotonic() - self._last_time >= self._seconds

    def is_due_by_steps(self, total: int) -> bool:
        """Returns whether a checkpoint is due by steps, on which all workers agree."""
        return self._steps is not None and total // self._steps > self._last_total // self._steps

    @property
    def by_epoch(self) -> bool:
        """Returns whether the end of every epoch is saved."""
        return self._steps is None and self._seconds is None

    def save(
        self,
        position: Position,
        progress: EpochProgress,
        callbacks: list[keras.callbacks.Callback],
    ) -> None:
        """Writes the values, on the chief only; they need not be on the disk when it returns.

        Args:
            position: The position of training.
            progress: The loop's progress in the epoch.
            callbacks: The callbacks, some of which have state.

        Raises:
            CheckpointError: The checkpoint before this one could not be written.
        """
        self._last_total, self._last_time = position.total, time.monotonic()
        if not self._group.is_chief:
            return
        arrays: dict[str, np.ndarray | LazyArray] = {}
        remembered, of_callbacks = callback_state.collect(callbacks)
        arrays.update(of_callbacks)
        kinds = _kinds(self._model)
        manifest = {
            "tfdist": __version__,
            "position": dataclasses.asdict(position),
            "cluster": self._cluster(position.global_batch),
            "saved": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            **{kind: _describe(variables) for kind, variables in kinds.items()},
            "metrics": _describe(self._model.metrics_variables),
            "update": [list(array.shape) for array in progress.update],
            "logs": progress.logs,
            "callbacks": remembered,
        }
        for kind, variables in kinds.items():
            for index, variable in enumerate(variables):
                arrays[f"{kind}/{index}"] = _lazy(variable)
        for index, array in enumerate(progress.update):
            arrays[f"update/{index}"] = array
        for index, total in enumerate(progress.totals):
            arrays[f"metrics/{index}"] = total
        self._directory.add(position.total, manifest, arrays)

    def check(self) -> None:
        """Raises the error of a checkpoint in the background, if any, without waiting.

        Raises:
            CheckpointError: A checkpoint could not be written.
        """
        self._directory.check()

    def wait(self) -> None:
        """Waits until the chief's checkpoint is on the disk, on the chief.

        Raises:
            CheckpointError: It could not be written.
        """
        self._directory.wait()

    def wait_together(self) -> None:
        """Makes all workers wait until the chief's checkpoint is on the disk.

        Raises:
            CheckpointError: It could not be written.
        """
        try:
            self._directory.wait()
        except TfdistError:
            self._group.exchange(1)
            raise
        if self._group.exchange(0)[0]:
            raise CheckpointError(
                "checkpoint_dir: the chief could not write its checkpoint; its output says why"
            )

    def _cluster(self, global_batch: int) -> dict[str, Any]:
        layout = self._group.layout
        return {
            "strategy": public_name(self._model.distribute_strategy),
            "replicas": layout.replicas,
            "workers": layout.workers,
            "global_batch": global_batch,
        }


def _kinds(model: keras.Model) -> dict[str, list[keras.Variable]]:
    """Returns the saved variables by kind; the optimizer's include loss scale and averages."""
    return {
        "model": list(model.variables),
        "optimizer": [v for optimizer in all_optimizers(model) for v in optimizer.variables],
    }


def _describe(variables: list[keras.Variable]) -> list[list[Any]]:
    """Returns the variables' names, shapes and types, as JSON would restore them."""
    return [
        [_NUMBERED.sub("", str(v.path)), [int(d) for d in v.shape], str(v.dtype)] for v in variables
    ]


def _shapes(variables: list[tf.Variable]) -> list[list[int]]:
    return [[int(d) for d in v.shape] for v in variables]


def _lazy(variable: keras.Variable) -> LazyArray:
    """Returns a variable's value, to be fetched from its first local copy when it is written.

    Reading all copies might be a collective.
    """

    def fetch() -> np.ndarray:
        local = getattr(variable.value, "values", None)
        return np.asarray(tf.convert_to_tensor(local[0] if local else variable.value))

    dtype = tf.as_dtype(variable.dtype).as_numpy_dtype
    return LazyArray(np.dtype(dtype), tuple(int(d) for d in variable.shape), fetch)


def _tensor(array: np.ndarray) -> tf.Tensor:
    return tf.constant(array)

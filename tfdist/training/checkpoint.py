"""Saving a training run to a directory, and taking a run up from there."""

from __future__ import annotations

import dataclasses
import re
import sys
import time
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist.errors import CheckpointError, ConfigError, TfdistError
from tfdist.training import callback_state, checkpoint_file
from tfdist.training.build import inner_optimizer
from tfdist.training.checkpoint_dir import CheckpointDirectory
from tfdist.training.checkpoint_file import Content
from tfdist.training.place import Place
from tfdist.training.updates_within import all_optimizers

# What TensorFlow calls its classes inside.
_PUBLIC_NAMES = {
    "CollectiveAllReduceStrategy": "MultiWorkerMirroredStrategy",
    "ParameterServerStrategyV2": "ParameterServerStrategy",
}
# Keras numbers the names of what is made: dense, dense_1. How many were made before, in this
# process, says nothing about the model.
_NUMBERED = re.compile(r"_\d+(?=_|/|$)")


@dataclass(frozen=True)
class Position:
    """How far training has come.

    Attributes:
        fit: Which call of `fit`, from 0.
        first_epoch: The epoch that call began with.
        epoch: The epoch it is in.
        step: Batches of this epoch that were trained on.
        total: Batches that were trained on altogether, in earlier calls too.
        seed: What the order of arrays depends on, with the epoch.
        global_batch: Rows of a batch over all workers.
        finished: Whether this call of `fit` has nothing left to do, though epochs may be left.
    """

    fit: int = 0
    first_epoch: int = 0
    epoch: int = 0
    step: int = 0
    total: int = 0
    seed: int = 0
    global_batch: int = 0
    finished: bool = False

    def after(self, steps: int, global_batch: int) -> int:
        """How many steps of another global batch have seen the examples of so many of this."""
        if self.global_batch in (0, global_batch):
            return steps
        return steps * self.global_batch // global_batch


@dataclass(frozen=True)
class Saved:
    """A checkpoint that was found, the same on every worker."""

    name: str
    content: Content

    @property
    def position(self) -> Position:
        """Where the run was."""
        return Position(**self.content.manifest["position"])


class Checkpoints:
    """The checkpoints of one model's training.

    Between two steps all workers hold the same weights, so the chief saves alone.

    Args:
        model: The model.
        place: This process's place in the strategy.
        directory: Where the chief reads and writes.
        steps: Every how many batches to save; None for the end of every epoch.
        seconds: Save too when this many have passed since the last time.
        keep: How many checkpoints are kept.
    """

    def __init__(
        self,
        model: keras.Model,
        place: Place,
        directory: str,
        *,
        steps: int | None,
        seconds: float | None,
        keep: int,
    ) -> None:
        self._model = model
        self._place = place
        self._directory = CheckpointDirectory(directory, keep)
        self._steps = steps
        self._seconds = seconds
        self._last_total = 0
        self._last_time = time.monotonic()
        self._found: Saved | None = None
        self._looked = False

    def find(self, fit: int) -> Saved | None:
        """The checkpoint that call number `fit` of `fit` is to go on from, if there is one.

        All workers must call it at the same point.

        Raises:
            ConfigError: The directory cannot be used, or holds no intact checkpoint but
                damaged ones.
        """
        if not self._looked:
            self._found = self._look()
            self._looked = True
        if self._found is None or self._found.position.fit < fit:
            return None
        return self._found

    def _look(self) -> Saved | None:
        """Reads what the chief finds; its errors, too, become everybody's."""
        message = b""
        if self._place.is_chief:
            try:
                self._directory.prepare()
                newest = self._directory.newest()
                if newest is not None:
                    path, data = newest
                    message = b"=" + str(path).encode() + b"\n" + data
            except ConfigError as error:
                message = b"!" + str(error).encode()
        message = self._place.broadcast(message)
        if message.startswith(b"!"):
            raise ConfigError(message[1:].decode())
        if not message:
            return None
        name, _, data = message[1:].partition(b"\n")
        return Saved(name.decode(), checkpoint_file.decode(data))

    def restore(self, saved: Saved, loop: Any, global_batch: int) -> None:
        """Gives the model and its optimizers the saved values.

        With another global batch the optimizers' counts of steps are changed to what they would
        be after as many examples, as learning-rate schedules go by them.

        Args:
            saved: What `find` returned.
            loop: The loop that trains the model, which has been built.
            global_batch: Rows of a batch from here on.

        Raises:
            ConfigError: It is the checkpoint of another model or another optimizer.
        """
        manifest, arrays = saved.content.manifest, saved.content.arrays
        for kind, variables in _kinds(self._model).items():
            self._compare(saved, kind, manifest[kind], variables)
            for index, variable in enumerate(variables):
                variable.value.assign(_tensor(arrays[f"{kind}/{index}"]))
        for optimizer in all_optimizers(self._model):
            counter = inner_optimizer(optimizer).iterations
            counter.assign(saved.position.after(int(counter.numpy()), global_batch))
        totals = None
        if manifest["metrics"] == _describe(self._model.metrics_variables):
            totals = [_tensor(arrays[f"metrics/{i}"]) for i in range(len(manifest["metrics"]))]
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
            "this job a directory of its own, or put the model and optimizer back as they were"
        )

    def describe(self, saved: Saved, global_batch: int) -> str:
        """A line that says what is resumed, and what is not as it was."""
        position, cluster = saved.position, saved.content.manifest["cluster"]
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
                "now, and its schedule goes on at the step of the same example)"
            )
        elif changes and cluster["replicas"] != now["replicas"]:
            changes.append(
                f"global batch {global_batch} as before, "
                f"{global_batch / cluster['replicas']:g} to {global_batch / now['replicas']:g} "
                "a replica"
            )
        return f"{line}; now {', '.join(changes)}" if changes else line

    def until_due(self, total: int) -> int | None:
        """How many batches there are until the next checkpoint; None where steps do not count."""
        return None if self._steps is None else self._steps - total % self._steps

    def is_due(self, total: int) -> bool:
        """Whether the chief is to save after `total` batches, by steps or by time."""
        if self._steps is not None and total // self._steps > self._last_total // self._steps:
            return True
        return self._seconds is not None and time.monotonic() - self._last_time >= self._seconds

    @property
    def by_epoch(self) -> bool:
        """Whether the end of every epoch is saved."""
        return self._steps is None and self._seconds is None

    def save(
        self,
        position: Position,
        progress: tuple[list[np.ndarray], dict[str, float]],
        callbacks: list[keras.callbacks.Callback],
    ) -> None:
        """Copies the values and begins to write them; does nothing but on the chief.

        Args:
            position: Where training is.
            progress: The loop's metric totals and logs so far in the epoch.
            callbacks: The callbacks, some of which remember things.

        Raises:
            CheckpointError: The checkpoint before this one could not be written.
        """
        self._last_total, self._last_time = position.total, time.monotonic()
        if not self._place.is_chief:
            return
        totals, logs = progress
        remembered, arrays = callback_state.collect(callbacks)
        kinds = _kinds(self._model)
        manifest = {
            "position": dataclasses.asdict(position),
            "cluster": self._cluster(position.global_batch),
            "saved": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            **{kind: _describe(variables) for kind, variables in kinds.items()},
            "metrics": _describe(self._model.metrics_variables),
            "logs": logs,
            "callbacks": remembered,
        }
        for kind, variables in kinds.items():
            for index, variable in enumerate(variables):
                arrays[f"{kind}/{index}"] = _host(variable)
        for index, total in enumerate(totals):
            arrays[f"metrics/{index}"] = total
        self._directory.add(position.total, manifest, arrays)

    def check(self) -> None:
        """Raises what went wrong in the background, without waiting.

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
            self._place.exchange(1)
            raise
        if self._place.exchange(0)[0]:
            raise CheckpointError(
                "checkpoint_dir: the chief could not write its checkpoint; its output says why"
            )

    def _cluster(self, global_batch: int) -> dict[str, Any]:
        share = self._place.share
        strategy = type(self._model.distribute_strategy).__name__
        return {
            "strategy": _PUBLIC_NAMES.get(strategy, strategy),
            "replicas": share.replicas,
            "workers": share.workers,
            "global_batch": global_batch,
        }


def announce(text: str) -> None:
    """Tells the user a line, on stderr."""
    print(f"tfdist: {text}", file=sys.stderr, flush=True)


def _kinds(model: keras.Model) -> dict[str, list[keras.Variable]]:
    """What is saved, by kind; the optimizer's variables hold the loss scale and averages too."""
    return {
        "model": list(model.variables),
        "optimizer": [v for optimizer in all_optimizers(model) for v in optimizer.variables],
    }


def _describe(variables: list[keras.Variable]) -> list[list[Any]]:
    """The variables' names, shapes and types, as JSON would give them back."""
    return [
        [_NUMBERED.sub("", str(v.path)), [int(d) for d in v.shape], str(v.dtype)] for v in variables
    ]


def _host(variable: keras.Variable) -> np.ndarray:
    """A copy of this process's first copy of a variable: a look at all might be a collective."""
    local = getattr(variable.value, "values", None)
    tensor = tf.convert_to_tensor(local[0] if local else variable.value)
    return np.array(tensor.numpy())


def _tensor(array: np.ndarray) -> tf.Tensor:
    return tf.constant(array)

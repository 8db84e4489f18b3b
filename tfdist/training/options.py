"""Checks the arguments of a `Trainer`, and chooses how many steps a call of TensorFlow makes.

A call, its callbacks and its heartbeat cost the host a fraction of a millisecond, and so does
reading the metrics: together as much as a small model's step.
"""

from __future__ import annotations

import os
import pathlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import keras

from tfdist.collectives.process_group import ProcessGroup
from tfdist.collectives.transport_names import TRANSPORTS, WIRE_TYPES
from tfdist.errors import ConfigError
from tfdist.keras_internals import is_default_hook
from tfdist.profiling.recorder import Recorder
from tfdist.training.checkpoint.manager import Checkpoints
from tfdist.training.loops.select import LoopOptions
from tfdist.training.model.support import check_accumulation, check_local_steps
from tfdist.training.rehearsal.warn import CHECKS
from tfdist.training.update.local import LocalSteps
from tfdist.validation import number, one_of, quote, reject, whole_number

_AUTO = "auto"
# With "auto", a call takes about this long: progress, SIGTERM and checkpoints wait for its end.
_CALL_SECONDS = 0.05
_MOST_STEPS = 64
# The first call traces and compiles, and the next ones still fill the input's buffers.
_NOT_TIMED = 2


@dataclass(frozen=True, kw_only=True)
class TrainerOptions:
    """The arguments of `Trainer`, which documents them and has their defaults.

    Raises:
        ConfigError: One is out of range.
    """

    checkpoint_dir: str | os.PathLike[str] | None
    checkpoint_steps: int | None
    checkpoint_seconds: float | None
    keep_checkpoints: int
    accumulate_steps: int
    steps_per_call: int | str
    wire_dtype: str
    bytes_per_pack: int | str
    transport: str
    compile_update: bool | str
    local_steps: int
    outer_learning_rate: float
    outer_momentum: float
    check: str
    profile: tuple[int, int] | None
    profile_dir: str | os.PathLike[str]

    def __post_init__(self) -> None:
        if self.checkpoint_steps is not None:
            whole_number("Trainer(checkpoint_steps)", self.checkpoint_steps)
        if self.checkpoint_seconds is not None:
            number("Trainer(checkpoint_seconds)", self.checkpoint_seconds, above=0)
        how_often = (self.checkpoint_steps, self.checkpoint_seconds)
        if self.checkpoint_dir is None and how_often != (None, None):
            raise ConfigError(
                "Trainer(checkpoint_dir): none is given, but checkpoint_steps or "
                "checkpoint_seconds is; give both"
            )
        whole_number("Trainer(keep_checkpoints)", self.keep_checkpoints)
        whole_number("Trainer(accumulate_steps)", self.accumulate_steps)
        if self.steps_per_call != _AUTO:
            whole_number("Trainer(steps_per_call)", self.steps_per_call)
        if self.bytes_per_pack != _AUTO:
            whole_number("Trainer(bytes_per_pack)", self.bytes_per_pack)
        one_of("Trainer(wire_dtype)", self.wire_dtype, WIRE_TYPES)
        one_of("Trainer(transport)", self.transport, TRANSPORTS)
        one_of("Trainer(check)", self.check, CHECKS)
        whole_number("Trainer(local_steps)", self.local_steps)
        number("Trainer(outer_learning_rate)", self.outer_learning_rate, above=0)
        if not 0 <= self.outer_momentum < 1:
            reject(
                "Trainer(outer_momentum)",
                f"{quote(self.outer_momentum)} is given; allowed: 0 or more, less than 1",
            )
        self._check_local()
        self._check_profile()
        if not isinstance(self.compile_update, bool) and self.compile_update != _AUTO:
            given = quote(self.compile_update)
            reject("Trainer(compile_update)", f"{given} is given; allowed: True, False, auto")

    def _check_local(self) -> None:
        local = LocalSteps(self.local_steps, self.outer_learning_rate, self.outer_momentum)
        if self.local_steps == 1:
            if not local.averages_only:
                raise ConfigError(
                    "Trainer(local_steps): 1 is given, with an outer_learning_rate or "
                    "outer_momentum, which are for averages; give local_steps of 2 or more"
                )
            return
        if self.accumulate_steps > 1:
            raise ConfigError(
                f"Trainer(local_steps): {self.local_steps} is given, with accumulate_steps="
                f"{self.accumulate_steps}; give one of them"
            )
        if self.wire_dtype not in (_AUTO, "float32"):
            raise ConfigError(
                f"Trainer(local_steps): {self.local_steps} is given, with wire_dtype="
                f"{quote(self.wire_dtype)}, but weights are averaged exactly; leave wire_dtype out"
            )

    def _check_profile(self) -> None:
        if self.profile is None:
            return
        try:
            first, last = self.profile
        except (TypeError, ValueError):
            reject(
                "Trainer(profile)",
                f"{quote(self.profile)} is given; allowed: the first and the last step, or None",
            )
        least = whole_number("Trainer(profile)", first)
        whole_number("Trainer(profile)", last, least=least)

    def recorders(self, task: str) -> list[keras.callbacks.Callback]:
        """Returns the callbacks that record a profile, if one is asked for.

        Args:
            task: This task, such as `worker/0`.
        """
        if self.profile is None:
            return []
        return [Recorder(*self.profile, pathlib.Path(self.profile_dir), task)]

    def check_for(self, model: keras.Model) -> None:
        """Checks that they can be used with a model and its strategy.

        Raises:
            ConfigError: One cannot.
        """
        check_accumulation(model, self.accumulate_steps)
        check_local_steps(model, self.local_steps)

    def for_loops(self, fed_path: str) -> LoopOptions:
        """Returns the options for steps.

        Args:
            fed_path: A file to write whenever a step has received its input; "" for none.
        """
        return LoopOptions(
            accumulate_steps=self.accumulate_steps,
            local=LocalSteps(self.local_steps, self.outer_learning_rate, self.outer_momentum),
            wire_dtype=self.wire_dtype,
            bytes_per_pack=0 if self.bytes_per_pack == _AUTO else int(self.bytes_per_pack),
            transport=self.transport,
            compile_update=self.compile_update,
            fed_path=fed_path,
            check=self.check,
        )

    def fixed_steps_per_call(self, compiled: int) -> int:
        """Returns the steps per call of which an epoch has a whole number, as in Keras.

        Args:
            compiled: The `steps_per_execution` that the model was compiled with.
        """
        return compiled if self.steps_per_call == _AUTO else 1

    def max_steps_per_call(self, compiled: int) -> int:
        """Returns the largest number of steps in one call of TensorFlow.

        Args:
            compiled: The `steps_per_execution` that the model was compiled with.
        """
        return compiled if self.steps_per_call == _AUTO else int(self.steps_per_call)

    def step_limit(
        self,
        model: keras.Model,
        callbacks: Sequence[keras.callbacks.Callback],
        exchange: Callable[[int], list[int]],
        *,
        alone: bool,
    ) -> StepLimit:
        """Returns how many steps a call of TensorFlow may make in a `fit`; all workers call it.

        Args:
            model: The model.
            callbacks: This worker's callbacks.
            exchange: Gives every worker's value of a number.
            alone: Whether one device trains, where several steps in a call are Keras' own and
                compiled once more.
        """
        compiled, auto = model.steps_per_execution, None
        if self.steps_per_call == _AUTO and compiled == 1 and not (alone or model.run_eagerly):
            needed = exchange(int(need_each_batch(callbacks)))
            auto = None if any(needed) else AutoStepsPerCall(exchange)
        return StepLimit(self.max_steps_per_call(compiled), read_batches(callbacks), auto)

    def checkpoints(self, model: keras.Model, group: ProcessGroup) -> Checkpoints | None:
        """Returns the checkpoints of a model's training; None if it is not saved.

        Args:
            model: The model.
            group: The processes that train it.
        """
        if self.checkpoint_dir is None:
            return None
        return Checkpoints(
            model,
            group,
            os.fspath(self.checkpoint_dir),
            steps=self.checkpoint_steps,
            seconds=self.checkpoint_seconds,
            keep=self.keep_checkpoints,
        )


class AutoStepsPerCall:
    """Chooses as many steps per call as take a short time, the same number on every worker.

    Args:
        exchange: Gives every worker's value of a number; all workers call it after the same call.
    """

    def __init__(self, exchange: Callable[[int], list[int]]) -> None:
        self._exchange = exchange
        self._most = 1
        self._calls = self._steps = 0
        self._seconds = 0.0
        self._due = _NOT_TIMED + 2

    def after(self, steps: int, seconds: float) -> int:
        """Returns the most steps of the next call, after one of some steps that took some time."""
        self._calls += 1
        if self._calls > _NOT_TIMED:
            self._steps += steps
            self._seconds += seconds
        if self._calls == self._due:
            slowest = max(self._exchange(round(1e9 * self._seconds / self._steps)))
            self._most = max(1, min(round(1e9 * _CALL_SECONDS / max(slowest, 1)), _MOST_STEPS))
            self._due *= 4
            self._steps, self._seconds = 0, 0.0
        return self._most


@dataclass
class StepLimit:
    """How many steps the calls of TensorFlow in a `fit` may make.

    Attributes:
        most: The largest number of steps that the next call may make.
        reads_logs: Whether a callback of this worker reads the logs of a call.
        auto: Chooses `most` as calls are made; None to leave it.
    """

    most: int
    reads_logs: bool
    auto: AutoStepsPerCall | None = None

    def at(self, step: int) -> int:
        """Returns the largest number of steps that a call may make, after some steps of an epoch.

        With `auto` an epoch begins with one step: as in Keras, a callback that stops training as
        the epoch begins stops it after the first batch.
        """
        return 1 if self.auto is not None and not step else self.most

    def record(self, steps: int, seconds: float) -> None:
        """Takes note of a call that is done."""
        if self.auto is not None:
            self.most = self.auto.after(steps, seconds)


def read_batches(callbacks: Sequence[keras.callbacks.Callback]) -> bool:
    """Returns whether a callback may look at the batches of training, one by one.

    Args:
        callbacks: Callbacks; that of Keras for progress looks at batches only where it draws a bar.
    """
    return any(
        _has_batch_hooks(callback)
        for callback in callbacks
        if not (isinstance(callback, keras.callbacks.ProgbarLogger) and callback.verbose != 1)
    )


def need_each_batch(callbacks: Sequence[keras.callbacks.Callback]) -> bool:
    """Returns whether a callback needs each batch: all that read them, but for Keras' bar."""
    return any(
        _has_batch_hooks(callback)
        for callback in callbacks
        if not isinstance(callback, keras.callbacks.ProgbarLogger)
    )


def _has_batch_hooks(callback: keras.callbacks.Callback) -> bool:
    if getattr(callback, "reads_no_batches", False):
        return False
    if type(callback) is keras.callbacks.ModelCheckpoint and callback.save_freq == "epoch":
        return False
    names = ("on_train_batch_begin", "on_train_batch_end", "on_batch_begin", "on_batch_end")
    return not all(is_default_hook(getattr(callback, name)) for name in names)

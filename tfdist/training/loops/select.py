"""Selects the loop for a model, and builds it from its parts, once for each kind of data."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfdist.collectives.choose import make_transport
from tfdist.collectives.layout import on_cpus
from tfdist.collectives.process_group import ProcessGroup
from tfdist.collectives.transport import Transport
from tfdist.collectives.worker_flags import WorkerFlags
from tfdist.errors import ConfigError
from tfdist.keras_internals import compiled_parts
from tfdist.strategy.coordinator import coordinator_of
from tfdist.strategy.kinds import kind_of
from tfdist.training.input.feed import Feed, ShardedFeed
from tfdist.training.loops.base import Loop
from tfdist.training.loops.one_device import OneDeviceLoop
from tfdist.training.loops.parameter_server import ParameterServerLoop
from tfdist.training.loops.synchronous import SynchronousLoop
from tfdist.training.model.inspection import compiled_optimizer, has_several_optimizers
from tfdist.training.model.support import check_update_within
from tfdist.training.rehearsal.warn import WARN, Rehearsals
from tfdist.training.step.build import build, lacks_variables
from tfdist.training.step.metrics import MetricTotals, add_up, check_gathering
from tfdist.training.step.probes.late_reads import reads_its_update
from tfdist.training.step.recording import AddedUp, Continued, Gathered, MetricRecording
from tfdist.training.step.reduction import Reduction
from tfdist.training.step.replica import PREDICT, TRAIN
from tfdist.training.step.select import make_step
from tfdist.training.step.slicing import Slicer, as_the_whole, by_batch, by_nominal
from tfdist.training.update.accumulate import AccumulatingUpdate
from tfdist.training.update.apply import OptimizerUpdate, PlainUpdate, Update, UpdateWithinStep
from tfdist.training.update.kernels import AUTO
from tfdist.training.update.local import LocalSteps, LocalUpdate


@dataclasses.dataclass(frozen=True)
class LoopOptions:
    """The user's options for steps.

    Attributes:
        accumulate_steps: Batches a weight update.
        local: How replicas step on their own.
        wire_dtype: One of `WIRE_TYPES`: what gradients travel in.
        bytes_per_pack: How much is sent at once, in bytes; 0 leaves it to the strategy.
        transport: One of `TRANSPORTS`.
        compile_update: Whether XLA compiles the optimizer's update; or "auto".
        fed_path: A file to write whenever a step has got its input; "" for none.
        check: One of `CHECKS`: what is done where slices give other numbers than the batch.
    """

    accumulate_steps: int = 1
    local: LocalSteps = LocalSteps()
    wire_dtype: str = "auto"
    bytes_per_pack: int = 0
    transport: str = "auto"
    compile_update: bool | str = AUTO
    fed_path: str = ""
    check: str = WARN


class Loops:
    """The loops of one model.

    Args:
        model: A compiled model.
        group: The processes that train it.
        flags: Carries the workers' flags.
        options: The options for steps.
    """

    def __init__(
        self, model: keras.Model, group: ProcessGroup, flags: WorkerFlags, options: LoopOptions
    ) -> None:
        self._model = model
        self._strategy = model.distribute_strategy
        self._group = group
        self._flags = flags
        self._options = options
        several = group.layout.local_replicas > 1
        if options.compile_update is True and (
            several or not kind_of(self._strategy).is_synchronous
        ):
            raise ConfigError(
                "Trainer(compile_update): True is given; allowed: one replica a process, under "
                f"a synchronous strategy, not {kind_of(self._strategy).public}; leave it at 'auto'"
            )
        self._made: dict[Any, tuple[Loop, tuple[int, ...]]] = {}
        self._coordinator: Any = None
        self._of_keras: OneDeviceLoop | None = None
        self._made_for: list[Any] = []
        self._rehearsals = Rehearsals(model, group, options.check, options.accumulate_steps)

    @property
    def runs_keras_steps(self) -> bool:
        """Whether one device trains, on which Keras' own steps run as they are."""
        layout = self._group.layout
        return (
            layout.replicas == layout.workers == 1
            and self._options.accumulate_steps == 1
            # One replica alone is its own average.
            and (self._options.local.steps == 1 or self._options.local.averages_only)
            and kind_of(self._strategy).name in ("default", "one_device", "mirrored")
        )

    def loop(self, feed: Feed, doing: str = TRAIN) -> Loop:
        """Returns the loop for this kind of data, with the model built.

        All workers must call it at the same point.

        Args:
            feed: The data.
            doing: `TRAIN`, `TEST` or `PREDICT`.

        Raises:
            ConfigError: With `check` of "error", slices give other numbers than the batch.
        """
        training = doing != PREDICT
        if self.runs_keras_steps:
            return self._one_device(feed)
        assert isinstance(feed, ShardedFeed)
        model = self._model
        sample = feed.sample()
        if training or lacks_variables(model):
            build(model, self._strategy, sample)
        nominal = 0
        if not feed.whole:
            nominal = sum(self._group.exchange(feed.rows))
        elif self._options.accumulate_steps > 1:
            nominal = feed.rows
        key = (
            feed.whole,
            nominal,
            id(compiled_optimizer(model)) if training else None,
            tuple(id(v) for v in model.metrics_variables),
        )
        trainable = tuple(id(v) for v in model.trainable_variables)
        loop, then = self._made.get(key, (None, ()))
        # As in Keras, a graph that has trained goes on with the weights that it was made for.
        if loop is None or (then != trainable and (model.run_eagerly or not loop.has_trained)):
            within = training and has_several_optimizers(model)
            if training and reads_its_update(model, sample):
                options = self._options
                several = options.accumulate_steps > 1 or options.local.steps > 1
                check_update_within(model, self._strategy, accumulates=several)
                within = True
            if kind_of(self._strategy).is_synchronous:
                loop = self._synchronous(feed.whole, nominal, within)
            else:
                loop = self._parameter_server()
            self._made[key] = loop, trainable
        if isinstance(loop, SynchronousLoop):
            self._rehearsals.before(loop.step, doing, sample)
        loop.take_sample(sample)
        return loop

    def _one_device(self, feed: Feed) -> Loop:
        """Returns one loop, until the model is compiled again."""
        model = self._model
        names = ("optimizer", "run_eagerly", "jit_compile")
        now = [*compiled_parts(model), *(getattr(model, name, None) for name in names)]
        same = all(a is b for a, b in zip(self._made_for, now, strict=False))
        if self._of_keras is None or not same:
            self._of_keras = OneDeviceLoop(
                model,
                self._strategy,
                compile_update=self._options.compile_update is True,
                fed_path=self._options.fed_path,
            )
            self._made_for = now
            if kind_of(self._strategy).name != "default":
                self._of_keras.build_symbolically(feed)
        return self._of_keras

    def _parameter_server(self) -> Loop:
        if self._coordinator is None:
            self._coordinator = coordinator_of(self._strategy)
        return ParameterServerLoop(self._model, self._strategy, self._coordinator)

    def _synchronous(self, whole: bool, nominal: int, updates_within: bool) -> Loop:
        model, strategy, layout = self._model, self._strategy, self._group.layout
        alone = layout.replicas == 1
        transport = self._transport()
        gathers = not alone and not add_up(model)
        if gathers:
            check_gathering(model, strategy)
        weights_add_up = whole and self._options.accumulate_steps == 1
        weighing = by_batch if weights_add_up else by_nominal(nominal)
        if alone and self._options.accumulate_steps == 1:
            weighing, weights_add_up = as_the_whole, True
        step = make_step(
            model,
            transport,
            gathers_metrics=gathers,
            weights_add_up=weights_add_up,
            accumulates=self._options.accumulate_steps > 1,
            updates_within=updates_within,
        )
        totals = MetricTotals(model)
        recording: MetricRecording = AddedUp(totals)
        if alone:
            recording = Continued(totals)
        elif gathers:
            recording = Gathered(totals, step, transport)
        # As in Keras' own loop, the model's code is not rewritten by AutoGraph.
        compiled = compiled_replica = _as_it_is
        if not model.run_eagerly:
            compiled = tf.function(reduce_retracing=True, autograph=False)
        # XLA could not compile the collectives of several replicas.
        if alone and model.jit_compile:
            compiled_replica = tf.function(reduce_retracing=True, autograph=False, jit_compile=True)
        return SynchronousLoop(
            strategy,
            layout,
            transport,
            Slicer(layout, whole=whole, weighing=weighing),
            step,
            Reduction(transport, recording, self._flags, weights_add_up=weights_add_up),
            UpdateWithinStep(step, strategy)
            if updates_within
            else self._update(step, transport, compiled),
            recording,
            totals,
            compiled=compiled,
            compiled_replica=compiled_replica,
            fed_path=self._options.fed_path,
        )

    def _transport(self) -> Transport:
        return make_transport(
            self._strategy,
            self._group,
            self._options.transport,
            wire_type=self._options.wire_dtype,
            bytes_per_pack=self._options.bytes_per_pack,
        )

    def _update(self, step: Any, transport: Transport, compiled: Callable[..., Any]) -> Update:
        model, strategy = self._model, self._strategy
        trainable = step.variables.trainable
        optimize = OptimizerUpdate(
            compiled_optimizer(model), trainable, strategy, compiles=self._compiles_update()
        )
        if self._options.local.steps > 1:
            return LocalUpdate(
                optimize,
                self._options.local,
                compiled_optimizer(model),
                trainable,
                strategy,
                transport,
                compiled,
            )
        if self._options.accumulate_steps == 1:
            return PlainUpdate(optimize)
        return AccumulatingUpdate(
            optimize,
            self._options.accumulate_steps,
            trainable,
            strategy,
            self._group.layout,
            transport,
            compiled,
        )

    def _compiles_update(self) -> bool | str:
        """Returns whether XLA compiles updates: True, False, or "auto" for large models."""
        layout, wanted = self._group.layout, self._options.compile_update
        # XLA compiles for one device. Alone, numbers are those of Keras unless asked for others.
        if layout.local_replicas > 1:
            return False
        if wanted == AUTO and not (layout.workers > 1 and on_cpus(self._strategy)):
            return False
        return wanted


def _as_it_is(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function unchanged, to run eagerly."""
    return function

"""Trains under the strategies whose replicas step together.

A step is one `tf.function`: each replica slices and computes, the sums over replicas are
made, and the results are assigned once, in cross-replica context.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from typing_extensions import override

from tfdist.collectives.layout import ReplicaLayout, own_variable
from tfdist.collectives.transport import Transport
from tfdist.training.input.batch import loosen
from tfdist.training.input.epoch import Epoch
from tfdist.training.input.intake import Intake
from tfdist.training.loops.base import EpochProgress, Loop, only_numbers, plain
from tfdist.training.step.metrics import MetricTotals
from tfdist.training.step.recording import MetricRecording, first_rows
from tfdist.training.step.reduction import Reduced, Reduction
from tfdist.training.step.replica import PREDICT, TEST, TRAIN, ReplicaStep
from tfdist.training.step.slicing import Slicer
from tfdist.training.update.apply import Update

Compile = Callable[[Callable[..., Any]], Callable[..., Any]]


class SynchronousLoop(Loop):
    """Steps of one model under one synchronous strategy.

    Args:
        strategy: The strategy the model was made under.
        layout: The replicas of this process.
        transport: Sums over the replicas.
        slicer: The first part of a step.
        step: The second part.
        reduction: The third part.
        update: The last part.
        recording: Adds metrics to the totals.
        totals: Those totals.
        compiled: Compiles a Python function to a graph function.
        compiled_replica: The same for the computation of one replica.
        fed_path: A file to write whenever a step has received its input; "" for none.

    Attributes:
        step: The second part of a step.
    """

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        layout: ReplicaLayout,
        transport: Transport,
        slicer: Slicer,
        step: ReplicaStep,
        reduction: Reduction,
        update: Update,
        recording: MetricRecording,
        totals: MetricTotals,
        *,
        compiled: Compile,
        compiled_replica: Compile,
        fed_path: str = "",
    ) -> None:
        self.totals = totals
        self.update = update
        self._strategy = strategy
        self._layout = layout
        self._transport = transport
        self._slicer = slicer
        self.reads_all = layout.workers > 1 and slicer.whole
        self.step = step
        self._reduction = reduction
        self._recording = recording
        self._intake = Intake(fed_path)
        self._logs: dict[bool, dict[str, tf.Variable]] = {True: {}, False: {}}
        self._resumed: dict[str, float] = {}
        self._training = True
        self._train_on_replica = compiled_replica(self._train_replica)
        self._test_on_replica = compiled_replica(self._test_replica)
        self._predict_on_replica = compiled_replica(self._predict_replica)
        self._train_one = compiled(lambda e: self._train_element(loosen(e)))
        self._train_many = compiled(self._train_elements)
        self._test_one = compiled(lambda e: self._test_element(loosen(e)))
        self._test_many = compiled(self._test_elements)
        self._predict_one = compiled(lambda e: self._predict_element(loosen(e)))

    @override
    def take_sample(self, data: Any) -> None:
        """Keeps a row of data, to replace an empty slice of a batch of the same kind."""
        self._slicer.take_sample(data)

    @override
    def reset_metrics(self) -> None:
        self.totals.reset()
        self._resumed = {}
        for logs in self._logs.values():
            for variable in logs.values():
                variable.assign(0.0)

    @override
    def train(self, epoch: Epoch, steps: int, *, logs: bool = True) -> dict[str, Any]:
        self.has_trained = self._training = True
        self._run(epoch, steps, self._train_one, self._train_many)
        return self.logs() if logs else {}

    @override
    def test(self, epoch: Epoch, steps: int) -> dict[str, Any]:
        self._training = False
        self._run(epoch, steps, self._test_one, self._test_many)
        return self.logs()

    @override
    def predict(self, epoch: Epoch, steps: int = 1) -> Any:
        return self._predict_one(epoch.pop())

    @override
    def input_seconds(self) -> float:
        return self._intake.seconds()

    @override
    def logs(self) -> dict[str, Any]:
        own = {name: v.numpy() for name, v in self._logs[self._training].items()}
        results = self.totals.results(self.step.reported[self._training])
        return plain({**results, **own, **self._resumed})

    @override
    def progress(self) -> EpochProgress:
        totals = [np.array(variable.numpy()) for variable in self.totals.variables]
        update = [np.array(variable.numpy()) for variable in self.update.variables]
        return EpochProgress(totals, only_numbers(self.logs()), update)

    @override
    def resume(self, totals: list[tf.Tensor] | None, logs: dict[str, float]) -> None:
        self.reset_metrics()
        if totals is not None:
            self.totals.assign(totals)
        self._resumed = dict(logs)

    def _run(
        self, epoch: Epoch, steps: int, one: Callable[..., Any], many: Callable[..., Any]
    ) -> None:
        self._resumed = {}
        if epoch.steps is None:
            for _ in range(steps):
                one(epoch.pop())
        elif self._transport.loops:
            many(epoch.iterator, tf.constant(steps))
        else:
            for _ in range(steps):
                many(epoch.iterator, tf.constant(1))

    # The functions below are traced, in cross-replica context.

    def _train_elements(self, iterator: Any, steps: tf.Tensor) -> None:
        _repeat(steps, lambda: self._train_element(self._intake.take(iterator)))

    def _test_elements(self, iterator: Any, steps: tf.Tensor) -> None:
        _repeat(steps, lambda: self._test_element(self._intake.take(iterator)))

    def _train_element(self, element: Any) -> None:
        with self.step.intercepting():
            reduced = Reduced(*self._strategy.run(self._train_on_replica, args=(element,)))
        self._record(reduced, training=True)
        self._assign(TRAIN, reduced.state)
        self.update.apply(reduced)

    def _test_element(self, element: Any) -> None:
        with self.step.intercepting():
            reduced = Reduced(*self._strategy.run(self._test_on_replica, args=(element,)))
        self._record(reduced, training=False)
        self._assign(TEST, reduced.state)

    def _predict_element(self, element: Any) -> Any:
        with self.step.intercepting():
            outputs, state = self._strategy.run(self._predict_on_replica, args=(element,))
        self._assign(PREDICT, state)
        return tf.nest.map_structure(self._concatenate, outputs)

    def _assign(self, doing: str, state: list[Any]) -> None:
        self.step.assign_changed(doing, [self._first(value) for value in state])

    def _record(self, reduced: Reduced, *, training: bool) -> None:
        self._recording.record([self._first(value) for value in reduced.metrics])
        logs = self._logs[training]
        for name, value in reduced.logs.items():
            if name not in logs:
                with tf.init_scope():
                    logs[name] = own_variable(0.0)
            logs[name].assign(self._first(value))

    def _first(self, value: Any) -> Any:
        """Returns the first replica's value, where all replicas have the same."""
        return self._strategy.experimental_local_results(value)[0]

    def _concatenate(self, value: Any) -> Any:
        results = self._strategy.experimental_local_results(value)
        if self._layout.workers > 1 or len(results) == 1:
            return results[0]  # Gathered over all replicas already.
        return tf.concat(results, axis=0)

    # The functions below are traced in replica context: slice, compute, reduce.

    def _train_replica(self, element: Any) -> Reduced:
        piece = self._slicer(element)
        output = self.step.train(
            piece, loss_scale=self.update.loss_scale(), totals=self._recording.start()
        )
        return self._reduction(output, piece, self.update.take(output.gradients, piece))

    def _test_replica(self, element: Any) -> Reduced:
        piece = self._slicer(element)
        output = self.step.test(piece, totals=self._recording.start())
        return self._reduction(output, piece, [])

    def _predict_replica(self, element: Any) -> Any:
        piece = self._slicer(element)
        outputs, state = self.step.predict(piece)
        outputs = first_rows(outputs, piece.count)
        if self._layout.workers > 1:
            outputs = self._transport.gather(outputs)
        return outputs, self._reduction.predicted_state(state, piece.weight)


def _repeat(times: tf.Tensor, body: Callable[[], None]) -> None:
    """Runs `body` a number of times, in a graph loop if there is a graph."""

    def step(done: tf.Tensor) -> tuple[tf.Tensor]:
        body()
        return (done + 1,)

    tf.while_loop(lambda done: done < times, step, (tf.constant(0),), parallel_iterations=1)

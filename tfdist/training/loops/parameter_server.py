"""Trains under ParameterServerStrategy: workers step on their own, the chief counts.

The chief sends batches to a worker as closures, short ones several at a time, so each batch is used
exactly once, and again only if its worker was lost before it answered. Workers have copies of
arrays (TensorFlow sends a tensor to each once), and the chief sends the numbers of rows. Metrics
and the step counter live in the chief: workers that read, add and write back would lose counts.
"""

from __future__ import annotations

import collections
import time
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from typing_extensions import override

from tfdist.collectives.layout import own_variable
from tfdist.collectives.peer_errors import is_loss, lost_ps
from tfdist.collectives.transport import SingleReplica
from tfdist.strategy.beats import awaiting_workers
from tfdist.training.input.arrays import pick
from tfdist.training.input.batch import loosen, rows_of
from tfdist.training.input.epoch import Epoch
from tfdist.training.loops.base import EpochProgress, Loop, only_numbers, plain
from tfdist.training.loops.grouping import Grouping, stack, unstack
from tfdist.training.model.inspection import compiled_optimizer
from tfdist.training.step.metrics import HostTotals, add_up, check_gathering, pack
from tfdist.training.step.packing import read_packed, send_packed
from tfdist.training.step.replica import PREDICT, TEST, TRAIN, ReplicaOutput
from tfdist.training.step.select import make_step
from tfdist.training.step.slicing import Slice
from tfdist.training.update.apply import OptimizerUpdate, PlainUpdate

# Closures under way for each worker: one that it computes on and one that waits.
_PER_WORKER = 2
_AGAIN_SECONDS = 0.2


class ParameterServerLoop(Loop):
    """Steps of one model under a ParameterServerStrategy.

    Args:
        model: A built and compiled model.
        strategy: The strategy it was made under.
        coordinator: The strategy's coordinator.
    """

    totals: HostTotals

    def __init__(
        self,
        model: keras.Model,
        strategy: tf.distribute.Strategy,
        coordinator: tf.distribute.coordinator.ClusterCoordinator,
    ) -> None:
        self._strategy = strategy
        self._coordinator = coordinator
        self._gathers = not add_up(model)
        if self._gathers:
            check_gathering(model, strategy)
        self._step = make_step(
            model, SingleReplica(), gathers_metrics=self._gathers, read=read_packed
        )
        self._optimize = OptimizerUpdate(
            compiled_optimizer(model), self._step.variables.trainable, strategy
        )
        self.update = PlainUpdate(self._optimize)
        self.totals = HostTotals(model)
        self._logs: dict[bool, dict[str, float]] = {True: {}, False: {}}
        self._resumed: dict[str, float] = {}
        self._training = True
        workers = _count_workers()
        self._most_under_way = _PER_WORKER * workers
        self._under_way: collections.deque[Any] = collections.deque()
        self._any_answered = False
        self._resident: Any = None
        # Where metrics need the outputs of a batch, these come back by themselves.
        self._grouping = Grouping(most=1) if self._gathers else Grouping(workers=workers)
        # A model that is not compiled predicts.
        compiled_with = compiled_optimizer(model)
        self._iterations = self._optimize.iterations if compiled_with else own_variable(0)
        self._count = self._written = int(self._iterations.numpy())
        compiled = tf.function(reduce_retracing=True, autograph=False)
        self._train = compiled(self._train_batch)
        self._train_many = compiled(self._train_batches)
        self._test = compiled(self._test_batch)
        self._predict = compiled(self._predict_batch)

    @override
    def reset_metrics(self) -> None:
        self.settle()
        self._any_answered = False
        self.totals.reset()
        self._resumed = {}
        for logs in self._logs.values():
            logs.clear()
        self._count = self._written = int(self._iterations.numpy())

    @override
    def train(self, epoch: Epoch, steps: int, *, logs: bool = True) -> dict[str, Any]:
        """Hands the next `steps` batches out; returns the logs of those that are done.

        Where nobody reads the logs, some may wait for the next call.
        """
        self.has_trained = self._training = True
        self._resumed = {}
        self._resident = epoch.resident_arrays
        for _ in range(steps):
            data, _ = epoch.pop()
            if not self._grouping.takes(data):
                self._hand_out()
            if self._grouping.add(data):
                self._hand_out()
        if not logs:
            return {}
        self._hand_out()
        self._await_first()
        self._write_count()
        return self.logs()

    @override
    def test(self, epoch: Epoch, steps: int) -> dict[str, Any]:
        """Hands the next `steps` batches out for evaluation."""
        self._training = False
        for _ in range(steps):
            data, _ = epoch.pop()
            self._schedule(1, tf.constant(self._count - 1), self._test, data, epoch.resident_arrays)
        self._await_first()
        return self.logs()

    @override
    def predict(self, epoch: Epoch, steps: int = 1) -> Any:
        """Hands the next batch out for prediction."""
        data, _ = epoch.pop()
        return self._coordinator.schedule(self._predict, args=(data, epoch.resident_arrays))

    @override
    def fetch(self, prediction: Any) -> Any:
        with awaiting_workers():
            return prediction.fetch()

    @override
    def settle(self) -> None:
        self._hand_out()
        self._drain(0)
        self._write_count()
        self._grouping.pause()

    @override
    def progress(self) -> EpochProgress:
        totals = [np.array(variable.numpy()) for variable in self.totals.variables]
        return EpochProgress(totals, only_numbers(self.logs()))

    @override
    def resume(self, totals: list[tf.Tensor] | None, logs: dict[str, float]) -> None:
        self.reset_metrics()
        if totals is not None:
            self.totals.assign(totals)
            self._any_answered = True
        self._resumed = dict(logs)

    @override
    def finish_epoch(self) -> None:
        self.settle()

    @override
    def logs(self) -> dict[str, Any]:
        """Returns the metrics' values over the batches answered for, and the last step's logs."""
        reported = self._step.reported[self._training]
        own = self._logs[self._training]
        return plain({**self.totals.results(reported), **own, **self._resumed})

    def _hand_out(self) -> None:
        """Sends the batches out that wait."""
        batches = self._grouping.take()
        if not batches:
            return
        step = tf.constant(self._count, self._iterations.dtype)
        self._count += len(batches)
        if len(batches) == 1:
            self._schedule(1, step, self._train, batches[0], self._resident, step)
        else:
            together = stack(batches)
            self._schedule(len(batches), step, self._train_many, together, self._resident, step)

    def _write_count(self) -> None:
        """Writes the number of updates to the optimizer, which is on a ps."""
        if self._count != self._written:
            self._iterations.assign(self._count)
            self._written = self._count

    def _schedule(self, batches: int, before: tf.Tensor, function: Any, *args: Any) -> None:
        """Sends batches out; the metrics of one see the state after `before` updates and one."""
        value = self._coordinator.schedule(function, args=args)
        self._under_way.append((value, batches, before))
        self._drain(self._most_under_way)

    def _answer(self, value: Any) -> Any:
        """Fetches the results of a batch, however often its worker is lost.

        Raises:
            PeerError: A ps was lost.
        """
        while True:
            try:
                with awaiting_workers():
                    return value.fetch()
            except tf.errors.OpError as error:
                if lost_ps(error) or not is_loss(error):
                    raise
                # The worker was lost between answering and handing the answer over. The
                # coordinator has the batch done again; `done` raises where it has given up.
                self._coordinator.done()
                time.sleep(_AGAIN_SECONDS)

    def _await_first(self) -> None:
        """Waits for an answer where there is none: metrics of nothing would tell a loss of 0."""
        if self._under_way and not self._any_answered:
            self._drain(len(self._under_way) - 1)

    def _drain(self, most: int) -> None:
        """Processes results until at most `most` closures are under way."""
        while len(self._under_way) > most:
            value, batches, before = self._under_way.popleft()
            grown, logs, outputs, overflows = self._answer(value)
            self._any_answered = True
            self._grouping.answered(batches)
            self._count -= int(overflows)  # For a gradient that overflowed no step was made.
            for each in [grown] if batches == 1 else zip(*grown, strict=True):
                self.totals.add_packed(each)
            if outputs:
                outputs = self._with_gaps(outputs)
                totals = [total.read_value() for total in self.totals.variables]
                with self._step.intercepting():
                    grown = self._step.update_metrics_together(totals, outputs, before)
                self.totals.assign(grown)
            self._logs[self._training].update({k: float(value) for k, value in logs.items()})

    # The functions below are traced, and run on a worker.

    def _train_batch(self, data: Any, resident: Any, step: tf.Tensor) -> Any:
        piece = _whole(data, resident)._replace(updates=step)

        def replica() -> ReplicaOutput:
            return self._step.train(piece, loss_scale=self.update.loss_scale())

        with self._step.intercepting():
            output = ReplicaOutput(*self._strategy.run(replica))
        self._assign_changed(TRAIN, output.state)
        gradients = output.gradients
        if not self._optimize.looks_at_all:
            gradients = send_packed(gradients, self._step.variables.trainable)
        finite = self._optimize(gradients, step, output.updated)
        outputs = self._without_gaps(output.outputs)
        return pack(output.metrics), output.logs, outputs, tf.cast(~finite, step.dtype)

    def _train_batches(self, stacked: Any, resident: Any, step: tf.Tensor) -> Any:
        """Trains on batches one after another; returns each one's metrics, the last one's logs."""
        count = rows_of(stacked)

        def train(index: tf.Tensor, overflows: tf.Tensor) -> Any:
            before = step + tf.cast(index, step.dtype) - overflows
            grown, logs, _, over = self._train(unstack(stacked, index), resident, before)
            return grown, logs, overflows + over

        def body(index: tf.Tensor, arrays: Any, logs: Any, overflows: tf.Tensor) -> Any:
            del logs
            grown, logs, overflows = train(index, overflows)
            written = [array.write(index, v) for array, v in zip(arrays, grown, strict=True)]
            return index + 1, written, logs, overflows

        # The first one, outside of the loop, shows what the loop carries.
        grown, logs, overflows = train(tf.constant(0), tf.zeros([], step.dtype))
        arrays = [tf.TensorArray(v.dtype, count, element_shape=v.shape).write(0, v) for v in grown]
        _, arrays, logs, overflows = tf.while_loop(
            lambda index, *_: index < count,
            body,
            (tf.constant(1), arrays, logs, overflows),
            parallel_iterations=1,
        )
        return [array.stack() for array in arrays], logs, [], overflows

    def _test_batch(self, data: Any, resident: Any) -> Any:
        piece = _whole(data, resident)
        with self._step.intercepting():
            output = ReplicaOutput(*self._strategy.run(lambda: self._step.test(piece)))
        self._assign_changed(TEST, output.state)
        return pack(output.metrics), output.logs, self._without_gaps(output.outputs), 0

    def _predict_batch(self, data: Any, resident: Any) -> Any:
        piece = _whole(data, resident)
        with self._step.intercepting():
            outputs, state = self._strategy.run(lambda: self._step.predict(piece))
        self._assign_changed(PREDICT, state)
        return outputs

    def _assign_changed(self, doing: str, state: list[tf.Tensor]) -> None:
        self._step.assign_changed(doing, send_packed(state, self._step.changed[doing]))

    def _without_gaps(self, outputs: Any) -> list[tf.Tensor]:
        """Returns outputs as a list without None, which a worker cannot send."""
        self._outputs_like = outputs
        return [leaf for leaf in tf.nest.flatten(outputs) if leaf is not None]

    def _with_gaps(self, leaves: list[Any]) -> Any:
        rest = iter(leaves)
        like = tf.nest.flatten(self._outputs_like)
        whole = [None if leaf is None else tf.convert_to_tensor(next(rest)) for leaf in like]
        return tf.nest.pack_sequence_as(self._outputs_like, whole)


def _whole(data: Any, resident: Any) -> Slice:
    """Returns the slice that is a worker's whole batch, picked from what it holds if need be."""
    data = loosen(data)
    if resident is not None:
        data = pick(resident, data)
    return Slice(data, rows_of(data), tf.constant(1.0))


def _count_workers() -> int:
    """Returns the number of workers that the chief is connected to, by the devices it sees."""
    devices = tf.config.list_logical_devices("CPU")
    return sum("/job:worker/" in device.name and device.name.endswith(":0") for device in devices)

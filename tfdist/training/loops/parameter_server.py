"""Trains under ParameterServerStrategy: workers step on their own, the chief counts.

The chief reads the data and sends each batch to a worker as one closure, so each batch
is used exactly once, and again only if its worker was lost before it answered. Metrics and
the step counter live in the chief: workers that read, add and write back would lose counts.
"""

from __future__ import annotations

import collections
import time
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist.collectives.peer_errors import is_loss, lost_ps
from tfdist.collectives.transport import SingleReplica
from tfdist.training.input.batch import loosen, rows_of
from tfdist.training.input.feed import Epoch
from tfdist.training.loops.base import Loop, Progress, plain
from tfdist.training.model.inspection import compiled_optimizer
from tfdist.training.step.host_totals import HostTotals, pack
from tfdist.training.step.metrics import add_up, check_gathering
from tfdist.training.step.replica import PREDICT, TEST, TRAIN, ReplicaOutput
from tfdist.training.step.select import make_step
from tfdist.training.step.slicing import Slice
from tfdist.training.update.apply import OptimizerUpdate, PlainUpdate

# Batches under way for each worker: one that it computes on and one that waits.
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
        self._step = make_step(model, SingleReplica(), gathers_metrics=self._gathers)
        self._optimize = OptimizerUpdate(
            compiled_optimizer(model), self._step.variables.trainable, strategy
        )
        self.update = PlainUpdate(self._optimize)
        self.totals = HostTotals(model)
        self._logs: dict[bool, dict[str, float]] = {True: {}, False: {}}
        self._training = True
        self._most_under_way = _PER_WORKER * _count_workers()
        self._under_way: collections.deque[Any] = collections.deque()
        self._iterations = self._optimize.iterations
        self._count = int(self._iterations.numpy())
        compiled = tf.function(reduce_retracing=True, autograph=False)
        self._train = compiled(self._train_batch)
        self._test = compiled(self._test_batch)
        self._predict = compiled(self._predict_batch)

    def take_sample(self, data: Any) -> None:
        """Does nothing: a worker that has no batch has nothing to do."""

    def reset_metrics(self) -> None:
        """Resets the metrics."""
        self._drain(0)
        self.totals.reset()
        for logs in self._logs.values():
            logs.clear()
        self._count = int(self._iterations.numpy())

    def train(self, epoch: Epoch, steps: int, *, logs: bool = True) -> dict[str, Any]:
        """Hands the next `steps` batches out; returns the logs of those that are done."""
        self._training = True
        for _ in range(steps):
            data, _ = epoch.pop()
            step = tf.constant(self._count, self._iterations.dtype)
            self._schedule(step, self._train, data, step)
            self._count += 1
        self._iterations.assign(self._count)
        return self.logs() if logs else {}

    def test(self, epoch: Epoch, steps: int) -> dict[str, Any]:
        """Hands the next `steps` batches out for evaluation."""
        self._training = False
        for _ in range(steps):
            data, _ = epoch.pop()
            self._schedule(tf.constant(self._count - 1), self._test, data)
        return self.logs()

    def predict(self, epoch: Epoch, steps: int = 1) -> Any:
        """Hands the next batch out for prediction."""
        data, _ = epoch.pop()
        return self._coordinator.schedule(self._predict, args=(data,))

    def fetch(self, prediction: Any) -> Any:
        """Waits for the outputs."""
        return prediction.fetch()

    def settle(self) -> None:
        """Waits for the results of every batch sent out."""
        self._drain(0)
        self._iterations.assign(self._count)

    def progress(self) -> Progress:
        """Returns the progress of the epoch; call `settle` first."""
        totals = [np.array(variable.numpy()) for variable in self.totals.variables]
        return Progress(totals, dict(self._logs[True]))

    def resume(self, totals: list[tf.Tensor] | None, logs: dict[str, float]) -> None:
        """Starts from an earlier `progress`; from no metrics where `totals` is None."""
        self.reset_metrics()
        if totals is not None:
            self.totals.assign(totals)
        self._logs[True].update(logs)

    def finish_epoch(self) -> None:
        """Waits for the results of every batch sent out."""
        self.settle()

    def logs(self) -> dict[str, Any]:
        """The metrics' values over the batches answered for, and the last step's own logs."""
        reported = self._step.reported[self._training]
        return plain({**self.totals.results(reported), **self._logs[self._training]})

    def _schedule(self, before: tf.Tensor, function: Any, *args: Any) -> None:
        """Sends a batch out; its metrics see the state after `before` updates and one."""
        self._under_way.append((self._coordinator.schedule(function, args=args), before))
        self._drain(self._most_under_way)

    def _answer(self, value: Any) -> Any:
        """Fetches the results of a batch, however often its worker is lost.

        Raises:
            PeerError: A ps was lost.
        """
        while True:
            try:
                return value.fetch()
            except tf.errors.OpError as error:
                if lost_ps(error) or not is_loss(error):
                    raise
                # The worker was lost between answering and handing the answer over. The
                # coordinator has the batch done again; `done` raises where it has given up.
                self._coordinator.done()
                time.sleep(_AGAIN_SECONDS)

    def _drain(self, most: int) -> None:
        """Processes results until at most `most` batches are under way."""
        while len(self._under_way) > most:
            value, before = self._under_way.popleft()
            grown, logs, outputs, updated = self._answer(value)
            if not all(updated):
                self._count -= 1  # A gradient overflowed: no step was made.
            self.totals.add_packed(grown)
            if outputs:
                outputs = self._with_gaps(outputs)
                totals = [total.read_value() for total in self.totals.variables]
                self.totals.assign(self._step.update_metrics_together(totals, outputs, before))
            self._logs[self._training].update({k: float(value) for k, value in logs.items()})

    # The functions below are traced, and run on a worker.

    def _train_batch(self, data: Any, step: tf.Tensor) -> Any:
        piece = _whole(data)._replace(updates=step)

        def replica() -> ReplicaOutput:
            return self._step.train(piece, loss_scale=self.update.loss_scale())

        with self._step.intercepting():
            output = ReplicaOutput(*self._strategy.run(replica))
        self._step.assign_changed(TRAIN, output.state)
        finite = self._optimize(output.gradients, step)
        updated = [finite] if self._optimize.scaler.dynamic else []
        return pack(output.metrics), output.logs, self._without_gaps(output.outputs), updated

    def _test_batch(self, data: Any) -> Any:
        piece = _whole(data)
        with self._step.intercepting():
            output = ReplicaOutput(*self._strategy.run(lambda: self._step.test(piece)))
        self._step.assign_changed(TEST, output.state)
        return pack(output.metrics), output.logs, self._without_gaps(output.outputs), []

    def _predict_batch(self, data: Any) -> Any:
        piece = _whole(data)
        with self._step.intercepting():
            outputs, state = self._strategy.run(lambda: self._step.predict(piece))
        self._step.assign_changed(PREDICT, state)
        return outputs

    def _without_gaps(self, outputs: Any) -> list[tf.Tensor]:
        """Returns outputs as a list without None, which a worker cannot send."""
        self._outputs_like = outputs
        return [leaf for leaf in tf.nest.flatten(outputs) if leaf is not None]

    def _with_gaps(self, leaves: list[Any]) -> Any:
        rest = iter(leaves)
        like = tf.nest.flatten(self._outputs_like)
        whole = [None if leaf is None else tf.convert_to_tensor(next(rest)) for leaf in like]
        return tf.nest.pack_sequence_as(self._outputs_like, whole)


def _whole(data: Any) -> Slice:
    """Returns the slice that is a worker's whole batch."""
    data = loosen(data)
    return Slice(data, rows_of(data), tf.constant(1.0))


def _count_workers() -> int:
    """Returns the number of workers that the chief is connected to, by the devices it sees."""
    devices = tf.config.list_logical_devices("CPU")
    return sum("/job:worker/" in device.name and device.name.endswith(":0") for device in devices)

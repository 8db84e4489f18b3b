"""The training loop of the strategies whose replicas step together.

A step is one `tf.function`: each replica computes (`replica`), the sums over replicas are
made (`reduction`), and what came out is assigned once, in cross-replica context.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist.training import metrics as metrics_module
from tfdist.training.batch import loosen, rows_between, rows_of
from tfdist.training.build import loss_reductions
from tfdist.training.feed import Epoch
from tfdist.training.reduction import gather, reduce_gradients, reduce_small
from tfdist.training.replica import ReplicaStep
from tfdist.training.share import Share
from tfdist.training.sparse import divide
from tfdist.training.update import Update
from tfdist.training.updates_within import Reduce
from tfdist.training.views import inside
from tfdist.training.wishes import Wishes


class SynchronousLoop:
    """Steps of one model under one synchronous strategy.

    Args:
        model: A built and compiled model.
        strategy: The strategy it was made under.
        share: The replicas of this process.
        whole: Whether the elements' row count is that of the global batch.
        nominal_batch: The usual number of rows of a global batch.
        accumulate_steps: Batches a weight update.
        wire_dtype: The type gradients are sent in, None for their own.
        bytes_per_pack: How much is sent at once, in bytes.
        wishes: Carries the workers' wishes.
        fed_path: A file to write whenever a step has got its input; "" for none.
    """

    def __init__(
        self,
        model: keras.Model,
        strategy: tf.distribute.Strategy,
        share: Share,
        *,
        whole: bool,
        nominal_batch: int,
        accumulate_steps: int = 1,
        wire_dtype: tf.DType | None = None,
        bytes_per_pack: int = 0,
        wishes: Wishes | None = None,
        fed_path: str = "",
    ) -> None:
        self.model = model
        self._wishes = wishes or Wishes()
        self._fed_path = fed_path
        self.strategy = strategy
        self._share = share
        self._stand_ins: dict[str, Any] = {}
        self._whole = whole
        self._nominal = max(1, nominal_batch)
        self._accumulate_steps = accumulate_steps
        self._wire_dtype = wire_dtype
        self._bytes_per_pack = bytes_per_pack
        self._alone = share.replicas == 1
        self._together = not self._alone and not metrics_module.add_up(model)
        if self._together:
            metrics_module.check_gathering(model, strategy)
        self._step = ReplicaStep(model, gather_metrics=self._together)
        self._sums = not self._alone and loss_reductions(model) == {"sum"}
        self._update = Update(model.optimizer, self._step.trainable, strategy)
        self._scaler = self._update.scaler
        self.totals = metrics_module.MetricTotals(model)
        self._logs: dict[str, tf.Variable] = {}
        self._accumulators: list[list[tf.Variable]] = []
        if accumulate_steps > 1:
            self._accumulators = self._make_accumulators()
            self._accumulated = tf.Variable(0.0, trainable=False)
            self._pending = tf.Variable(0, trainable=False)
        # As in Keras' own loop, the model's code is not rewritten by AutoGraph.
        compiled = tf.function(reduce_retracing=True, autograph=False)
        if model.run_eagerly:
            compiled = lambda function: function  # noqa: E731
        # What `build.check` lets have it holds no collective, which XLA could not compile.
        xla = functools.partial(
            tf.function, reduce_retracing=True, autograph=False, jit_compile=True
        )
        replica = xla if self._alone and model.jit_compile else lambda function: function
        self._train_on_replica = replica(self._train_replica)
        self._test_on_replica = replica(self._test_replica)
        self._predict_on_replica = replica(self._predict_replica)
        self._train_one = compiled(lambda e: self._train_element(loosen(e)))
        self._train_many = compiled(self._train_elements)
        self._test_one = compiled(lambda e: self._test_element(loosen(e)))
        self._test_many = compiled(self._test_elements)
        self._predict_one = compiled(lambda e: self._predict_element(loosen(e)))
        self._apply_pending = compiled(self._apply_accumulated)

    def take_sample(self, data: Any) -> None:
        """Keeps a row of data, for a replica whose slice of a batch of its kind is empty."""
        self._stand_ins[_kind(data)] = rows_between(data, 0, 1)

    def reset_metrics(self) -> None:
        """Starts the metrics from nothing."""
        self.totals.reset()
        for variable in self._logs.values():
            variable.assign(0.0)

    def train(self, epoch: Epoch, steps: int) -> dict[str, Any]:
        """Trains on the next `steps` elements; returns the logs so far in the epoch."""
        if epoch.steps is None:
            for _ in range(steps):
                self._train_one(epoch.pop())
        else:
            self._train_many(epoch.iterator, tf.constant(steps))
        return self.logs()

    def settle(self) -> None:
        """Sees that the variables hold all steps that were asked for: they do after each call."""

    def progress(self) -> tuple[list[np.ndarray], dict[str, float]]:
        """The metric totals and the other logs so far in the epoch."""
        totals = [np.array(variable.numpy()) for variable in self.totals.variables]
        return totals, {name: float(value.numpy()) for name, value in self._logs.items()}

    def resume(self, totals: list[tf.Tensor] | None, logs: dict[str, float]) -> None:
        """Starts from what `progress` returned; from no metrics where `totals` is None."""
        self.reset_metrics()
        if totals is not None:
            self.totals.assign(totals)
        for name, value in logs.items():
            self._logs.setdefault(name, tf.Variable(0.0, trainable=False)).assign(value)

    def finish_epoch(self) -> None:
        """Applies gradients that are still accumulated."""
        if self._accumulators and int(self._pending) > 0:
            self._apply_pending()

    def test(self, epoch: Epoch, steps: int) -> dict[str, Any]:
        """Evaluates on the next `steps` elements; returns the logs so far."""
        if epoch.steps is None:
            for _ in range(steps):
                self._test_one(epoch.pop())
        else:
            self._test_many(epoch.iterator, tf.constant(steps))
        return self.logs()

    def predict(self, epoch: Epoch) -> Any:
        """Predicts the next element: outputs of the whole global batch, in its order."""
        return self._predict_one(epoch.pop())

    def logs(self) -> dict[str, Any]:
        """The metrics' values so far, and what an overridden step returned last."""
        return {**self.totals.results(), **{k: v.numpy() for k, v in self._logs.items()}}

    # The functions below are traced, in cross-replica context.

    def _train_elements(self, iterator: Any, steps: tf.Tensor) -> None:
        _repeat(steps, lambda: self._train_element(self._fed(next(iterator))))

    def _test_elements(self, iterator: Any, steps: tf.Tensor) -> None:
        _repeat(steps, lambda: self._test_element(self._fed(next(iterator))))

    def _fed(self, element: Any) -> Any:
        """Leaves word, where somebody asked for it, that the input has come."""
        if self._fed_path:
            with tf.control_dependencies(tf.nest.flatten(element, expand_composites=True)):
                tf.io.write_file(self._fed_path, "")
        return element

    def _train_element(self, element: Any) -> None:
        with self._step.recorder:
            output = self.strategy.run(self._train_on_replica, args=(element,))
        gradients, grown, state, logs, finite, rows = output
        self._record(grown, logs)
        for variable, value in zip(self._step.changed, state, strict=True):
            variable.value.assign(_local(value, self.strategy))
        if self._step.within.active:
            for variable, value in zip(self._step.updated, gradients, strict=True):
                variable.value.assign(_local(value, self.strategy))
            return
        if not self._accumulators:
            self._update.apply(gradients, _local(finite, self.strategy))
            return
        self._accumulated.assign_add(_local(rows, self.strategy))
        self._pending.assign_add(1)
        tf.cond(self._pending >= self._accumulate_steps, self._apply_accumulated, lambda: None)

    def _test_element(self, element: Any) -> None:
        with self._step.recorder:
            grown, logs = self.strategy.run(self._test_on_replica, args=(element,))
        self._record(grown, logs)

    def _predict_element(self, element: Any) -> Any:
        outputs = self.strategy.run(self._predict_on_replica, args=(element,))
        return tf.nest.map_structure(
            lambda value: _concatenate(value, self.strategy, self._share), outputs
        )

    def _record(self, grown: Any, logs: dict[str, Any]) -> None:
        values = [_local(value, self.strategy) for value in grown]
        if self._together or self._alone:
            self.totals.assign(values)
        else:
            self.totals.add(values)
        for name, value in logs.items():
            if name not in self._logs:
                with tf.init_scope():
                    self._logs[name] = tf.Variable(0.0, trainable=False)
            self._logs[name].assign(_local(value, self.strategy))

    def _apply_accumulated(self) -> None:
        output = self.strategy.run(self._take_accumulated)
        gradients, finite = output
        self._update.apply(gradients, _local(finite, self.strategy))
        self._accumulated.assign(0.0)
        self._pending.assign(0)

    # The functions below are traced in replica context.

    def _slice(self, element: Any) -> tuple[Any, tf.Tensor, tf.Tensor]:
        """This replica's rows of the element, how many they are, and their share of the batch."""
        data, rows = element
        local = self._share.local_replicas
        if local > 1:
            replica = tf.cast(_replica_id(), tf.int32)
            if self._whole:
                offset, _ = self._share.cut(rows)
                total, replicas = rows, self._share.replicas
            else:
                offset, total, replicas = 0, rows, local
                replica = replica - self._share.first
            begin = replica * total // replicas - offset
            end = (replica + 1) * total // replicas - offset
            data = rows_between(data, begin, end)
        count = rows_of(data)
        if not self._alone:
            own, stand_in = data, self._stand_ins[_kind(data)]
            data = tf.cond(count > 0, lambda: own, lambda: stand_in)
        batch = rows if self._whole and not self._accumulators else self._nominal
        if self._alone and not self._accumulators:
            return data, count, tf.constant(1.0)
        return data, count, tf.cast(count, tf.float32) / tf.cast(batch, tf.float32)

    def _train_replica(self, element: Any) -> Any:
        data, count, weight = self._slice(element)
        output = self._step.train(
            data,
            weight=weight,
            count=count,
            loss_scale=self._scaler.value(),
            sample_factor=self._sample_factor(count),
            totals=self._totals_so_far(),
            reduce=self._reduce_within(weight),
        )
        whole = self._whole and not self._accumulators
        metrics, state, logs, rows = self._reduce_small(output, weight, count, whole)
        gradients = output.gradients
        finite = tf.constant(True)
        if self._step.within.active:
            gradients = output.updated
        elif self._accumulators:
            self._accumulate(gradients)
            gradients = []
        else:
            gradients = self._reduce(gradients)
            if not whole and not self._alone:
                gradients = [divide(g, rows) for g in gradients]
            finite = self._scaler.all_finite(gradients)
        return gradients, metrics, state, logs, finite, rows

    def _test_replica(self, element: Any) -> Any:
        data, count, weight = self._slice(element)
        output = self._step.test(
            data,
            weight=weight,
            count=count,
            sample_factor=self._sample_factor(count),
            totals=self._totals_so_far(),
        )
        metrics, _, logs, _ = self._reduce_small(output, weight, count, self._whole)
        return metrics, logs

    def _predict_replica(self, element: Any) -> Any:
        data, count, _ = self._slice(element)
        outputs = _first_rows(self._step.predict(data), count)
        return gather(outputs) if self._share.workers > 1 else outputs

    def _take_accumulated(self) -> Any:
        local = self._accumulators[_local_index(self._share)]
        gradients = self._reduce([None if v is None else v.read_value() for v in local])
        with tf.control_dependencies([g for g in gradients if g is not None]):
            for variable in local:
                if variable is not None:
                    variable.assign(tf.zeros_like(variable))
        gradients = [divide(g, self._accumulated.read_value()) for g in gradients]
        return gradients, self._scaler.all_finite(gradients)

    def _accumulate(self, gradients: list[Any]) -> None:
        local = self._accumulators[_local_index(self._share)]
        for variable, gradient in zip(local, gradients, strict=True):
            if gradient is not None:
                variable.assign_add(tf.convert_to_tensor(gradient))

    def _reduce(self, gradients: list[Any]) -> list[Any]:
        return reduce_gradients(
            gradients, bytes_per_pack=self._bytes_per_pack, wire_dtype=self._wire_dtype
        )

    def _reduce_within(self, weight: tf.Tensor) -> Reduce:
        """Makes what gives the global batch's gradients in the midst of a step."""

        def reduce(gradients: list[Any]) -> list[Any]:
            if self._alone:
                return gradients
            if self._whole:
                return self._reduce(gradients)
            (rows,) = reduce_small([weight])
            return [divide(gradient, rows) for gradient in self._reduce(gradients)]

        return reduce

    def _reduce_small(
        self, output: Any, weight: tf.Tensor, count: tf.Tensor, whole: bool
    ) -> tuple[list[tf.Tensor], list[tf.Tensor], dict[str, tf.Tensor], tf.Tensor]:
        """Sums metrics, averages statistics and logs, in one collective a type."""
        if self._alone:
            state, grown, rows = output.state, output.metrics, weight
        else:
            averaged = [i for i, v in enumerate(output.state) if v.dtype.is_floating]
            shares = [
                weight,
                *output.metrics,
                *(output.state[i] * tf.cast(weight, output.state[i].dtype) for i in averaged),
                *(value * weight for value in output.logs.values()),
                self._wishes.own(),
            ]
            rows, *sums, wishes = reduce_small(shares)
            self._wishes.record(wishes)
            grown, sums = sums[: len(output.metrics)], sums[len(output.metrics) :]
            if not whole:
                sums = [value / tf.cast(rows, value.dtype) for value in sums]
            state = list(output.state)
            for i, value in zip(averaged, sums, strict=False):
                state[i] = value
            output = output._replace(
                logs=dict(zip(output.logs, sums[len(averaged) :], strict=True))
            )
        if self._together:
            totals = [
                total.read_value() + tf.cast(value, total.dtype)
                for total, value in zip(self.totals.variables, grown, strict=True)
            ]
            grown = totals
            if output.outputs is not None:
                grown = self._step.update_metrics_together(
                    totals, gather(_first_rows(output.outputs, count))
                )
        return grown, state, output.logs, rows

    def _totals_so_far(self) -> list[tf.Tensor] | None:
        """What the metrics go on from in a step, where one replica sees all of the data."""
        if not self._alone:
            return None
        return [total.read_value() for total in self.totals.variables]

    def _sample_factor(self, count: tf.Tensor) -> Callable[[Any], Any] | None:
        """Makes losses that are no plain mean over examples add up: see `ReplicaStep.train`."""
        if self._alone:
            return None
        real = tf.distribute.get_replica_context()
        own = tf.cast(count, tf.float32)

        def reduced(*values: tf.Tensor) -> list[tf.Tensor]:
            with inside(real):
                return reduce_small(values)

        def of_output(output: Any) -> tf.Tensor:
            """A weight for each row, or for each of the mask's places."""
            mask = getattr(output, "_keras_mask", None)
            like = tf.ones(tf.shape(output)[:1] if mask is None else tf.shape(mask))
            if self._sums:
                (rows,) = reduced(own)
                return like * tf.math.divide_no_nan(rows, own)
            if mask is None:
                return like
            valid = tf.where(count > 0, tf.reduce_sum(tf.cast(mask, tf.float32)), 0.0)
            rows, all_valid = reduced(own, valid)
            share = tf.math.divide_no_nan(valid, all_valid)
            return like * share * tf.math.divide_no_nan(rows, own)

        def factor(y_pred: Any) -> Any:
            masks = [getattr(o, "_keras_mask", None) for o in tf.nest.flatten(y_pred)]
            if not self._sums and all(mask is None for mask in masks):
                return None
            return tf.nest.map_structure(of_output, y_pred)

        return factor

    def _make_accumulators(self) -> list[list[tf.Variable]]:
        """A sum of gradients for each replica of this process, on that replica's device."""
        made = []
        for device in self.strategy.extended.worker_devices[: self._share.local_replicas]:
            with tf.device(device):
                made.append(
                    [
                        tf.Variable(tf.zeros(v.shape, v.dtype), trainable=False)
                        for v in self._step.trainable
                    ]
                )
        return made


def _kind(data: Any) -> str:
    """The structure of a batch, with types and ranks."""

    def of_leaf(leaf: Any) -> str:
        return "" if leaf is None else f"{leaf.dtype.name} {leaf.shape.rank}"

    return repr(tf.nest.map_structure(of_leaf, data))


def _first_rows(outputs: Any, count: tf.Tensor) -> Any:
    return tf.nest.map_structure(lambda v: None if v is None else v[:count], outputs)


def _repeat(times: tf.Tensor, body: Callable[[], None]) -> None:
    """Runs `body` so many times: a loop of the graph, where there is one."""

    def step(done: tf.Tensor) -> tuple[tf.Tensor]:
        body()
        return (done + 1,)

    tf.while_loop(lambda done: done < times, step, (tf.constant(0),), parallel_iterations=1)


def _replica_id() -> Any:
    return tf.distribute.get_replica_context().replica_id_in_sync_group


def _local_index(share: Share) -> int:
    replica = tf.get_static_value(_replica_id())
    return int(replica) - share.first if share.local_replicas > 1 else 0


def _local(value: Any, strategy: tf.distribute.Strategy) -> Any:
    """The first replica's value, where all replicas have the same."""
    return strategy.experimental_local_results(value)[0]


def _concatenate(value: Any, strategy: tf.distribute.Strategy, share: Share) -> Any:
    results = strategy.experimental_local_results(value)
    if share.workers > 1 or len(results) == 1:
        return results[0]  # Gathered over all replicas already.
    return tf.concat(results, axis=0)

"""The training loop of one device, where Keras' own steps run as they are.

`train_step`, `test_step` and `predict_step` of the model run inside a `tf.function` made as Keras'
`make_train_function` makes it: what they assign is assigned, and metrics are in the model's own
variables. The variables of a model that is not built are made where Keras makes them, when a
step is traced.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from typing_extensions import override

from tfdist.keras_internals import (
    build_symbolically,
    convert_to_np_if_not_ragged,
    potentially_ragged_concat,
    pythonify_logs,
    results_or_logs,
)
from tfdist.training.input.epoch import Epoch
from tfdist.training.input.feed import Feed
from tfdist.training.input.intake import Intake
from tfdist.training.loops.base import EpochProgress, Loop, only_numbers
from tfdist.training.update.apply import Update
from tfdist.training.update.kernels import fused, within_steps

Step = Callable[[Any], Any]


class OneDeviceLoop(Loop):
    """Steps of one model on one device.

    Args:
        model: The model; compiled, if it is to do more than predict.
        strategy: The strategy it was made under, of one replica.
        compile_update: Whether the optimizer's update is compiled, with other bits than Keras'.
        fed_path: A file to write whenever a step has got its input; "" for none.
    """

    def __init__(
        self,
        model: keras.Model,
        strategy: tf.distribute.Strategy,
        *,
        compile_update: bool = False,
        fed_path: str = "",
    ) -> None:
        self.update = Update()  # The optimizer is called in the model's own step.
        self._model = model
        self._strategy = strategy
        train_step = model.train_step
        if compile_update:
            train_step = functools.partial(_with_compiled_update, model)
        self._intake = Intake(fed_path)
        self._train = _Calls(model, strategy, train_step, self._intake)
        self._test = _Calls(model, strategy, model.test_step, self._intake)
        self._logs: dict[str, Any] = {}

    def build(self, feed: Feed) -> None:
        """Makes the variables that the first step would make, and runs none."""
        if self._model.run_eagerly:
            self.build_symbolically(feed)
        else:
            self._train.trace(feed.element_spec)

    def build_symbolically(self, feed: Feed) -> None:
        """Makes variables as Keras does under a strategy, where Keras can."""

        def of_leaf(spec: Any) -> Any:
            return None if isinstance(spec, tf.OptionalSpec) else spec

        spec = tf.nest.map_structure(of_leaf, feed.element_spec)
        with self._strategy.scope():
            try:
                build_symbolically(self._model, spec)
            except Exception:
                # A model without `call`, say; the first step makes what is missing, and reports
                # what is wrong where that cannot be.
                return

    @override
    def reset_metrics(self) -> None:
        self._model.reset_metrics()

    @override
    def train(self, epoch: Epoch, steps: int, *, logs: bool = True) -> dict[str, Any]:
        self._logs = self._train(epoch, steps)
        return self._logs if logs else {}

    @override
    def test(self, epoch: Epoch, steps: int) -> dict[str, Any]:
        self._logs = self._test(epoch, steps)
        return self._logs

    @override
    def predict(self, epoch: Epoch, steps: int = 1) -> Any:
        data = [epoch.pop()]
        while len(data) < steps and (epoch.steps is not None or epoch.peek()):
            data.append(epoch.pop())
        self._model.make_predict_function()
        return self._model.predict_function(data)

    @override
    def join(self, predictions: list[Any]) -> Any:
        """Returns all predictions as Keras gives them: arrays, ragged or sparse tensors."""

        def of(*parts: Any) -> Any:
            return convert_to_np_if_not_ragged(potentially_ragged_concat(list(parts)))

        return keras.tree.map_structure(of, *predictions)

    @override
    def input_seconds(self) -> float:
        return self._intake.seconds()

    def publish(self) -> None:
        """Does nothing: the metrics are in their own variables."""

    @override
    def logs(self) -> dict[str, Any]:
        """Returns the metrics' values so far, or what the step returned under other names."""
        return dict(pythonify_logs(results_or_logs(self._model, self._logs)))

    @override
    def progress(self) -> EpochProgress:
        totals = [np.array(variable.numpy()) for variable in self._model.metrics_variables]
        return EpochProgress(totals, only_numbers(pythonify_logs(self._logs)))

    @override
    def resume(self, totals: list[tf.Tensor] | None, logs: dict[str, float]) -> None:
        self.reset_metrics()
        if totals is not None:
            for variable, total in zip(self._model.metrics_variables, totals, strict=True):
                variable.assign(total)
        self._logs = dict(logs)


def _with_compiled_update(model: keras.Model, data: Any) -> Any:
    """Runs the model's own step, with a faster update."""
    optimizer = model.optimizer
    with within_steps(optimizer), fused(optimizer):
        return model.train_step(data)


class _Calls:
    """Calls of a step, one or several steps each.

    Args:
        model: The model.
        strategy: Its strategy.
        step: `train_step` or `test_step`.
        intake: Where it gets its elements.
    """

    def __init__(
        self, model: keras.Model, strategy: tf.distribute.Strategy, step: Step, intake: Intake
    ) -> None:
        self._intake = intake

        def on_batch(data: Any) -> Any:
            outputs = strategy.run(step, args=(data,))
            return tf.nest.map_structure(
                lambda value: strategy.experimental_local_results(value)[0], outputs
            )

        self._on_batch: Step = on_batch
        self._from_iterator: Step = lambda iterator: self._step(intake.take(iterator))
        self._from_optional: Step = lambda optional: self._step(intake.taken(optional.get_value()))
        self._several: Callable[..., Any] | None = None
        if not model.run_eagerly:
            # As in Keras' own functions the model's code is not rewritten by AutoGraph.
            self._on_batch = tf.function(
                on_batch, reduce_retracing=True, autograph=False, jit_compile=model.jit_compile
            )
            in_graph = tf.function(reduce_retracing=True, autograph=False)
            self._from_iterator = in_graph(self._from_iterator)
            self._from_optional = in_graph(self._from_optional)
            self._several = in_graph(self._repeat)

    def trace(self, element_spec: Any) -> None:
        """Traces a step on such elements, which makes all variables, and runs none."""
        self._from_iterator.get_concrete_function(  # type: ignore[attr-defined]
            tf.data.IteratorSpec(element_spec)
        )

    def __call__(self, epoch: Epoch, steps: int) -> dict[str, Any]:
        """Runs steps on the next `steps` elements; returns the outputs of the last."""
        outputs: Any = {}
        if epoch.steps is None:
            for number in range(steps):
                if number and not epoch.peek():
                    break
                outputs = self._from_optional(epoch.pop_optional())
            return _logs(outputs)
        if self._several is not None and steps > 1:
            outputs = self._several(epoch.iterator, tf.constant(steps))
        else:
            for _ in range(steps):
                outputs = self._from_iterator(epoch.iterator)
        return _logs(outputs)

    def _step(self, element: Any) -> Any:
        return self._on_batch(keras.tree.map_structure(_none_if_optional, element))

    def _repeat(self, iterator: Any, steps: tf.Tensor) -> Any:
        """Runs a loop of the graph, whose first round shows what a step returns."""
        structure = self._step(self._intake.take(iterator))
        leaves = tf.nest.flatten(structure, expand_composites=True)
        held = [index for index, leaf in enumerate(leaves) if leaf is not None]

        def body(done: tf.Tensor, *_: Any) -> Any:
            outputs = tf.nest.flatten(
                self._step(self._intake.take(iterator)), expand_composites=True
            )
            return (done + 1, *(outputs[index] for index in held))

        first = [leaves[index] for index in held]
        _, *last = tf.while_loop(
            lambda done, *_: done < steps,
            body,
            (tf.constant(1), *first),
            shape_invariants=(tf.TensorShape([]), *(tf.TensorShape(None) for _ in first)),
            parallel_iterations=1,
        )
        for index, value in zip(held, last, strict=True):
            leaves[index] = value
        return tf.nest.pack_sequence_as(structure, leaves, expand_composites=True)


def _none_if_optional(leaf: Any) -> Any:
    """Returns None for the `Optional` that Keras' adapters put where there is None."""
    return None if isinstance(leaf, tf.experimental.Optional) else leaf


def _logs(outputs: Any) -> dict[str, Any]:
    """Returns what a step returned, if that is logs."""
    return outputs if isinstance(outputs, dict) else {}

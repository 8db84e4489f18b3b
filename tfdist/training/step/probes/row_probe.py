"""Finds out whether a model's own code mixes the rows of a batch, of which a replica has a slice.

What Keras' layers and losses do with several rows is taken care of (`LossSums`, synchronized
BatchNormalization). The user's code in `call`, `compute_loss` and `train_step` is not known: it may
take a mean over the batch, compare its rows, clip a gradient, or divide by a fixed number. So it is
tried on a few rows of the data. A graph of it is made and only its results run, so nothing is
assigned or printed.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist.keras_internals import flatten_layers, is_of_keras
from tfdist.runtime.log import LOGGER
from tfdist.training.input.batch import loosen, rows_of
from tfdist.training.model.inspection import all_optimizers, overrides
from tfdist.training.step.patches.capture import intercept_apply
from tfdist.training.step.patches.loss_sums import no_losses, sums_over_examples
from tfdist.training.step.patches.shared_state import SharedState
from tfdist.training.step.probes.loss_probe import compares_examples

# Of the largest value compared: far above rounding, below what a mean over a batch changes.
_TOLERANCE = 1e-3
# A step is tried on halves of so many rows.
_MOST_ROWS = 16

Function = Callable[[keras.Model, Any], list[tf.Tensor]]

_warned: weakref.WeakSet[keras.Model] = weakref.WeakSet()


class _Run:
    """Computes a function of some rows of a sample, given their numbers.

    Args:
        graph: A graph of the function.
        sample: The leaves of the sample.

    Attributes:
        draws: Whether the graph draws random numbers.
    """

    def __init__(self, graph: Any, sample: list[Any]) -> None:
        self._results = graph.prune(graph.inputs[: len(sample)], graph.outputs)
        self._sample = sample
        definition = graph.graph.as_graph_def()
        nodes = [*definition.node, *(n for f in definition.library.function for n in f.node_def)]
        self.draws = any("Random" in node.op for node in nodes)

    def __call__(self, *numbers: int) -> list[np.ndarray]:
        picked = (tf.gather(part, numbers) for part in self._sample)
        return [value.numpy() for value in self._results(*picked)]


def warn_of_mixed_rows(
    model: keras.Model, sample: Any, parts: str, *, training: bool = True
) -> None:
    """Warns, once for a model, where its own code mixes the rows of a batch.

    Args:
        model: A built model.
        sample: A batch.
        parts: What has a part of the batch each, for the message: "2 replicas".
        training: Whether the model trains or evaluates, and does not only predict.
    """
    if model in _warned:
        return
    what = mixes_rows(model, sample, training=training)
    if what:
        _warned.add(model)
        LOGGER.warning(
            "%s.%s: %s, and each of %s is given some rows of a batch, so the numbers differ from "
            "one device's; write a loss that compares rows as a keras.losses.Loss, which is "
            "computed on all rows, or train on one device",
            *(type(model).__name__, *what, parts),
        )


def mixes_rows(model: keras.Model, sample: Any, *, training: bool = True) -> tuple[str, str] | None:
    """Tries a model's own code on a few rows of the data.

    Args:
        model: A built model; compiled, if it trains.
        sample: A batch.
        training: Whether its step and its loss are tried, and not only its forward pass.

    Returns:
        The method that mixes rows, and how that shows. None where nothing shows: there is no code
        of the user's, it cannot be tried on few rows, or it draws other numbers each time.
    """
    with contextlib.suppress(Exception):  # Whatever the user's code does not like.
        if training and overrides(model, "train_step"):
            if not _adds_up(model, _gradients, sample):
                return "train_step", "its gradient is not a mean over the rows of a batch"
            return None
        if overrides(model, "call") and _has_own_code(model) and not _keeps_apart(model, sample):
            return "call", "the output for a row depends on the other rows of the batch"
        own_loss = training and overrides(model, "compute_loss")
        if own_loss and not (_adds_up(model, _loss, sample) and _is_mean(model, sample)):
            return "compute_loss", "the loss is not a mean over the rows of a batch"
    return None


def _has_own_code(model: keras.Model) -> bool:
    """Whether the forward pass is anything else than layers of Keras'."""
    parts: list[Any] = list(flatten_layers(model))
    parts += getattr(model, "operations", None) or []
    return any(
        not is_of_keras(type(part))
        or isinstance(part, keras.layers.Lambda)
        or not isinstance(part, keras.layers.Layer)
        for part in parts
    )


def _keeps_apart(model: keras.Model, sample: Any) -> bool:
    """Whether the first row's output stays the same with another second row, or is drawn."""
    if int(rows_of(sample)) < 3:
        return True
    run = _trial(model, _first_output, sample, rows=2)
    once = run(0, 1)
    return _same(once, run(0, 2)) or not _same(once, run(0, 1))


def _adds_up(model: keras.Model, function: Function, sample: Any) -> bool:
    """Whether f(a, b) + f(c, d) = f(a, d) + f(c, b), as for a mean over rows, or f is drawn."""
    each = min(_MOST_ROWS, int(rows_of(sample))) // 4
    if each == 0:
        return True
    a, b, c, d = (range(i * each, (i + 1) * each) for i in range(4))
    run = _trial(model, function, sample, rows=2 * each)
    once = run(*a, *b)
    one = [p + q for p, q in zip(once, run(*c, *d), strict=True)]
    other = [p + q for p, q in zip(run(*a, *d), run(*c, *b), strict=True)]
    return _same(one, other) or not _same(once, run(*a, *b))


def _is_mean(model: keras.Model, sample: Any) -> bool:
    """Whether 2 f(a, b) = f(a) + f(b) for the loss, as for a mean over rows, or it is drawn.

    A sum that is divided by a fixed number is not a mean. Keras' losses, whose reduction is
    known, are left out.
    """
    half = min(_MOST_ROWS, int(rows_of(sample))) // 2
    if half == 0:
        return True
    run = _trial(model, _mean_loss, sample, rows=None, losses=no_losses)
    if run.draws:
        return True  # It draws other numbers for other shapes.
    a, b = range(half), range(half, 2 * half)
    once = run(*a, *b)
    parts = [(p + q) / 2 for p, q in zip(run(*a), run(*b), strict=True)]
    return _same(once, parts) or not _same(once, run(*a, *b))


def _first_output(model: keras.Model, data: Any) -> list[tf.Tensor]:
    x, _, _ = keras.utils.unpack_x_y_sample_weight(data)
    return [output[:1] for output in tf.nest.flatten(model(x))]


def _loss(model: keras.Model, data: Any) -> list[tf.Tensor]:
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
    return [tf.reduce_sum(model.compute_loss(x, y, model(x), sample_weight))]


def _mean_loss(model: keras.Model, data: Any) -> list[tf.Tensor]:
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
    return [tf.reduce_mean(model.compute_loss(x, y, model(x), sample_weight))]


def _gradients(model: keras.Model, data: Any) -> list[tf.Tensor]:
    found: list[tf.Tensor] = []

    def keep(_: Any, gradients: Any, trainable_variables: Any = None) -> None:
        found.extend(tf.convert_to_tensor(g) for g in gradients if g is not None)

    with intercept_apply(all_optimizers(model), keep):
        model.train_step(data)
    return found


def _sums_over_examples() -> contextlib.AbstractContextManager[None]:
    return sums_over_examples(compares_examples)


def _trial(
    model: keras.Model,
    function: Function,
    sample: Any,
    rows: int | None,
    losses: Callable[[], contextlib.AbstractContextManager[None]] = _sums_over_examples,
) -> _Run:
    """Returns what computes a function of some rows of the sample, given their numbers.

    Only the results of its graph run: what it assigns or prints besides is left out.

    Args:
        model: The model.
        function: Is traced.
        sample: A batch.
        rows: How many rows; None for any number.
        losses: A context for Keras' losses.
    """
    present = [leaf for leaf in tf.nest.flatten(sample) if leaf is not None]

    def traced(*leaves: tf.Tensor) -> list[tf.Tensor]:
        rest = iter(leaves)
        data = tf.nest.map_structure(lambda leaf: None if leaf is None else next(rest), sample)
        with _rows_apart(), losses(), _state(model):
            return [tf.cast(value, tf.float64) for value in function(model, loosen(data))]

    restore = SharedState(model).keep()
    try:
        graph = tf.compat.v1.wrap_function(
            traced, [tf.TensorSpec([rows, *leaf.shape[1:]], leaf.dtype) for leaf in present]
        )
    finally:
        restore()
    return _Run(graph, present)


def _state(model: keras.Model) -> keras.StatelessScope:
    kept = [*model.non_trainable_variables, *model.metrics_variables]
    mapping = [(v, tf.convert_to_tensor(v.value)) for v in kept]
    mapping += [(v, v.value) for v in model.trainable_variables]
    return keras.StatelessScope(mapping, collect_losses=True)


@contextlib.contextmanager
def _rows_apart() -> Iterator[None]:
    """A context in which Keras' BatchNormalization does not mix rows."""
    kind: Any = keras.layers.BatchNormalization
    call = kind.call
    kind.call = lambda layer, inputs, training=None, mask=None: call(layer, inputs, False, mask)
    try:
        yield
    finally:
        kind.call = call


def _same(some: list[np.ndarray], others: list[np.ndarray]) -> bool:
    largest = max((float(np.abs(value).max(initial=0)) for value in some), default=0.0)
    return all(
        np.allclose(a, b, 0, _TOLERANCE * largest, equal_nan=True)
        for a, b in zip(some, others, strict=True)
    )

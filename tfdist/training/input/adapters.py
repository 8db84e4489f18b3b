"""Turns a user's data into a `Feed`: datasets, functions, generators, arrays."""

from __future__ import annotations

import collections
import functools
import inspect
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist.collectives.layout import ReplicaLayout
from tfdist.errors import ConfigError
from tfdist.runtime.log import LOGGER
from tfdist.training.input.arrays import (
    Arrays,
    gather,
    read_arrays,
    table_of,
    tuples,
    unpack,
    weigh_classes,
)
from tfdist.training.input.batch import rows_between, rows_of
from tfdist.training.input.datasets import Readings
from tfdist.training.input.feed import Feed

_DEFAULT_BATCH = 32
# The number of elements that Keras reads to find the dimensions that vary.
_LOOKED_AT = 2


def make_feed(
    x: Any,
    y: Any = None,
    sample_weight: Any = None,
    *,
    layout: ReplicaLayout,
    batch_size: int | None = None,
    shuffle: bool = False,
    seed: int = 0,
    class_weight: dict[int, float] | None = None,
    steps: int | None = None,
    hands_out_rows: bool = False,
) -> Feed:
    """Makes the feed of any data that Keras' `fit` would accept.

    Args:
        x: A `tf.data.Dataset` of global batches; a function of `tf.distribute.InputContext`
            (and, if it takes them, of `epoch`, and of `first_batch`, the batch to start at) that
            returns this pipeline's dataset of batches; a `keras.utils.PyDataset` or a generator of
            global batches; or arrays.
        y: Targets, with arrays only.
        sample_weight: Weights, with arrays only.
        layout: The replicas this process holds.
        batch_size: The global batch, with arrays only.
        shuffle: Whether to shuffle arrays anew in each epoch.
        seed: The order of shuffled arrays depends on it and the epoch.
        class_weight: A weight for each class.
        steps: Steps per epoch, or None for all of the data.
        hands_out_rows: Whether elements of arrays are the numbers of their rows, to be picked
            from the epoch's `resident_arrays` where they are used.

    Raises:
        ConfigError: The data is none of these, or an argument cannot be used with it.
    """
    arrays: Arrays | None = None
    ends = False
    make: Callable[[int, int], tf.data.Dataset]
    peek: Callable[[], tf.data.Dataset] | None = None
    pass_over: Callable[[int], None] = lambda epochs: None  # noqa: E731
    begin_epoch: Callable[[], None] = lambda: None  # noqa: E731
    end_epoch: Callable[[], None] = lambda: None  # noqa: E731
    on_restart: Callable[[], None] = lambda: None  # noqa: E731
    if isinstance(x, tf.data.Dataset):
        readings = Readings(x, goes_on=steps is not None)
        make, peek = readings.make, readings.peek
        pass_over, end_epoch = readings.pass_over, readings.end_epoch
    elif isinstance(x, keras.utils.PyDataset):
        make, peek = _of_py_dataset(x, seed if shuffle else None)
        begin_epoch, end_epoch = x.on_epoch_begin, x.on_epoch_end
        # Keras has `on_epoch_end` called before the first epoch too.
        pass_over, on_restart = functools.partial(_pass_over_epochs, x), end_epoch
    elif callable(x) and not hasattr(x, "__array__"):
        return _of_function(x, layout, class_weight, steps)
    elif inspect.isgenerator(x) or (isinstance(x, Iterator) and not hasattr(x, "__array__")):
        make, peek = _of_generator(x)
        ends = True
    else:
        arrays = read_arrays(x, y, sample_weight)
        order = functools.partial(
            arrays.order, batch=batch_size or _DEFAULT_BATCH, shuffle=shuffle, seed=seed
        )
        pick_parts = functools.partial(gather, arrays.tensors)
        make = lambda epoch, first: order(epoch, first).map(pick_parts)  # noqa: E731
    if arrays is None:
        for name, value in (("y", y), ("sample_weight", sample_weight)):
            if value is not None:
                raise ConfigError(
                    f"{name}: given beside data that already holds it ({type(x).__name__}); "
                    "put it into the dataset's elements (x, y, sample_weight)"
                )
        if batch_size is not None:
            raise ConfigError(
                f"batch_size: {batch_size} is given beside data that comes in batches "
                f"({type(x).__name__}); leave it out"
            )

    def of_epoch(epoch: int, first: int) -> tf.data.Dataset:
        batches = with_class_weight(make(epoch, first), class_weight)
        return batches.map(lambda *e: _own_part(unpack(e), layout))

    def sample() -> tf.data.Dataset:
        # Uncut: this worker's part of a small batch may have no rows.
        batches = with_class_weight(peek() if peek is not None else make(0, 0), class_weight)
        return batches.map(lambda *e: _own_part(unpack(e), ReplicaLayout()))

    held = None
    make_element = of_epoch
    if hands_out_rows and arrays is not None and arrays.are_small:
        held = arrays.tensors, None if class_weight is None else table_of(class_weight)

        def make_element(epoch: int, first: int) -> tf.data.Dataset:
            return order(epoch, first).map(lambda rows: (rows, rows_of(rows)))

    return Feed(
        make_element,
        held=held,
        whole=True,
        layout=layout,
        steps=steps,
        sample=sample,
        pass_over=pass_over,
        begin_epoch=begin_epoch,
        end_epoch=end_epoch,
        on_restart=on_restart,
        ends=ends,
    )


def split_arrays(x: Any, y: Any, sample_weight: Any, fraction: float) -> tuple[Any, Any]:
    """Splits arrays into rows to train on and, at the end, rows to validate on.

    Args:
        x: Arrays, or a structure of them.
        y: Targets, or None.
        sample_weight: Weights, or None.
        fraction: The fraction of the rows to validate on.

    Returns:
        Two triples of x, y and sample_weight.

    Raises:
        ConfigError: The fraction is not between 0 and 1, or the data is not arrays.
    """
    if not 0 < fraction < 1:
        raise ConfigError(f"validation_split: {fraction} is given; allowed: between 0 and 1")
    if isinstance(x, tf.data.Dataset) or callable(x):
        raise ConfigError(
            "validation_split: allowed with arrays only; give validation_data instead"
        )
    parts = (x, y, sample_weight)
    length = len(next(a for a in keras.tree.flatten(parts) if a is not None))
    at = int(length * (1 - fraction))

    def cut(piece: slice) -> Any:
        return tuple(
            None if part is None else keras.tree.map_structure(lambda a: a[piece], part)
            for part in parts
        )

    return cut(slice(0, at)), cut(slice(at, None))


def _own_part(data: Any, layout: ReplicaLayout) -> tuple[Any, tf.Tensor]:
    rows = rows_of(data)
    if layout.workers == 1:
        return data, rows
    return rows_between(data, *layout.own_rows(rows)), rows


def _of_function(
    function: Callable[..., tf.data.Dataset],
    layout: ReplicaLayout,
    class_weight: dict[int, float] | None,
    steps: int | None,
) -> Feed:
    batches = function_batches(function, layout, class_weight)

    def make(epoch: int, first: int) -> tf.data.Dataset:
        return batches(epoch, first).map(lambda *e: (unpack(e), rows_of(unpack(e))))

    return Feed(make, whole=layout.workers == 1, layout=layout, steps=steps)


def function_batches(
    function: Callable[..., tf.data.Dataset],
    layout: ReplicaLayout,
    class_weight: dict[int, float] | None,
) -> Callable[[int, int], tf.data.Dataset]:
    """Returns a function of epoch and first batch that makes a dataset of the user's function.

    Args:
        function: A function of `tf.distribute.InputContext`, maybe of `epoch` and `first_batch`.
        layout: The replicas this process holds.
        class_weight: A weight for each class.
    """
    context = tf.distribute.InputContext(
        num_input_pipelines=layout.workers,
        input_pipeline_id=layout.worker,
        num_replicas_in_sync=layout.replicas,
    )
    try:
        takes = set(inspect.signature(function).parameters) & {"epoch", "first_batch"}
    except (TypeError, ValueError):
        takes = set()

    def make(epoch: int, first: int) -> tf.data.Dataset:
        given = {"epoch": epoch, "first_batch": first}
        dataset = function(context, **{name: given[name] for name in takes})
        if not isinstance(dataset, tf.data.Dataset):
            raise ConfigError(
                f"data: the function of InputContext gave {type(dataset).__name__}; "
                "it must return a tf.data.Dataset"
            )
        if first and "first_batch" not in takes:
            dataset = dataset.skip(first)
        return with_class_weight(dataset, class_weight)

    return make


def _of_generator(
    generator: Iterator[Any],
) -> tuple[Callable[[int, int], tf.data.Dataset], Callable[[], tf.data.Dataset]]:
    """Returns datasets of the generator's remaining elements, and one of its first element."""
    first = [tuples(element) for element in itertools.islice(generator, _LOOKED_AT)]
    if not first:
        raise ConfigError("data: the generator has no batch; give at least one example")
    waiting = collections.deque(first)
    signature = _signature(*first)

    def make(epoch: int, first_batch: int) -> tf.data.Dataset:
        def rest() -> Iterator[Any]:
            ended = True
            while waiting:
                ended = False
                yield waiting.popleft()
            for element in generator:
                ended = False
                yield tuples(element)
            if ended:
                LOGGER.warning(
                    "data: the generator has ended, so there is nothing for epoch %d; give "
                    "steps_per_epoch, or a keras.utils.PyDataset",
                    epoch + 1,
                )

        dataset = tf.data.Dataset.from_generator(rest, output_signature=signature)
        return dataset.skip(first_batch) if first_batch else dataset

    def peek() -> tf.data.Dataset:
        return tf.data.Dataset.from_generator(lambda: iter(first[:1]), output_signature=signature)

    return make, peek


def _of_py_dataset(
    data: keras.utils.PyDataset, seed: int | None
) -> tuple[Callable[[int, int], tf.data.Dataset], Callable[[], tf.data.Dataset]]:
    """Returns datasets of an epoch's batches, and one of the first batch.

    Args:
        data: The batches.
        seed: Their order depends on it and the epoch; None for their own order.
    """
    length = data.num_batches
    looked_at = _LOOKED_AT if length is None else min(_LOOKED_AT, length)
    if not looked_at:
        raise ConfigError("data: the PyDataset has no batch; give at least one example")
    seen = [tuples(data[index]) for index in range(looked_at)]
    signature = _signature(*seen)

    def make(epoch: int, first_batch: int) -> tf.data.Dataset:
        length = data.num_batches  # It may be another one in each epoch.
        order = order_of_batches(length, seed, epoch)

        def batches() -> Iterator[Any]:
            counter = itertools.count(first_batch)
            for index in counter if length is None else range(first_batch, length):
                yield tuples(data[index if order is None else order[index]])

        dataset = tf.data.Dataset.from_generator(batches, output_signature=signature)
        if length is not None:
            left = max(0, length - first_batch)
            dataset = dataset.apply(tf.data.experimental.assert_cardinality(left))
        return dataset

    def peek() -> tf.data.Dataset:
        return tf.data.Dataset.from_generator(lambda: iter(seen[:1]), output_signature=signature)

    return make, peek


def _pass_over_epochs(data: keras.utils.PyDataset, epochs: int) -> None:
    for _ in range(epochs):
        data.on_epoch_begin()
        data.on_epoch_end()


def order_of_batches(count: int | None, seed: int | None, epoch: int) -> list[int] | None:
    """Returns the shuffled order of an epoch's batches.

    Args:
        count: How many there are; None for infinitely many.
        seed: The order depends on it and the epoch; None for the data's own order.
        epoch: The number of the epoch.

    Returns:
        The numbers of the batches; None for their own order.
    """
    if seed is None or count is None:
        return None
    return np.random.default_rng((seed, epoch)).permutation(count).tolist()


def _signature(*elements: Any) -> Any:
    """Returns the common specification of elements; dimensions that differ are unknown."""

    def spec(*leaves: Any) -> tf.TypeSpec:
        sparse = isinstance(leaves[0], tf.SparseTensor)
        arrays = leaves if sparse else [np.asarray(leaf) for leaf in leaves]
        shapes = [tuple(array.shape)[1:] for array in arrays]
        dims = [sizes[0] if len(set(sizes)) == 1 else None for sizes in zip(*shapes, strict=False)]
        dtype = arrays[0].dtype
        if sparse:
            return tf.SparseTensorSpec([None, *dims], dtype)
        dtype = keras.config.floatx() if dtype == np.float64 else dtype
        return tf.TensorSpec([None, *dims], dtype)

    return tf.nest.map_structure(spec, *elements)


def with_class_weight(
    dataset: tf.data.Dataset, class_weight: dict[int, float] | None
) -> tf.data.Dataset:
    """Adds sample weights by class to a dataset; returns it unchanged for None."""
    if class_weight is None:
        return dataset
    table = table_of(class_weight)

    def add(*parts: Any) -> Any:
        return weigh_classes(table, *parts)

    # AutoGraph would wrap the errors into one of its own.
    return dataset.map(tf.autograph.experimental.do_not_convert(add))

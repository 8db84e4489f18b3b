"""From what a user hands over as data to the batches that this process computes on.

A `Feed` gives, epoch by epoch, an iterator over elements `(data, rows)`: the part of a global
batch that belongs to this worker, and the number of rows that part was cut from (the whole
global batch where it is known, else the worker's own). `Share.bounds` says which rows of it a
replica computes on.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist.errors import ConfigError

_DEFAULT_BATCH = 32


@dataclass(frozen=True)
class Share:
    """Which replicas of how many this process holds.

    Attributes:
        worker: This worker's index.
        workers: How many workers there are.
        local_replicas: Replicas in this process.
        replicas: Replicas in all processes.
    """

    worker: int = 0
    workers: int = 1
    local_replicas: int = 1
    replicas: int = 1

    @property
    def first(self) -> int:
        """The number of this process's first replica."""
        return self.worker * self.local_replicas

    def cut(self, rows: Any) -> tuple[Any, Any]:
        """Where this worker's part of `rows` rows of a global batch begins and ends."""
        return (
            self.first * rows // self.replicas,
            (self.first + self.local_replicas) * rows // self.replicas,
        )


@dataclass
class Epoch:
    """One pass over the data: an iterator, and how many elements it has, None if unknown."""

    iterator: Any
    steps: int | None

    def __post_init__(self) -> None:
        self._next: Any = None

    def peek(self) -> bool:
        """Fetches one element ahead; says whether there was one. For unknown `steps`."""
        if self._next is None:
            optional = self.iterator.get_next_as_optional()
            if not bool(optional.has_value()):
                return False
            self._next = optional.get_value()
        return True

    def pop(self) -> Any:
        """The element fetched ahead, or else the next one."""
        element, self._next = self._next, None
        return next(self.iterator) if element is None else element


class Feed:
    """Batches for this process.

    Args:
        make: Gives the dataset of elements `(data, rows)` of an epoch, without its first so many.
        whole: Whether `rows` counts the global batch, so that every worker knows it.
        share: The replicas this process holds.
        steps: Steps per epoch if the user fixed them: the data then goes on over epochs.
        sample: Gives a dataset whose first element `sample` takes, if not the data itself.
        pass_over: Does to the data what reading it for a number of epochs does, where the order
            of an epoch depends on how often it was read before.
        end_epoch: Called after each epoch.

    Attributes:
        rows: Rows of the first element, once `sample` was called: the global batch if `whole`.
    """

    def __init__(
        self,
        make: Callable[[int, int], tf.data.Dataset],
        *,
        whole: bool,
        share: Share,
        steps: int | None = None,
        sample: Callable[[], tf.data.Dataset] | None = None,
        pass_over: Callable[[int], None] = lambda epochs: None,
        end_epoch: Callable[[], None] = lambda: None,
    ) -> None:
        self._make = make
        self._make_sample = sample or (lambda: make(0, 0))
        self._pass_over = pass_over
        self.end_epoch = end_epoch
        self.rows = 0
        self.whole = whole
        self.share = share
        self._steps = steps
        self._running: Epoch | None = None
        self._left: int | None = None
        self._first: tf.data.Dataset | None = None

    def sample(self) -> Any:
        """The first rows of the data (one at least), to build a model with.

        Raises:
            ConfigError: The data is empty.
        """
        self._first = self._make_sample()
        for data, rows in self._first.take(1):
            self.rows = int(rows)
            return data
        if self.whole:
            raise ConfigError("data: it has no batch; give at least one example")
        # This worker's shard is empty; the others' may not be.
        return _row_of_zeros(self._first.element_spec[0])

    @property
    def element_spec(self) -> Any:
        """The structure, shapes and types of the elements."""
        return (self._first or self._make(0, 0)).element_spec

    def restart(self) -> None:
        """Makes the next epoch begin at the beginning of the data."""
        self._running = None

    def resume(self, first_epoch: int, epoch: int, step: int) -> None:
        """Takes the data to where an earlier run had come, before `epoch` is called.

        Args:
            first_epoch: The epoch that run began with.
            epoch: The epoch it had come to.
            step: How many elements of that epoch it had taken.
        """
        if self._steps is None:
            self._pass_over(epoch - first_epoch)
        else:
            self._start_continued(first_epoch, (epoch - first_epoch) * self._steps + step)

    def epoch(
        self,
        number: int,
        exchange: Callable[[int], list[int]] | None = None,
        first: int = 0,
    ) -> Epoch:
        """Starts epoch `number`.

        Args:
            number: From 0; with a fixed number of steps the data goes on where it was.
            exchange: Gives every worker's value of a number, for shards of unequal length.
            first: The element to start at; `steps` of the epoch counts those before it too.
        """
        if self._steps is not None:
            return self._continued(number, first)
        dataset = self._make(number, first)
        steps = _cardinality(dataset)
        if steps is not None and steps >= 0:
            steps += first
        if exchange is not None and not self.whole and self.share.workers > 1:
            lengths = exchange(-1 if steps is None else steps)
            if min(lengths) < 0:
                steps = None
            elif steps is not None and steps < max(lengths):
                dataset = dataset.concatenate(_empty(dataset.element_spec).repeat())
                steps = max(lengths)
            if steps is None:
                # The end of each shard shows only when it is reached; until the last one is,
                # the workers go on together, some with nothing.
                dataset = dataset.map(lambda *e: (*e, True)).concatenate(
                    _empty(dataset.element_spec).map(lambda *e: (*e, False)).repeat()
                )
                return UnevenEpoch(iter(dataset), None, exchange)
        if steps is not None and steps < 0:
            raise ConfigError(
                "data: it repeats for ever; give steps_per_epoch (or steps) to say where it ends"
            )
        return Epoch(iter(dataset.prefetch(tf.data.AUTOTUNE)), steps)

    def _start_continued(self, number: int, first: int) -> None:
        dataset = self._make(number, first)
        length = _cardinality(dataset)
        self._left = None if length is None or length < 0 else length
        self._running = Epoch(
            iter(dataset.prefetch(tf.data.AUTOTUNE)),
            None if length is None else 0,
        )

    def _continued(self, number: int, first: int) -> Epoch:
        assert self._steps is not None
        if self._running is None or self._left == 0:
            self._start_continued(number, 0)
        assert self._running is not None
        wanted = self._steps - first
        if self._running.steps is None:
            return _Limited(self._running, wanted)
        steps = wanted if self._left is None else min(wanted, self._left)
        if self._left is not None:
            self._left -= steps
        return Epoch(self._running.iterator, first + steps)


class _Limited(Epoch):
    """At most so many elements of an epoch of unknown length, which others go on with."""

    def __init__(self, epoch: Epoch, limit: int) -> None:
        super().__init__(epoch.iterator, None)
        self._epoch = epoch
        self._limit = limit

    def peek(self) -> bool:
        return self._limit > 0 and self._epoch.peek()

    def pop(self) -> Any:
        self._limit -= 1
        return self._epoch.pop()


class UnevenEpoch(Epoch):
    """Shards of unknown lengths: the workers agree before each step whether one has data left."""

    def __init__(
        self, iterator: Any, steps: int | None, exchange: Callable[[int], list[int]]
    ) -> None:
        super().__init__(iterator, steps)
        self._exchange = exchange

    def peek(self) -> bool:
        """Fetches one element ahead; says whether any worker had one."""
        if self._next is None:
            *element, has_data = next(self.iterator)
            if not any(self._exchange(int(has_data))):
                return False
            self._next = tuple(element)
        return True


def rows_of(data: Any) -> tf.Tensor:
    """How many rows a batch has: a scalar int32, from its first tensor."""
    first = next(leaf for leaf in tf.nest.flatten(data) if leaf is not None)
    if isinstance(first, tf.RaggedTensor):
        return tf.cast(first.nrows(), tf.int32)
    if isinstance(first, tf.SparseTensor):
        return tf.cast(first.dense_shape[0], tf.int32)
    return tf.shape(first)[0]


def rows_between(data: Any, begin: Any, end: Any) -> Any:
    """Rows `begin` to `end` (exclusive) of every tensor of a batch."""

    def cut(leaf: Any) -> Any:
        if leaf is None:
            return None
        if isinstance(leaf, tf.SparseTensor):
            shape = tf.cast(leaf.dense_shape, tf.int64)
            start = tf.concat([[tf.cast(begin, tf.int64)], tf.zeros_like(shape[1:])], 0)
            size = tf.concat([[tf.cast(end - begin, tf.int64)], shape[1:]], 0)
            return tf.sparse.slice(leaf, start, size)
        return leaf[begin:end]

    return tf.nest.map_structure(cut, data)


def loosen(data: Any) -> Any:
    """The batch, traced as one of any number of rows, like the elements of a dataset.

    Keras counts a batch of known size otherwise in some means than one of unknown size.
    """
    if tf.executing_eagerly():
        return data

    def of_leaf(leaf: Any) -> Any:
        if not isinstance(leaf, tf.Tensor) or leaf.shape.rank in (None, 0):
            return leaf
        return tf.compat.v1.placeholder_with_default(leaf, [None, *leaf.shape[1:]])

    return tf.nest.map_structure(of_leaf, data)


def make_feed(
    x: Any,
    y: Any = None,
    sample_weight: Any = None,
    *,
    share: Share,
    batch_size: int | None = None,
    shuffle: bool = False,
    seed: int = 0,
    class_weight: dict[int, float] | None = None,
    steps: int | None = None,
) -> Feed:
    """Makes the feed of whatever Keras' `fit` would take.

    Args:
        x: A `tf.data.Dataset` of global batches; a function of `tf.distribute.InputContext`
            (and, if it takes them, of `epoch`, and of `first_batch`, the batch to start at) that
            gives this pipeline's dataset of batches; a `keras.utils.PyDataset` or a generator of
            global batches; or arrays.
        y: Targets, with arrays only.
        sample_weight: Weights, with arrays only.
        share: The replicas this process holds.
        batch_size: The global batch, with arrays only.
        shuffle: Whether to shuffle arrays anew in each epoch.
        seed: What the order of shuffled arrays depends on, with the epoch.
        class_weight: A weight for each class.
        steps: Steps per epoch, or None for all there are.

    Raises:
        ConfigError: The data is none of these, or an argument does not go with it.
    """
    arrays = False
    peek: Callable[[], tf.data.Dataset] | None = None
    pass_over: Callable[[int], None] = lambda epochs: None  # noqa: E731
    end_epoch: Callable[[], None] = lambda: None  # noqa: E731
    if isinstance(x, tf.data.Dataset):
        make, pass_over = _of_dataset(x)
    elif isinstance(x, keras.utils.PyDataset):
        make, pass_over = _of_py_dataset(x)
        end_epoch = x.on_epoch_end
    elif callable(x) and not hasattr(x, "__array__"):
        return _of_function(x, share, class_weight, steps)
    elif inspect.isgenerator(x) or (isinstance(x, Iterator) and not hasattr(x, "__array__")):
        make, peek = _of_generator(x)
    else:
        arrays = True
        make = _of_arrays(x, y, sample_weight, batch_size or _DEFAULT_BATCH, shuffle, seed)
    if not arrays:
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
        batches = _with_class_weight(make(epoch, first), class_weight)
        return batches.map(lambda *e: _own_part(_element(e), share))

    def sample() -> tf.data.Dataset:
        # Uncut: this worker's part of a small batch may have no rows.
        batches = _with_class_weight(peek() if peek is not None else make(0, 0), class_weight)
        return batches.map(lambda *e: _own_part(_element(e), Share()))

    return Feed(
        of_epoch,
        whole=True,
        share=share,
        steps=steps,
        sample=sample,
        pass_over=pass_over,
        end_epoch=end_epoch,
    )


def _own_part(data: Any, share: Share) -> tuple[Any, tf.Tensor]:
    rows = rows_of(data)
    if share.workers == 1:
        return data, rows
    return rows_between(data, *share.cut(rows)), rows


def _element(parts: tuple[Any, ...]) -> Any:
    """A dataset's element as Keras means it: a tuple's parts come as arguments of their own."""
    return parts if len(parts) > 1 or isinstance(parts[0], tuple) else parts[0]


def _of_function(
    function: Callable[..., tf.data.Dataset],
    share: Share,
    class_weight: dict[int, float] | None,
    steps: int | None,
) -> Feed:
    context = tf.distribute.InputContext(
        num_input_pipelines=share.workers,
        input_pipeline_id=share.worker,
        num_replicas_in_sync=share.replicas,
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
                "it is to give a tf.data.Dataset"
            )
        if first and "first_batch" not in takes:
            dataset = dataset.skip(first)
        dataset = _with_class_weight(dataset, class_weight)
        return dataset.map(lambda *e: (_element(e), rows_of(_element(e))))

    return Feed(make, whole=share.workers == 1, share=share, steps=steps)


def _of_arrays(
    x: Any, y: Any, sample_weight: Any, batch: int, shuffle: bool, seed: int
) -> Callable[[int, int], tf.data.Dataset]:
    parts: Any = (x,) if y is None else (x, y)
    if sample_weight is not None:
        parts = (x, y, sample_weight)
    parts = _tuples(parts)
    parts = tf.nest.map_structure(lambda a: a if tf.is_tensor(a) else np.asarray(a), parts)
    if any(a.ndim == 0 for a in tf.nest.flatten(parts)):
        raise ConfigError(
            "data: a list of numbers or a number is given; allowed: arrays with a row for each "
            "example (numpy.array(...))"
        )
    lengths = {int(a.shape[0]) for a in tf.nest.flatten(parts)}
    if len(lengths) != 1:
        raise ConfigError(
            f"data: the arrays have {' and '.join(map(str, sorted(lengths)))} rows; "
            "allowed: the same number in all"
        )
    (length,) = lengths
    tensors = tf.nest.map_structure(
        lambda a: tf.convert_to_tensor(a, tf.float32 if a.dtype == np.float64 else None), parts
    )

    def make(epoch: int, first: int) -> tf.data.Dataset:
        order = np.arange(length)
        if shuffle:
            order = np.random.default_rng((seed, epoch)).permutation(length)
        indices = tf.data.Dataset.from_tensor_slices(order[first * batch :]).batch(batch)
        return indices.map(
            lambda rows: tf.nest.map_structure(lambda t: tf.gather(t, rows), tensors)
        )

    return make


def _of_dataset(
    dataset: tf.data.Dataset,
) -> tuple[Callable[[int, int], tf.data.Dataset], Callable[[int], None]]:
    def make(epoch: int, first: int) -> tf.data.Dataset:
        return dataset.skip(first) if first else dataset

    def pass_over(epochs: int) -> None:
        # Each iterator of a dataset that reshuffles takes the next seed from it.
        for _ in range(epochs):
            iter(dataset)

    return make, pass_over


def _of_generator(
    generator: Iterator[Any],
) -> tuple[Callable[[int, int], tf.data.Dataset], Callable[[], tf.data.Dataset]]:
    """Gives datasets of what the generator has left, and one of its first element alone."""
    first = _tuples(next(generator))
    used = False

    def make(epoch: int, first_batch: int) -> tf.data.Dataset:
        nonlocal used
        rest = itertools.chain([] if used else [first], map(_tuples, generator))

        def mark() -> Iterator[Any]:
            nonlocal used
            for element in rest:
                used = True
                yield element

        dataset = tf.data.Dataset.from_generator(mark, output_signature=_signature(first))
        return dataset.skip(first_batch) if first_batch else dataset

    def peek() -> tf.data.Dataset:
        return tf.data.Dataset.from_generator(
            lambda: iter([first]), output_signature=_signature(first)
        )

    return make, peek


def _of_py_dataset(
    data: keras.utils.PyDataset,
) -> tuple[Callable[[int, int], tf.data.Dataset], Callable[[int], None]]:
    first = _tuples(data[0])
    length = data.num_batches

    def make(epoch: int, first_batch: int) -> tf.data.Dataset:
        def batches() -> Iterator[Any]:
            counter = itertools.count(first_batch)
            for index in counter if length is None else range(first_batch, length):
                yield _tuples(data[index])

        dataset = tf.data.Dataset.from_generator(batches, output_signature=_signature(first))
        if length is not None:
            left = max(0, length - first_batch)
            dataset = dataset.apply(tf.data.experimental.assert_cardinality(left))
        return dataset

    def pass_over(epochs: int) -> None:
        for _ in range(epochs):
            data.on_epoch_end()

    return make, pass_over


def _tuples(element: Any) -> Any:
    """The structure with tuples for lists, which tf.data takes for tensors."""
    if isinstance(element, dict):
        return {key: _tuples(value) for key, value in element.items()}
    if isinstance(element, (list, tuple)):
        return tuple(_tuples(value) for value in element)
    return element


def _signature(element: Any) -> Any:
    def spec(leaf: Any) -> tf.TensorSpec:
        array = np.asarray(leaf)
        dtype = np.float32 if array.dtype == np.float64 else array.dtype
        return tf.TensorSpec([None, *array.shape[1:]], dtype)

    return tf.nest.map_structure(spec, element)


def _with_class_weight(
    dataset: tf.data.Dataset, class_weight: dict[int, float] | None
) -> tf.data.Dataset:
    if class_weight is None:
        return dataset
    table = np.ones(max(class_weight) + 1, np.float32)
    for label, weight in class_weight.items():
        table[label] = weight

    def add(*parts: Any) -> Any:
        if len(parts) == 3:
            raise ConfigError(
                "class_weight: given beside sample_weight; allowed: one of them (multiply the "
                "class weights into the sample weights)"
            )
        if len(parts) != 2 or not tf.is_tensor(parts[1]):
            raise ConfigError("class_weight: allowed with elements (x, y) of one target only")
        x, y = parts
        labels = y
        if y.shape.rank is not None and y.shape.rank > 1:
            labels = tf.argmax(y, -1) if y.shape[-1] != 1 else tf.squeeze(y, -1)
        labels = tf.cast(tf.round(tf.cast(labels, tf.float32)), tf.int32)
        known = labels < len(table)
        weights = tf.gather(tf.constant(table), tf.where(known, labels, 0))
        return x, y, tf.where(known, weights, 1.0)

    # AutoGraph would wrap the errors into one of its own.
    return dataset.map(tf.autograph.experimental.do_not_convert(add))


def _cardinality(dataset: tf.data.Dataset) -> int | None:
    """The dataset's length; None if unknown, -1 if infinite."""
    length = int(dataset.cardinality())
    if length == tf.data.UNKNOWN_CARDINALITY:
        return None
    return -1 if length == tf.data.INFINITE_CARDINALITY else length


def _row_of_zeros(spec: Any) -> Any:
    def row(leaf: tf.TensorSpec) -> tf.Tensor:
        return tf.zeros([1, *(1 if d is None else d for d in leaf.shape[1:])], leaf.dtype)

    return tf.nest.map_structure(row, spec)


def _empty(spec: Any) -> tf.data.Dataset:
    """A dataset of one element without rows."""

    def zero(leaf: tf.TensorSpec) -> tf.Tensor:
        if leaf.shape.rank == 0:
            return tf.zeros([], leaf.dtype)
        rest = [1 if d is None else d for d in leaf.shape[1:]]
        return tf.zeros([0, *rest], leaf.dtype)

    element = tf.nest.map_structure(zero, spec)
    return tf.data.Dataset.from_tensors(element)

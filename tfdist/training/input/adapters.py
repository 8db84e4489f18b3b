"""Reads users' data through Keras' own adapters, on one device and on several replicas.

Only the order of shuffled data is tfdist's: it depends on a seed and the epoch alone, so that
training can resume in the same order, and all workers see the same batches. Arrays are read in
`arrays`, and what Python code makes in `generated`.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
from typing_extensions import override

from tfdist.collectives.layout import ReplicaLayout
from tfdist.data.iterators import iterator_of
from tfdist.errors import ConfigError
from tfdist.keras_internals import data_adapters
from tfdist.training.input.class_weights import with_class_weight

_plainly = tf.autograph.experimental.do_not_convert
_MANY = 2**62


class Batches:
    """The batches of some data, epoch by epoch.

    Args:
        adapter: Keras' adapter for the data.
        class_weight: A weight for each class, if it is not in the data yet.
    """

    def __init__(self, adapter: Any, class_weight: dict[int, float] | None = None) -> None:
        self._adapter = adapter
        self._class_weight = class_weight

    @functools.cached_property
    def dataset(self) -> tf.data.Dataset:
        """The batches of an epoch."""
        with one_line():
            return with_class_weight(self._read(), self._class_weight)

    @property
    def element_spec(self) -> Any:
        """The structure, shapes and types of the batches."""
        return self.dataset.element_spec

    @property
    def length(self) -> int | None:
        """The number of batches of an epoch; None if unknown or infinite."""
        return self._adapter.num_batches

    @property
    def rows(self) -> int | None:
        """Rows of the first batch; None if it must be read to know."""
        shape = tf.nest.flatten(self.element_spec)[0].shape
        return shape[0] if shape.rank else None

    def epoch(self, number: int, first: int) -> tf.data.Dataset:
        """Returns the batches of an epoch.

        Args:
            number: The number of the epoch.
            first: The batch to start at.
        """
        del number
        return self.dataset.skip(first) if first else self.dataset

    def first(self) -> tf.data.Dataset:
        """Returns a dataset that begins with the first batch; the next epoch has that batch too."""
        return self.epoch(0, 0)

    def read_again(self, times: int) -> None:
        """Begins to read the data a number of times, where its order depends on how often."""

    def pass_over(self, times: int) -> None:
        """Leaves out what a number of readings, by an earlier run, have read."""
        self.read_again(times)

    def begin_epoch(self) -> None:
        """Notifies the data of the beginning of an epoch."""
        self._adapter.on_epoch_begin()

    def end_epoch(self) -> None:
        """Notifies the data of the end of an epoch."""
        self._adapter.on_epoch_end()

    def _read(self) -> tf.data.Dataset:
        """Returns the batches as Keras' adapter reads them."""
        return self._adapter.get_tf_dataset()


class DatasetBatches(Batches):
    """Batches of a `tf.data.Dataset`, read as often as Keras does, so that shuffles give the same.

    A dataset that reshuffles gives another order each time an iterator of it is made. So the next
    epoch continues with the iterator that has read the first batch.
    """

    # An iterator, and the batch it has given.
    _ahead: tuple[Any, Any] | None = None

    @override
    def first(self) -> tf.data.Dataset:
        if self._ahead is None:
            iterator = iterator_of(self.dataset)
            self._ahead = iterator, iterator.get_next_as_optional()
        _, first = self._ahead
        if not bool(first.has_value()):
            return self.dataset.take(0)
        return tf.data.Dataset.from_tensors(first.get_value())

    @override
    def epoch(self, number: int, first: int) -> tf.data.Dataset:
        # The content depends on the number of readings only.
        dataset = self.dataset if self._ahead is None else self._continued()
        return dataset.skip(first) if first else dataset

    @override
    def read_again(self, times: int) -> None:
        for _ in range(times):
            iterator_of(self.dataset)

    @override
    def pass_over(self, times: int) -> None:
        if times and self._ahead is not None:
            self._ahead = None
            times -= 1
        self.read_again(times)

    def _continued(self) -> tf.data.Dataset:
        """Returns the batches of the iterator that has read the first one."""
        assert self._ahead is not None
        (iterator, first), self._ahead = self._ahead, None
        if not bool(first.has_value()):
            return self.dataset
        rest = (
            tf.data.Dataset.range(_MANY)
            .map(_plainly(lambda _: iterator.get_next_as_optional()))
            .take_while(_plainly(lambda optional: optional.has_value()))
            .map(_plainly(lambda optional: optional.get_value()))
        )
        whole = tf.data.Dataset.from_tensors(first.get_value()).concatenate(rest)
        length = int(self.dataset.cardinality())
        if length == tf.data.UNKNOWN_CARDINALITY:
            return whole
        return whole.apply(tf.data.experimental.assert_cardinality(length))


class FunctionBatches(Batches):
    """Batches of the datasets that a user's function makes.

    Args:
        function: A function of `tf.distribute.InputContext` and, if it takes them, of `epoch` and
            of `first_batch`, the batch to start at.
        layout: The replicas this process holds.
        class_weight: A weight for each class.
    """

    def __init__(
        self,
        function: Callable[..., tf.data.Dataset],
        layout: ReplicaLayout,
        class_weight: dict[int, float] | None,
    ) -> None:
        self._function = function
        super().__init__(data_adapters.data_adapter.DataAdapter(), class_weight)
        self._context = tf.distribute.InputContext(
            num_input_pipelines=layout.workers,
            input_pipeline_id=layout.worker,
            num_replicas_in_sync=layout.replicas,
        )
        self._length: int | None = None
        self._called = False
        try:
            parameters = set(inspect.signature(function).parameters)
        except (TypeError, ValueError):
            parameters = set()
        self._parameters = parameters & {"epoch", "first_batch"}

    @property
    @override
    def element_spec(self) -> Any:
        return self.epoch(0, 0).element_spec

    @property
    @override
    def length(self) -> int | None:
        if not self._called:
            self.epoch(0, 0)
        return self._length

    @property
    @override
    def rows(self) -> int | None:
        return None

    @override
    def epoch(self, number: int, first: int) -> tf.data.Dataset:
        given = {"epoch": number, "first_batch": first}
        dataset = self._function(self._context, **{name: given[name] for name in self._parameters})
        if not isinstance(dataset, tf.data.Dataset):
            raise ConfigError(
                f"data: the function of InputContext returned {type(dataset).__name__}; "
                "it must return a tf.data.Dataset"
            )
        if first and "first_batch" not in self._parameters:
            dataset = dataset.skip(first)
        left = int(dataset.cardinality())
        self._length = None if left < 0 else left + first
        self._called = True
        return with_class_weight(dataset, self._class_weight)


@contextlib.contextmanager
def one_line() -> Iterator[None]:
    """Converts the errors of Keras' adapters into a ConfigError of one line."""
    try:
        yield
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(f"data: {' '.join(str(error).split())}") from error

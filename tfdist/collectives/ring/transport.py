"""Implements the transport with a ring of workers, called through `tf.numpy_function`.

Gradients are copied once, into one piece of memory, which the ring sums in place; TensorFlow takes
the sums out of it without copying (see `buffers`). Calls of one graph are tied together by control
dependencies, so that every worker makes them in the order in which they were traced.

Over connections, gradients are summed in buckets, in the order in which a backward pass gives them.
Where that saves time, a bucket is sent while the backward pass continues; the sums are the same.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from typing_extensions import override

from tfdist.collectives.ring.background import Background
from tfdist.collectives.ring.buffers import Buffers
from tfdist.collectives.ring.ring import ALIGNMENT, Ring
from tfdist.collectives.transport import Transport
from tfdist.collectives.transport_names import BUCKET_BYTES
from tfdist.errors import ConfigError

_Arrays = list[np.ndarray]


class RingTransport(Transport):
    """Sums and gathers over workers with one replica each, on their CPUs.

    Args:
        ring: This worker's place among them.
        wire_type: bfloat16 or float16, to send float32 gradients in; None for float32.
        in_memory: Whether sums are made in memory that the workers have in common.
        overlaps: Whether gradients are sent while the backward pass continues.
    """

    loops = True

    def __init__(
        self,
        ring: Ring,
        *,
        wire_type: str | None = None,
        in_memory: bool = False,
        overlaps: bool = False,
    ) -> None:
        self.replicas = ring.size
        self._ring = ring
        self._wire = None if wire_type is None else np.dtype(wire_type)
        self._in_memory = in_memory
        common = ring.common if in_memory else None
        self._buffers = Buffers(None if common is None else common.allocate)
        self._layouts: dict[Any, _Layout] = {}
        self._background = Background() if overlaps else None
        self._pending: dict[int, tuple[Future[Any], _Arrays]] = {}
        self._tickets = itertools.count(1)
        self._latest: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()

    @override
    def sum(self, values: Sequence[Any]) -> list[Any]:
        return self._same_shapes(lambda *arrays: self._add_up(arrays, None), values)

    @override
    def sum_small(self, values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        return self.sum(values)

    @override
    def sum_gradients(self, gradients: Sequence[Any]) -> list[Any]:
        return self.sum_step([], gradients)[1]

    @override
    def sum_step(
        self, values: Sequence[tf.Tensor], gradients: Sequence[Any]
    ) -> tuple[list[tf.Tensor], list[Any]]:
        """Sums small tensors and gradients in one call, so that workers wait once a step."""
        summed = list(gradients)
        sparse = [i for i, value in enumerate(summed) if isinstance(value, tf.IndexedSlices)]
        dense = [i for i, value in enumerate(summed) if value is not None and i not in sparse]
        small = [tf.convert_to_tensor(value) for value in values]
        buckets = self._buckets([summed[i] for i in dense])
        if self._background is not None and not tf.executing_eagerly():
            total, sums = self._overlapped(small, [[summed[dense[i]] for i in b] for b in buckets])
        else:
            total, sums = self._together(small, [[summed[dense[i]] for i in b] for b in buckets])
        for bucket, of_bucket in zip(buckets, sums, strict=True):
            for i, value in zip(bucket, of_bucket, strict=True):
                summed[dense[i]] = value
        parts = self.gather([(summed[i].values, summed[i].indices) for i in sparse])
        for i, (rows, indices) in zip(sparse, parts, strict=True):
            summed[i] = tf.IndexedSlices(rows, indices, summed[i].dense_shape)
        return total, summed

    def _together(
        self, values: list[tf.Tensor], buckets: list[list[tf.Tensor]]
    ) -> tuple[list[tf.Tensor], list[list[tf.Tensor]]]:
        """Sums buckets of gradients, then small tensors, in one call."""
        sizes = [len(bucket) for bucket in buckets]

        def add_up(*arrays: Any) -> _Arrays:
            rest = iter(arrays[len(values) :])
            sums = [self._add_up(list(itertools.islice(rest, n)), self._wire) for n in sizes]
            return [*self._add_up(arrays[: len(values)], None), *itertools.chain(*sums)]

        total = iter(self._same_shapes(add_up, [*values, *itertools.chain(*buckets)]))
        small = list(itertools.islice(total, len(values)))
        return small, [list(itertools.islice(total, n)) for n in sizes]

    def _overlapped(
        self, values: list[tf.Tensor], buckets: list[list[tf.Tensor]]
    ) -> tuple[list[tf.Tensor], list[list[tf.Tensor]]]:
        """Begins to sum each bucket when its gradients are computed; waits when all have begun."""
        groups = [*buckets, values]
        begun = []
        for number, group in enumerate(groups):
            wire = self._wire if number < len(buckets) else None

            def begin(*arrays: Any, wire: Any = wire) -> _Arrays:
                return [np.array(self._begin(arrays, wire))]

            begun.append(self._call(begin, group, [[]], [tf.int64]) if group else [])
        sums = []
        # A call that waits holds a thread: none may before the backward pass is over.
        with tf.control_dependencies([ticket for tickets in begun for ticket in tickets]):
            for group, ticket in zip(groups, begun, strict=True):
                shapes, types = [t.shape for t in group], [t.dtype for t in group]
                sums.append(self._call(self._end, ticket, shapes, types))
        return sums[-1], sums[:-1]

    def _buckets(self, tensors: list[tf.Tensor]) -> list[list[int]]:
        """Returns the places of tensors that are summed together, from the last to the first."""
        buckets: list[list[int]] = []
        room = 0
        for place in reversed(range(len(tensors))):
            size = (tensors[place].shape.num_elements() or 0) * tensors[place].dtype.size
            # In common memory nothing is sent, so there is nothing to divide.
            if not buckets or (room < size and not self._in_memory):
                buckets.append([])
                room = BUCKET_BYTES
            buckets[-1].append(place)
            room -= size
        return buckets

    @override
    def gather(self, structure: Any) -> Any:
        leaves = tf.nest.flatten(structure)
        present = [i for i, leaf in enumerate(leaves) if leaf is not None]
        values = [tf.convert_to_tensor(leaves[i]) for i in present]
        for value in values:
            if value.dtype in (tf.string, tf.variant, tf.resource):
                raise ConfigError(
                    f"gather: tensors of type {value.dtype.name} are given, which cannot be sent "
                    "between workers; allowed: numbers and booleans; give the model numbers"
                )
        shapes = [tf.TensorShape([None]).concatenate(value.shape[1:]) for value in values]
        gathered = self._call(self._put_together, values, shapes)
        for i, value in zip(present, gathered, strict=True):
            leaves[i] = value
        return tf.nest.pack_sequence_as(structure, leaves)

    @override
    def broadcast(self, values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        return self._same_shapes(self._spread, values)

    def _same_shapes(self, function: Callable[..., _Arrays], values: Sequence[Any]) -> list[Any]:
        tensors = [tf.convert_to_tensor(value) for value in values]
        return self._call(function, tensors, [tensor.shape for tensor in tensors])

    def _call(
        self,
        function: Callable[..., _Arrays],
        values: list[Any],
        shapes: list[Any],
        types: list[tf.DType] | None = None,
    ) -> list[Any]:
        """Calls a function of arrays with tensors, after all earlier such calls of the graph.

        Args:
            function: The function.
            values: The tensors.
            shapes: The shapes of the results.
            types: Their types; those of the tensors if None.
        """
        if not values:
            return []
        if tf.executing_eagerly():
            return [tf.convert_to_tensor(r) for r in function(*(v.numpy() for v in values))]
        graph = tf.compat.v1.get_default_graph()
        latest = self._latest.get(graph, _nothing)()
        with tf.control_dependencies([] if latest is None else [latest]):
            results = tf.numpy_function(function, values, types or [v.dtype for v in values])
        self._latest[graph] = weakref.ref(results[0].op)
        for result, shape in zip(results, shapes, strict=True):
            result.set_shape(shape)
        return list(results)

    # The functions below run in the step, on arrays whose memory is TensorFlow's.

    def _add_up(self, arrays: Sequence[Any], wire: np.dtype[Any] | None) -> _Arrays:
        views, reduce = self._filled(arrays, wire)
        self._in_order(reduce)
        return views

    def _begin(self, arrays: Sequence[Any], wire: np.dtype[Any] | None) -> int:
        """Begins to add up; returns a number to ask for the sums with."""
        assert self._background is not None
        views, reduce = self._filled(arrays, wire)
        ticket = next(self._tickets)
        self._pending[ticket] = (self._background.submit(reduce), views)
        return ticket

    def _end(self, ticket: Any) -> _Arrays:
        """Waits for sums."""
        future, views = self._pending.pop(int(ticket))
        future.result()
        return views

    def _filled(
        self, arrays: Sequence[Any], wire: np.dtype[Any] | None
    ) -> tuple[_Arrays, Callable[[], None]]:
        """Copies arrays; returns the copies, and a function that replaces them by sums."""
        arrays = [np.asarray(array) for array in arrays]
        layout = self._layout(arrays)
        memory = self._buffers.take(layout.size)
        views = layout.fill(memory, arrays)

        def reduce() -> None:
            for dtype, start, stop in layout.runs:
                run = memory[start:stop].view(dtype)
                run_wire = wire if dtype == np.float32 else None
                self._ring.all_reduce(run, run_wire, in_memory=self._in_memory)

        return views, reduce

    def _in_order(self, function: Callable[[], Any]) -> Any:
        """Collectives a function after all that have begun."""
        return (
            function() if self._background is None else self._background.submit(function).result()
        )

    def _spread(self, *given: Any) -> _Arrays:
        arrays = [np.asarray(array) for array in given]
        layout = self._layout(arrays)
        memory = self._buffers.take(layout.size)
        views = layout.fill(memory, arrays)
        self._in_order(lambda: self._ring.broadcast(memory))
        return views

    def _put_together(self, *given: Any) -> _Arrays:
        """Concatenates all workers' arrays; each sends its numbers of rows, then its arrays."""
        arrays = [np.asarray(array) for array in given]
        rows = np.array([len(array) for array in arrays], np.int64)
        contents = [np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in arrays]
        message = np.concatenate([rows.view(np.uint8), *contents])
        messages = self._in_order(lambda: self._ring.all_gather(message))
        parts: list[_Arrays] = [[] for _ in arrays]
        for message in messages:
            at = rows.nbytes
            for i, count in enumerate(np.frombuffer(message[:at].tobytes(), np.int64)):
                shape = (int(count), *arrays[i].shape[1:])
                size = int(np.prod(shape)) * arrays[i].itemsize
                piece = np.frombuffer(message[at : at + size].tobytes(), arrays[i].dtype)
                parts[i].append(piece.reshape(shape))
                at += size
        return [np.concatenate(pieces) for pieces in parts]

    def _layout(self, arrays: _Arrays) -> _Layout:
        key = tuple((array.shape, array.dtype) for array in arrays)
        if key not in self._layouts:
            self._layouts[key] = _Layout.of(arrays)
        return self._layouts[key]


def _nothing() -> None:
    """Returns None: a weak reference to no operation."""


class _Layout(NamedTuple):
    """The layout of arrays in one piece of memory: those of a type together, each aligned.

    Attributes:
        size: Bytes in all.
        places: The begin and end of each array, and the next aligned position.
        runs: Each type, and the begin and end of its arrays.
    """

    size: int
    places: list[tuple[int, int, int]]
    runs: list[tuple[np.dtype[Any], int, int]]

    @classmethod
    def of(cls, arrays: _Arrays) -> _Layout:
        places: list[tuple[int, int, int]] = [(0, 0, 0)] * len(arrays)
        runs = []
        at = 0
        for dtype in dict.fromkeys(array.dtype for array in arrays):
            start = at
            for i, array in enumerate(arrays):
                if array.dtype == dtype:
                    end = at + array.nbytes
                    after = -(-end // ALIGNMENT) * ALIGNMENT
                    places[i] = (at, end, after)
                    at = after
            runs.append((dtype, start, at))
        return cls(at, places, runs)

    def fill(self, memory: np.ndarray, arrays: _Arrays) -> _Arrays:
        """Copies the arrays to their places; returns views of those, in the arrays' shapes."""
        views = []
        for (start, end, after), array in zip(self.places, arrays, strict=True):
            view = memory[start:end].view(array.dtype).reshape(array.shape)
            np.copyto(view, array)
            # The gaps are summed too: zeros, as denormal numbers would be slow.
            memory[end:after] = 0
            views.append(view)
        return views

"""Makes Keras' losses add up over replicas, wherever they are called in a step.

Each slice's loss is weighted by its share of the batch. That is right for a mean over examples.
A loss that Keras divides by something else than the slice's rows (nothing, with the reduction
"sum"; the valid places of a mask; the sum of the sample weights) gets a factor here, so that
the weighted losses add up to what one device has for the batch. A loss that compares examples
with each other is computed on the outputs of all replicas together.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from tfdist.collectives.transport import Transport
from tfdist.errors import ConfigError
from tfdist.keras_internals import LOSS_MODULE, added_losses_replaced, attach_mask, mask_of
from tfdist.training.step.patches.row_sums import NO_SUMS, RowSums

_NONE = (None, "none")

# Returns whether a loss, given targets and predictions, compares the examples of a batch.
Compares = Callable[[keras.Loss, Any, Any], bool]


class LossSums(contextlib.AbstractContextManager["LossSums"]):
    """Scales Keras' losses while entered, so that they add up over replicas.

    Where several batches make an update, it rejects losses whose gradients do not add up over them.

    Args:
        model: A compiled model.
        transport: The transport that sums over the replicas.
        accumulates: Whether several batches make an update.
        compares: Returns whether a loss compares the examples of a batch.
    """

    def __init__(
        self, model: keras.Model, transport: Transport, *, accumulates: bool, compares: Compares
    ) -> None:
        self._model = model
        self._transport = transport
        self._accumulates = accumulates
        self._compares = compares
        self._of_thread = threading.local()
        self._needed = transport.replicas > 1 or accumulates

    def __enter__(self) -> LossSums:
        if self._needed:
            self._call = keras.Loss.__call__
            self._reduce = LOSS_MODULE.reduce_weighted_values
            self._patches = contextlib.ExitStack()
            self._patches.enter_context(_losses_replaced(self._of_loss, self._reduced))
            self._patches.enter_context(added_losses_replaced(self._model, self._added))
            gradient = self._gradient = tf.GradientTape.gradient
            differentiated = self._differentiated

            def of_tape(tape: Any, target: Any, sources: Any, *args: Any, **named: Any) -> Any:
                if not args and "output_gradients" not in named:
                    named |= differentiated(target, sources)
                return gradient(tape, target, sources, *args, **named)

            tf.GradientTape.gradient = of_tape
        return self

    def __exit__(self, *_: object) -> None:
        if self._needed:
            self._patches.close()
            tf.GradientTape.gradient = self._gradient

    @contextlib.contextmanager
    def of(
        self, data: Any, count: tf.Tensor, *, training: bool, sums: RowSums = NO_SUMS
    ) -> Iterator[None]:
        """Applies to the losses that this replica computes on a slice within the block.

        Args:
            data: The slice.
            count: The number of its rows; 0 where `data` is a replacement.
            training: Whether the model trains on it.
            sums: What the user's code sums over rows.
        """
        self._of_thread.added = 0
        self._of_thread.sums = sums
        self._of_thread.data = data
        self._of_thread.count = count
        self._of_thread.training = training
        self._of_thread.rows = None
        self._of_thread.loss = None
        self._of_thread.together = False
        self._of_thread.is_within = True
        try:
            yield
        finally:
            self._of_thread.is_within = False

    def whole_per_slice(self) -> tf.Tensor:
        """Returns the global batch's rows over the latest slice's; 0 for a slice without rows."""
        if self._of_thread.rows is None:
            (self._of_thread.rows,) = self._transport.sum_small([self._own()])
        return tf.math.divide_no_nan(self._of_thread.rows, self._own())

    def is_by_example(self, loss: Any) -> bool:
        """Returns whether a loss has a value per example: its first dimension is the slice's."""
        shape: Any = getattr(loss, "shape", ())
        if len(shape) == 0:
            return False
        if shape[0] is None:
            return True
        return shape[0] in {leaf.shape[:1][0] for leaf in _batched(self._of_thread.data)}

    def refuse_accumulation(self, name: str, what: str) -> None:
        """Rejects a loss whose gradients over several batches do not add up to a larger batch's.

        Raises:
            ConfigError: Several batches make an update.
        """
        if self._accumulates and self._of_thread.training:
            raise ConfigError(
                f"Trainer(accumulate_steps): {name} {what}, which cannot be computed from the "
                "batches of an update one by one; use a mean over examples, or a larger batch "
                "without accumulate_steps"
            )

    def _is_within_step(self) -> bool:
        """Returns whether this thread is a replica that computes on a slice."""
        return getattr(self._of_thread, "is_within", False)

    def _own(self) -> tf.Tensor:
        return tf.cast(self._of_thread.count, tf.float32)

    def _of_loss(
        self, loss: keras.Loss, y_true: Any, y_pred: Any, sample_weight: Any = None
    ) -> Any:
        """Replaces `keras.Loss.__call__` in a step."""
        if not self._is_within_step():
            return self._call(loss, y_true, y_pred, sample_weight)
        self._of_thread.loss = loss
        if self._compares(loss, y_true, y_pred):
            return self._on_all(loss, y_true, y_pred, sample_weight)
        self._of_thread.together = False
        self._of_thread.scalar = False
        value = self._call(loss, y_true, y_pred, sample_weight)
        if self._of_thread.scalar:
            # The user's loss returns one number for the batch: its reduction is not known.
            return self._on_all(loss, y_true, y_pred, sample_weight)
        return value

    def _on_all(self, loss: keras.Loss, y_true: Any, y_pred: Any, sample_weight: Any) -> Any:
        """Computes the loss on all replicas' outputs together: the same on each of them."""
        self.refuse_accumulation(f"loss {loss.name!r}", "compares examples with each other")
        if self._transport.replicas == 1:
            return self._call(loss, y_true, y_pred, sample_weight)
        masks = [mask_of(output) for output in tf.nest.flatten(y_pred)]
        y_true, y_pred, sample_weight, masks = self._gathered(
            (y_true, y_pred, sample_weight, masks)
        )
        for output, mask in zip(tf.nest.flatten(y_pred), masks, strict=True):
            attach_mask(output, mask)
        self._of_thread.together = True
        try:
            return self._call(loss, y_true, y_pred, sample_weight)
        finally:
            self._of_thread.together = False

    def _gathered(self, structure: Any) -> Any:
        """Gathers all replicas' rows; gradients flow to this replica's own rows only."""
        count = self._of_thread.count
        first = tf.nest.flatten(structure)[0]
        own = tf.where(count > 0, tf.shape(first)[0], 0)
        replica = _replica_number()
        counts = tf.one_hot(replica, self._transport.replicas, on_value=own, off_value=0)
        (counts,) = self._transport.sum_small([counts])
        begin = tf.reduce_sum(counts[:replica])
        factor = self.whole_per_slice()

        def of_leaf(leaf: Any) -> Any:
            if leaf is None or not getattr(leaf, "shape", ()):
                return leaf
            leaf = tf.convert_to_tensor(leaf)
            if not leaf.dtype.is_floating:
                return self._transport.gather(leaf[:own])

            @tf.custom_gradient
            def together(value: tf.Tensor) -> tuple[tf.Tensor, Callable[..., tf.Tensor]]:
                rows = tf.shape(value)[0]

                def back(upstream: tf.Tensor) -> tf.Tensor:
                    part = upstream[begin : begin + own] * tf.cast(factor, upstream.dtype)
                    padding = [[0, rows - own], *[[0, 0]] * (part.shape.rank - 1)]
                    return tf.pad(part, padding)

                gathered = self._transport.gather(tf.stop_gradient(value)[:own])
                return tf.stop_gradient(gathered), back

            return together(leaf)

        return tf.nest.map_structure(of_leaf, structure)

    def _reduced(
        self, values: Any, sample_weight: Any, mask: Any, reduction: str | None, dtype: Any
    ) -> Any:
        """Replaces `reduce_weighted_values` of Keras' losses in a step."""
        reduce = functools.partial(self._reduce, reduction=reduction, dtype=dtype)
        if not self._is_within_step() or self._of_thread.together:
            return reduce(values, sample_weight, mask)
        if len(values.shape) == 0:
            self._of_thread.scalar = self._transport.replicas > 1 or self._accumulates
            return reduce(values, sample_weight, mask)
        name = f"loss {getattr(self._of_thread.loss, 'name', '')!r}"
        weighs = reduction == "mean_with_sample_weight"
        if reduction == "sum":
            self.refuse_accumulation(name, "is a sum")
        elif mask is not None and reduction not in _NONE:
            self.refuse_accumulation(name, "is a mean over a mask's valid places")
        elif weighs and sample_weight is not None:
            self.refuse_accumulation(name, "is a mean by sample weights")
        if self._transport.replicas == 1 or reduction in _NONE:
            return reduce(values, sample_weight, mask)
        if reduction == "sum":
            factor = self.whole_per_slice()
        elif weighs and (sample_weight is not None or mask is not None):
            weights = LOSS_MODULE.apply_mask(sample_weight, mask, values.dtype, reduction)
            factor = self._share(tf.reduce_sum(tf.cast(weights, tf.float32)))
            return self._scaled(reduce(values, sample_weight, mask), factor)
        elif mask is not None:
            factor = self._share(tf.reduce_sum(tf.cast(mask, tf.float32)))
        else:
            return reduce(values, sample_weight, mask)
        if sample_weight is None:
            return reduce(self._scaled(values, factor), None, mask)
        return reduce(values, self._scaled(sample_weight, factor), mask)

    def _share(self, valid: tf.Tensor) -> tf.Tensor:
        """Returns the factor of a loss that is divided by `valid` instead of the slice's rows."""
        own = self._own()
        valid = tf.where(self._of_thread.count > 0, valid, 0.0)
        rows, all_valid = self._transport.sum_small([own, valid])
        share = tf.math.divide_no_nan(valid, all_valid)
        return share * tf.math.divide_no_nan(rows, own)

    def _scaled(self, values: Any, factor: tf.Tensor) -> tf.Tensor:
        values = tf.convert_to_tensor(values)
        if not values.dtype.is_floating:
            values = tf.cast(values, keras.config.floatx())
        return values * tf.cast(factor, values.dtype)

    def _differentiated(self, target: Any, sources: Any) -> dict[str, Any]:
        """Returns arguments for `GradientTape.gradient`, which sums over a vector's elements."""
        targets = tf.nest.flatten(target)
        by_weights = any(
            isinstance(v, (keras.Variable, tf.Variable)) for v in tf.nest.flatten(sources)
        )
        if not self._is_within_step() or not by_weights:
            return {}
        if not any(self.is_by_example(value) for value in targets):
            return {}
        return {"output_gradients": tf.nest.map_structure(self._upstream, target)}

    def _upstream(self, target: Any) -> tf.Tensor:
        ones = tf.ones_like(target)
        return self.summed(ones, "the gradient of a loss") if self.is_by_example(target) else ones

    def summed(self, values: Any, name: str) -> Any:
        """Scales values per example whose sum is the loss; rejects them if accumulating."""
        self.refuse_accumulation(name, "has a value for each example, which are summed")
        if self._transport.replicas == 1:
            return values
        return values * tf.cast(self.whole_per_slice(), values.dtype)

    def _added(self, total: Any, loss: Any) -> Any:
        """Scales the values given to `add_loss` that are sums, as Keras' of examples' values."""
        if not self._is_within_step():
            return total
        number = self._of_thread.added
        self._of_thread.added += 1
        if not self.is_by_example(loss) and number not in self._of_thread.sums.added:
            return total
        return self.summed(total, "add_loss")


@contextlib.contextmanager
def _losses_replaced(call: Callable[..., Any], reduce: Callable[..., Any]) -> Iterator[None]:
    """Replaces how Keras computes a loss, and how it reduces the values of the examples."""
    kept_call, kept_reduce = keras.Loss.__call__, LOSS_MODULE.reduce_weighted_values

    def reduced(
        values: Any,
        sample_weight: Any = None,
        mask: Any = None,
        reduction: str | None = "sum_over_batch_size",
        dtype: Any = None,
    ) -> Any:
        return reduce(values, sample_weight, mask, reduction, dtype)

    # A function, not a bound method, gets the loss as its first argument.
    keras.Loss.__call__ = lambda loss, *args, **named: call(loss, *args, **named)
    LOSS_MODULE.reduce_weighted_values = reduced
    try:
        yield
    finally:
        keras.Loss.__call__ = kept_call
        LOSS_MODULE.reduce_weighted_values = kept_reduce


def _batched(data: Any) -> list[Any]:
    """Returns the tensors of a slice's data that have rows."""
    return [leaf for leaf in tf.nest.flatten(data) if len(getattr(leaf, "shape", ()))]


def _replica_number() -> tf.Tensor:
    context = tf.distribute.get_replica_context()
    return tf.cast(context.replica_id_in_sync_group, tf.int32)

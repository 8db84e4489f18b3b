"""Takes elements of data inside a graph, and measures how long steps wait for them."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfdist.collectives.layout import own_variable

# Below this share of the time, or in less time, waiting is not worth a line.
_SHARE = 0.2
_SECONDS = 5.0


class Intake:
    """Where the steps of a loop get their elements.

    Args:
        fed_path: A file to write whenever an element has come; "" for none.
    """

    def __init__(self, fed_path: str = "") -> None:
        self._fed_path = fed_path
        with tf.init_scope(), tf.device("CPU:0"):
            self._waited = own_variable(tf.zeros([], tf.float64))

    def take(self, iterator: Any) -> Any:
        """Returns the next element of an iterator; for a graph."""
        before = tf.timestamp()
        with tf.control_dependencies([before]):
            element = iterator.get_next()
        with tf.control_dependencies(_tensors(element)), tf.device("CPU:0"):
            self._waited.assign_add(tf.timestamp() - before)
        return self.taken(element)

    def taken(self, element: Any) -> Any:
        """Returns an element that was taken already, and shows that it has come."""
        if self._fed_path:
            with tf.control_dependencies(_tensors(element)):
                tf.io.write_file(self._fed_path, "")
        return element

    def seconds(self) -> float:
        """Returns how long steps have waited for elements since this was asked last."""
        waited = float(self._waited.numpy())
        self._waited.assign(0.0)
        return waited


_ADVICE = (
    "let its `map` have num_parallel_calls=tf.data.AUTOTUNE, `cache` what fits, and `prefetch` at "
    "its end"
)


def _tensors(element: Any) -> list[Any]:
    leaves = tf.nest.flatten(element, expand_composites=True)
    return [leaf for leaf in leaves if tf.is_tensor(leaf)]


def of_waiting(waited: float, total: float, *, reads_all: bool, advice: str | None = None) -> str:
    """Returns a warning for an epoch whose steps waited for data; "" if they hardly did.

    Args:
        waited: Seconds of waiting.
        total: Seconds of all steps.
        reads_all: Whether each worker reads all of the data and takes its part of each batch.
        advice: What to do about data that is slow; None for what helps a user's own dataset.
    """
    if waited < max(_SECONDS, _SHARE * total):
        return ""
    reason = (
        "every worker reads the whole data set and takes its part of each batch; give a function "
        "of tf.distribute.InputContext that reads this worker's part"
        if reads_all
        else f"the data set is slower than the steps; {advice or _ADVICE}"
    )
    share = 100 * waited / total
    return f"data: steps waited {waited:.1f} of {total:.1f} s for it ({share:.0f} %): {reason}"

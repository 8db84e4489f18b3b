"""Makes the feeds of a `Trainer` for training and validation data."""

from __future__ import annotations

import collections
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist.collectives.process_group import ProcessGroup
from tfdist.errors import ConfigError
from tfdist.strategy.kinds import kind_of
from tfdist.training.input.check import check_batched, check_given, check_kind
from tfdist.training.input.feed import Feed
from tfdist.training.input.make_feed import make_feed, split_validation
from tfdist.validation import quote, whole_number


class Feeds:
    """Makes feeds of the data that users pass to a `Trainer`.

    Args:
        model: The model that is trained.
        group: The processes that train it.
        of_keras: Whether the data is fed as by Keras, to one device.
        steps_a_call: Returns the number of steps that Keras makes per call.
        look_at: Called with all data, to reject data that each worker would read in another order.

    Attributes:
        sources: The latest data with an attribute `file_paths`.
    """

    def __init__(
        self,
        model: keras.Model,
        group: ProcessGroup,
        *,
        of_keras: bool,
        steps_a_call: Callable[[], int],
        look_at: Callable[[Any], None] = lambda data: None,
    ) -> None:
        self._model = model
        self._group = group
        self.sources: collections.deque[Any] = collections.deque(maxlen=2)
        self._of_keras = of_keras
        # Workers of parameter servers then pick rows; the chief sends no data.
        self._hands_out_rows = not kind_of(model.distribute_strategy).is_synchronous
        self._steps_a_call = steps_a_call
        self._look_at = look_at

    def draw_seed(self, x: Any) -> int:
        """Returns the seed for the order of shuffled arrays, drawn by the chief."""
        if isinstance(x, tf.data.Dataset) or callable(x):
            return 0
        # NumPy's generator is what keras.utils.set_random_seed seeds.
        return self._group.exchange(int(np.random.randint(2**31 - 1)))[0]

    def make(
        self, x: Any, y: Any, sample_weight: Any, *, batch_size: int | None, **more: Any
    ) -> Feed:
        """Makes the feed of any data; see `make_feed`."""
        check_given(x, y)
        if batch_size:
            whole_number("batch_size", batch_size)
        class_weight = more.get("class_weight")
        if class_weight is not None and not isinstance(class_weight, Mapping):
            raise ConfigError(
                f"class_weight: {quote(class_weight)} is given; allowed: a dict of a weight for "
                "each class, such as {0: 1.0, 1: 5.0}"
            )
        self._look_at(x)
        if hasattr(x, "file_paths"):
            self.sources.append(x)
        if isinstance(x, tf.data.Dataset):
            check_batched(x, self._model, divides=not self._of_keras)
        more["steps"] = more.get("steps") or None  # Keras takes 0 for all of them.
        most = keras.config.max_steps_per_epoch()
        if most:
            more["steps"] = min(more["steps"] or most, most)
        if self._of_keras:
            more["steps_a_call"] = self._steps_a_call()
        else:
            check_kind(x)
            more |= {"layout": self._group.layout, "hands_out_rows": self._hands_out_rows}
        return make_feed(x, y, sample_weight, batch_size=batch_size, **more)

    def validation(self, data: Any, batch_size: int | None, steps: int | None) -> Feed | None:
        """Makes the feed of the argument `validation_data`; None for None."""
        if data is None:
            return None
        if isinstance(data, (tuple, list)):
            x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(tuple(data))
            return self.make(x, y, sample_weight, batch_size=batch_size, steps=steps)
        batch_size = batch_size if self._of_keras else None
        return self.make(data, None, None, batch_size=batch_size, steps=steps)

    def most_epochs(self, epochs: int) -> int:
        """Returns `epochs`, or the maximum that Keras is configured to run if that is smaller.

        Raises:
            ConfigError: It is not a whole number.
        """
        try:
            operator.index(epochs)  # Keras takes -1 for none.
        except TypeError:
            raise ConfigError(
                f"epochs: {quote(epochs)} is given; allowed: a whole number"
            ) from None
        return min(epochs, keras.config.max_epochs() or epochs)

    def hold_out(
        self, arrays: tuple[Any, Any, Any], fraction: float, given: Any
    ) -> tuple[Any, Any]:
        """Splits arrays into training and validation data.

        Args:
            arrays: x, y and sample_weight.
            fraction: The fraction to validate on; 0 for none.
            given: The argument `validation_data`, which is used instead of the split if given.
        """
        if not fraction or given is not None:
            return arrays, given
        return split_validation(*arrays, fraction)

    def global_batch(self, feed: Feed, *, needed: bool) -> int:
        """Returns the rows of the global batch; 0 if not needed and only known by reading data."""
        if not feed.whole:
            return sum(self._group.exchange(feed.rows))
        return feed.rows if needed or not self._of_keras else 0


def validation_is_due(epoch: int, frequency: int | Sequence[int]) -> bool:
    """Returns whether `validation_freq` asks for validation after this epoch."""
    if isinstance(frequency, int):
        return (epoch + 1) % frequency == 0
    return epoch + 1 in frequency

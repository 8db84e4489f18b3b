"""The feeds of a `Trainer`: of what is trained on, and of what is validated on."""

from __future__ import annotations

import collections
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras.src.backend import config

from tfdist.collectives.process_group import ProcessGroup
from tfdist.training.input.adapters import make_feed, split_arrays
from tfdist.training.input.check import check_batched, check_given, check_kind
from tfdist.training.input.feed import AnyFeed
from tfdist.training.input.keras_adapters import make_keras_feed, split_validation


class Feeds:
    """Makes feeds of what users hand over as data.

    Args:
        model: The model that is trained.
        group: The processes that train it.
        of_keras: Whether Keras' own adapters read the data, for one device.
        steps_a_call: Says how many steps Keras makes in a call.
        look_at: Is shown all data, to refuse what each worker would read in another order.

    Attributes:
        sources: The latest data that knows the files it reads.
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
        self._steps_a_call = steps_a_call
        self._look_at = look_at

    def draw_seed(self, x: Any) -> int:
        """What the order of shuffled arrays is to depend on; drawn by the chief."""
        if isinstance(x, tf.data.Dataset) or callable(x):
            return 0
        # NumPy's generator is what keras.utils.set_random_seed seeds.
        return self._group.exchange(int(np.random.randint(2**31 - 1)))[0]

    def feed(
        self, x: Any, y: Any, sample_weight: Any, *, batch_size: int | None, **more: Any
    ) -> AnyFeed:
        """The feed of data; see `make_feed` and `make_keras_feed`."""
        check_given(x, y)
        self._look_at(x)
        if hasattr(x, "file_paths"):
            self.sources.append(x)
        if isinstance(x, tf.data.Dataset):
            check_batched(x, self._model, divides=not self._of_keras)
        if self._of_keras:
            more["steps_a_call"] = self._steps_a_call()
            return make_keras_feed(x, y, sample_weight, batch_size=batch_size, **more)
        check_kind(x)
        most = config.max_steps_per_epoch()
        if most:
            more["steps"] = min(more.get("steps") or most, most)
        layout = self._group.layout
        return make_feed(x, y, sample_weight, layout=layout, batch_size=batch_size, **more)

    def validation(self, data: Any, batch_size: int | None, steps: int | None) -> AnyFeed:
        """The feed of what was given as `validation_data`."""
        if isinstance(data, (tuple, list)):
            x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(tuple(data))
            return self.feed(x, y, sample_weight, batch_size=batch_size, steps=steps)
        batch_size = batch_size if self._of_keras else None
        return self.feed(data, None, None, batch_size=batch_size, steps=steps)

    def most_epochs(self, epochs: int) -> int:
        """`epochs`, or as many as Keras is told to run at most."""
        return min(epochs, config.max_epochs() or epochs)

    def split(self, arrays: tuple[Any, Any, Any], fraction: float, given: Any) -> tuple[Any, Any]:
        """Parts arrays into what to train on and what to validate on.

        Args:
            arrays: x, y and sample_weight.
            fraction: What part of them to validate on; 0 for none.
            given: What was given to validate on, which comes first.
        """
        if not fraction or (self._of_keras and given is not None):
            return arrays, given
        split = split_validation if self._of_keras else split_arrays
        arrays, held_out = split(*arrays, fraction)
        return arrays, given if given is not None else held_out

    def global_batch(self, feed: AnyFeed, *, needed: bool) -> int:
        """Rows of a batch of all workers together; 0 where it takes reading and is not needed."""
        if not feed.whole:
            return sum(self._group.exchange(feed.rows))
        return feed.rows if needed or not self._of_keras else 0


def validation_is_due(epoch: int, frequency: int | Sequence[int]) -> bool:
    """Whether `validation_freq` asks for validation after this epoch."""
    if isinstance(frequency, int):
        return (epoch + 1) % frequency == 0
    return epoch + 1 in frequency

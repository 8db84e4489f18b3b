"""A dataset that is open, and its pipelines."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

import tensorflow as tf

from tfdist.data.augment import Transform
from tfdist.data.builders import TEST_NAMES
from tfdist.data.pipeline import (
    IndexedPipeline,
    Pipeline,
    StreamPipeline,
    SyntheticPipeline,
)
from tfdist.data.recipe import Recipe
from tfdist.data.splits import FileSplit, IndexedSplit, StreamSplit
from tfdist.errors import ConfigError

# Decoded bytes of a split up to which "auto" keeps it in memory: CIFAR-10 has 154 MB.
_CACHE_BYTES = 512 * 2**20


@dataclasses.dataclass(frozen=True)
class Source:
    """A dataset ready to be read. Made by `load` or `from_examples`.

    Attributes:
        name: Full name with its version, as in `digits/1.0.0`.
        num_classes: Labels lie in 0 to `num_classes - 1`.
        class_names: The names of the labels.
        image_shape: Height, width and channels of the pipelines' images.
        num_train: Training examples.
        num_test: Test examples, 0 where there are none.
        recipe: The augmentation and normalisation of images.
        seed: The seed of order and augmentation.

    Example:
        >>> source = tfdist.data.load("digits", image_size=32, channels=3)
        >>> source.name, source.num_classes, source.image_shape
        ('digits/1.0.0', 10, (32, 32, 3))
        >>> source.num_train, source.num_test
        (1500, 297)
    """

    name: str
    num_classes: int
    class_names: tuple[str, ...] = dataclasses.field(repr=False)
    image_shape: tuple[int, int, int]
    num_train: int
    num_test: int
    recipe: Recipe
    seed: int
    _train: IndexedSplit | None = dataclasses.field(default=None, repr=False)
    _test: IndexedSplit | None = dataclasses.field(default=None, repr=False)

    def train(
        self,
        global_batch: int,
        *,
        augment: bool = True,
        shuffle: bool = True,
        drop_remainder: bool = False,
        cache: bool | Literal["auto"] = "auto",
        one_hot: bool = False,
    ) -> Pipeline:
        """Returns the training pipeline.

        Args:
            global_batch: Examples in a batch, over all workers.
            augment: Augment by the recipe.
            shuffle: Read each epoch in a different random order.
            drop_remainder: Leave the last, partial batch out.
            cache: Keep the decoded images in memory, in every process. Global batches are
                then the same for every number of workers; otherwise each worker shuffles
                its own part. "auto": up to 512 MiB. A folder of images is never kept, as its
                files are read by index anyway.
            one_hot: Labels are vectors of the classes' probabilities, as
                `keras.losses.CategoricalCrossentropy` takes them.

        Raises:
            ConfigError: `global_batch` is not positive, or larger than the dataset where
                `drop_remainder` is set, or the images cannot be cached.

        Example:
            >>> source = tfdist.data.load("digits")
            >>> source.train(global_batch=64, drop_remainder=True).steps
            23
        """
        return self._pipeline(
            self._train,
            self.num_train,
            global_batch=global_batch,
            drop_remainder=drop_remainder,
            augment=augment,
            shuffle=shuffle,
            cache=cache,
            one_hot=one_hot,
        )

    def test(
        self,
        global_batch: int,
        *,
        drop_remainder: bool = False,
        cache: bool | Literal["auto"] = "auto",
        one_hot: bool = False,
    ) -> Pipeline:
        """Returns the test pipeline: in order, not augmented. Arguments as for `train`.

        Raises:
            ConfigError: As for `train`, or the dataset has no test split.

        Example:
            >>> source = tfdist.data.load("digits")
            >>> source.test(global_batch=64).num_examples
            297
        """
        if self.num_test == 0:
            raise ConfigError(
                f"dataset: {self.name} has no test split; allowed names: {', '.join(TEST_NAMES)}"
            )
        return self._pipeline(
            self._test,
            self.num_test,
            global_batch=global_batch,
            drop_remainder=drop_remainder,
            augment=False,
            shuffle=False,
            cache=cache,
            one_hot=one_hot,
        )

    def stages(self, global_batch: int, *, augment: bool = True) -> dict[str, tf.data.Dataset]:
        """Returns what the training pipeline makes stage by stage, for measuring each.

        Args:
            global_batch: Examples in a batch.
            augment: Augment by the recipe.

        Returns:
            By the stage's name, in order, data without end: single examples, encoded, decoded
            and augmented as far as it has come, then batches, as `train` makes them.

        Raises:
            ConfigError: `global_batch` is not positive, or there is nothing to read.

        Example:
            >>> list(tfdist.data.load("digits").stages(global_batch=64))
            ['memory', 'augment', 'batch']
        """
        if self._train is None:
            raise ConfigError(f"dataset: {self.name} has no files, so its pipeline has no stages")
        size = self._train.decoded_bytes if isinstance(self._train, StreamSplit) else None
        whole = self.train(global_batch, augment=augment)
        batches = whole().repeat()
        stages = _stages(
            self._train,
            Transform(self.recipe, self.image_shape),
            in_memory=size is not None and size <= _CACHE_BYTES,
            augments=augment,
        )
        return {**stages, "batch": batches}

    def _pipeline(
        self,
        split: IndexedSplit | None,
        num_examples: int,
        *,
        global_batch: int,
        drop_remainder: bool,
        augment: bool,
        shuffle: bool,
        cache: bool | Literal["auto"],
        one_hot: bool,
    ) -> Pipeline:
        settings: dict[str, Any] = {
            "global_batch": global_batch,
            "seed": self.seed,
            "drop_remainder": drop_remainder,
            "one_hot": self.num_classes if one_hot else None,
        }
        if split is None:
            return SyntheticPipeline(
                num_examples=num_examples,
                image_shape=self.image_shape,
                num_classes=self.num_classes,
                **settings,
            )
        transform = Transform(self.recipe, self.image_shape)
        settings |= {"transform": transform, "augment": augment, "shuffle": shuffle}
        if not isinstance(split, StreamSplit):
            return IndexedPipeline(split, **settings)
        size = split.decoded_bytes
        if cache == "auto":
            cache = size is not None and size <= _CACHE_BYTES
        if cache and size is None:
            raise ConfigError(
                f"cache: the images of {self.name} vary in size and cannot be cached; "
                "give cache=False"
            )
        return IndexedPipeline(split, **settings) if cache else StreamPipeline(split, **settings)


def _stages(
    split: IndexedSplit, transform: Transform, *, in_memory: bool, augments: bool
) -> dict[str, tf.data.Dataset]:
    """Returns examples without end as they are after each stage, by its name.

    Args:
        split: The examples.
        transform: Resizes, augments and normalises an image.
        in_memory: Whether decoded images are kept in memory, which leaves out reading and decoding.
        augments: Whether images are augmented.
    """
    if isinstance(split, FileSplit):
        stages = {
            "read": _rows(split).map(split.read, tf.data.AUTOTUNE),
            "decode": _rows(split).map(split.fetch, tf.data.AUTOTUNE),
        }
    elif in_memory or not isinstance(split, StreamSplit):
        stages = {"memory": _rows(split).map(split.fetch, tf.data.AUTOTUNE)}
    else:
        encoded = split.stream(0, split.num_examples, None).repeat()
        decode = split.decode

        def decoded_example(image: Any, label: Any) -> Any:
            return decode(image), label

        stages = {"read": encoded, "decode": encoded.map(decoded_example, tf.data.AUTOTUNE)}
    *_, decoded = stages.values()

    def prepare(number: tf.Tensor, example: Any) -> Any:
        image, label = example
        seed = tf.stack([tf.cast(number, tf.int32), 0]) if augments else None
        return transform(image, seed), label

    stages["augment" if augments else "resize"] = decoded.enumerate().map(prepare, tf.data.AUTOTUNE)
    return stages


def _rows(split: IndexedSplit) -> tf.data.Dataset:
    return tf.data.Dataset.range(split.num_examples).repeat()

"""Turns a split into batches: order, sharding and preprocessing of each epoch."""

from __future__ import annotations

import abc
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.data.augment import Transform
from tfdist.data.sharding import (
    AUGMENT,
    BUFFER,
    FILES,
    SYNTHETIC,
    Shard,
    derive_seeds,
    permutation,
)
from tfdist.data.splits import FileSplit, IndexedSplit, StreamSplit
from tfdist.errors import ConfigError

# Encoded examples held to shuffle a stream: 0.5 GB of ImageNet's JPEGs.
_SHUFFLE_BUFFER = 4096
# Distinct images a synthetic pipeline makes; more would cost memory and measure nothing else.
_DISTINCT = 64


class Pipeline(abc.ABC):
    """A split in global batches, for any number of input pipelines and any epoch.

    Made by `Source.train` and `Source.test`, for `Trainer.fit`.

    Call it with a `tf.distribute.InputContext` to get one epoch of that pipeline's
    batches. The result depends on the seed, the epoch and the context only, not on
    earlier reads, so a resumed run can start at any epoch. The batches of all
    pipelines together hold every example once.

    Attributes:
        num_examples: Examples in an epoch, over all pipelines.
        global_batch: Examples in a batch, over all pipelines.
        image_shape: Height, width and channels of an image.
        seed: The seed of order and augmentation.

    Example:
        >>> pipeline = tfdist.data.load("digits").train(global_batch=64)
        >>> pipeline.num_examples, pipeline.steps
        (1500, 24)
        >>> images, labels = next(iter(pipeline(epoch=0)))
        >>> images.shape, labels.shape
        (TensorShape([64, 8, 8, 1]), TensorShape([64]))
    """

    def __init__(
        self,
        *,
        num_examples: int,
        image_shape: tuple[int, int, int],
        global_batch: int,
        seed: int,
        drop_remainder: bool,
        one_hot: int | None = None,
    ) -> None:
        if isinstance(global_batch, bool) or not isinstance(global_batch, int | np.integer):
            raise ConfigError(f"global_batch: {global_batch!r} is not an integer")
        if global_batch < 1:
            raise ConfigError(f"global_batch: {global_batch} is not allowed; give 1 or more")
        if drop_remainder and num_examples < global_batch:
            raise ConfigError(
                f"global_batch: {global_batch} is larger than the {num_examples} examples, and "
                "drop_remainder leaves none; give a smaller batch"
            )
        self.num_examples = num_examples
        self.image_shape = image_shape
        self.global_batch = int(global_batch)
        self.seed = seed
        self._drop_remainder = drop_remainder
        self._one_hot = one_hot

    def __repr__(self) -> str:
        # Keras quotes it where it is given to `model.fit`, which cannot take it.
        return (
            f"<{self.num_examples:,} examples in batches of {self.global_batch}, for Trainer.fit; "
            "model.fit takes its .dataset(epochs)>"
        )

    @property
    def steps(self) -> int:
        """Global batches in an epoch."""
        return self._shard(None).num_batches

    def __call__(
        self,
        input_context: tf.distribute.InputContext | None = None,
        epoch: int = 0,
        first_batch: int = 0,
    ) -> tf.data.Dataset:
        """Returns one epoch of one input pipeline.

        Args:
            input_context: The number of this pipeline and of all; None for the only one.
            epoch: The epoch, from 0.
            first_batch: The batch to start at, from 0; those before it are not read.

        Returns:
            Batches of images, float32 `(batch, height, width, channels)`, and labels,
            int32 `(batch,)`, or float32 `(batch, classes)` where they are one-hot, of known
            cardinality. A pipeline's batch is its share of the
            global batch: some pipelines have one example more than others where it does
            not divide evenly. Every iteration returns the same batches.

        Raises:
            ConfigError: There are more pipelines than examples in a global batch, or the
                epoch is negative.
        """
        if epoch < 0:
            raise ConfigError(f"epoch: {epoch} is not allowed; epochs count from 0")
        shard = self._shard(input_context)
        dataset = self._epoch(shard, int(epoch), int(first_batch))
        if self._one_hot is not None:
            classes = self._one_hot
            dataset = dataset.map(lambda images, labels: (images, tf.one_hot(labels, classes)))
        options = tf.data.Options()
        options.deterministic = True
        # Sharded already: TensorFlow must not shard, or rebatch, a second time.
        options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
        return dataset.prefetch(tf.data.AUTOTUNE).with_options(options)

    def dataset(self, epochs: int = 1, first_epoch: int = 0) -> tf.data.Dataset:
        """Returns global batches as a plain dataset, for code without an `InputContext`.

        Args:
            epochs: The number of epochs, one after the other, each in its own order.
            first_epoch: The epoch to begin with.

        Returns:
            `epochs * self.steps` batches. No batch spans two epochs, so
            `model.fit(pipeline.dataset(3), epochs=3, steps_per_epoch=pipeline.steps)` is right.

        Raises:
            ConfigError: `epochs` is below 1 or `first_epoch` below 0.

        Example:
            >>> pipeline = tfdist.data.load("digits").train(global_batch=64)
            >>> len(pipeline.dataset(epochs=3)) == 3 * pipeline.steps
            True
        """
        if epochs < 1:
            raise ConfigError(f"epochs: {epochs} is not allowed; give 1 or more")
        dataset = self(None, first_epoch)
        for epoch in range(first_epoch + 1, first_epoch + epochs):
            dataset = dataset.concatenate(self(None, epoch))
        return dataset

    def _shard(self, context: tf.distribute.InputContext | None) -> Shard:
        pipelines = context.num_input_pipelines if context else 1
        if pipelines > self.global_batch:
            raise ConfigError(
                f"global_batch: {self.global_batch} is smaller than the {pipelines} workers; "
                f"give {pipelines} or more"
            )
        return Shard(
            num_examples=self.num_examples,
            global_batch=self.global_batch,
            num_pipelines=pipelines,
            index=context.input_pipeline_id if context else 0,
            drop_remainder=self._drop_remainder,
        )

    @abc.abstractmethod
    def _epoch(self, shard: Shard, epoch: int, first: int) -> tf.data.Dataset:
        """Returns the batches of one shard of one epoch, from batch `first` on."""


class _ImagePipeline(Pipeline):
    """Preprocesses images, for reading by index and for reading a stream.

    Attributes:
        if_slow: What a user can do where steps wait for it.
    """

    if_slow = (
        "'tfdist bench input' shows the stage that is: reading (stage_dir copies the data to this "
        "machine, 'tfdist pack' a folder's files into few), or decoding and resizing (a smaller "
        "image_size, images stored as small as that, more cores for each task)"
    )

    def __init__(
        self, *, transform: Transform, shuffle: bool, augment: bool, **common: Any
    ) -> None:
        super().__init__(image_shape=transform.shape, **common)
        self._transform = transform
        self._shuffle = shuffle
        self._augment = augment

    def _prepare(self, image: tf.Tensor, position: tf.Tensor, epoch: int) -> tf.Tensor:
        """Transforms the image at a position of an epoch, always in the same way."""
        if not self._augment:
            return self._transform(image, None)
        key = derive_seeds(self.seed, epoch, AUGMENT)
        # The epoch's key in both words; the position in the first. The flip uses the
        # second word's successor, which is not another position's crop.
        seed = tf.stack([tf.cast(position, tf.int32) ^ key[0], tf.constant(key[1])])
        return self._transform(image, seed)


class IndexedPipeline(_ImagePipeline):
    """Reads examples by index, in one order over all pipelines.

    Global batch `k` of an epoch holds the same examples, augmented the same way, for
    every number of pipelines: N workers train on what one would.
    """

    def __init__(self, split: IndexedSplit, **settings: Any) -> None:
        super().__init__(num_examples=split.num_examples, **settings)
        self._split = split

    @property
    def file_paths(self) -> list[str]:
        """The image files it reads; none where a data set packs them."""
        return self._split.paths if isinstance(self._split, FileSplit) else []

    def _epoch(self, shard: Shard, epoch: int, first: int) -> tf.data.Dataset:
        positions = shard.positions()[first * shard.batch :]
        order = positions
        if self._shuffle:
            order = permutation(self.num_examples, self.seed, epoch)[positions]

        def example(position: tf.Tensor, index: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            image, label = self._split.fetch(index)
            return self._prepare(image, position, epoch), label

        dataset = tf.data.Dataset.from_tensor_slices((positions, order))
        return _in_batches(dataset.map(example, tf.data.AUTOTUNE), shard, first)


class StreamPipeline(_ImagePipeline):
    """Reads a dataset too large for memory from its files.

    Each pipeline reads the same contiguous part of the files every epoch, in another
    order: the files are shuffled, then the examples in a buffer.
    """

    def __init__(self, split: StreamSplit, **settings: Any) -> None:
        super().__init__(num_examples=split.num_examples, **settings)
        self._split = split

    def _epoch(self, shard: Shard, epoch: int, first: int) -> tf.data.Dataset:
        # The examples that drop_remainder leaves out are read and shuffled too, or the
        # same ones would be left out in every epoch.
        reading = Shard(shard.num_examples, shard.global_batch, shard.num_pipelines, shard.index)
        start, size = reading.start, reading.size
        file_seed = None
        if self._shuffle:
            file_seed = derive_seeds(self.seed, epoch, FILES)[0]
        dataset = self._split.stream(start, start + size, file_seed)
        if self._shuffle:
            dataset = dataset.shuffle(
                min(_SHUFFLE_BUFFER, max(size, 1)),
                seed=derive_seeds(self.seed, epoch, BUFFER)[0],
                reshuffle_each_iteration=False,
            )

        def example(
            position: tf.Tensor, item: tuple[tf.Tensor, tf.Tensor]
        ) -> tuple[tf.Tensor, tf.Tensor]:
            encoded, label = item
            return self._prepare(self._split.decode(encoded), position, epoch), label

        # Skipped while still encoded, which is all the more time saved.
        dataset = dataset.take(shard.size).enumerate(start).skip(first * shard.batch)
        dataset = _in_batches(dataset.map(example, tf.data.AUTOTUNE), shard, first)
        left = max(0, shard.num_batches - first)
        return dataset.apply(tf.data.experimental.assert_cardinality(left))


class SyntheticPipeline(Pipeline):
    """Repeats one random batch.

    The batch is made once and not copied, so reading does not disturb the measurement.
    Image `i` of the global batch is the same for every number of pipelines; labels and
    images are random, so a model can learn nothing but the batch itself.

    Attributes:
        num_classes: Labels lie in 0 to `num_classes - 1`.
    """

    def __init__(self, *, num_classes: int, **common: Any) -> None:
        super().__init__(**common)
        self.num_classes = num_classes

    def _epoch(self, shard: Shard, epoch: int, first: int) -> tf.data.Dataset:
        del epoch  # every epoch is alike
        positions = shard.positions() % self.global_batch
        images, labels = self._examples(positions[: shard.batch])
        dataset = tf.data.Dataset.from_tensors((images, labels)).repeat(shard.full_batches)
        if shard.last_batch:
            last = self._examples(positions[shard.full_batches * shard.batch :])
            dataset = dataset.concatenate(tf.data.Dataset.from_tensors(last))
        return dataset.skip(first)

    def _examples(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        random = np.random.RandomState(derive_seeds(self.seed, 0, SYNTHETIC))
        distinct = min(_DISTINCT, self.global_batch)
        images = random.standard_normal((distinct, *self.image_shape)).astype(np.float32)
        labels = random.randint(0, self.num_classes, distinct).astype(np.int32)
        return images[positions % distinct], labels[positions % distinct]


def _in_batches(examples: tf.data.Dataset, shard: Shard, first: int) -> tf.data.Dataset:
    """Batches a shard's examples, which begin at its batch `first`."""
    if shard.last_batch <= shard.batch:
        return examples.batch(shard.batch)
    # A division of fewer rows may give a part one row more than a division of all rows does.
    full = max(0, shard.full_batches - first) * shard.batch
    last = examples.skip(full).batch(shard.last_batch)
    return examples.take(full).batch(shard.batch).concatenate(last)

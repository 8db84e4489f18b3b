"""Reads the examples of one split by index, or as a stream of files."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds
from typing_extensions import override

from tfdist.data.iterators import untuned
from tfdist.data.tfds_side_effects import warnings_hidden


class IndexedSplit(Protocol):
    """Examples that can be read in any order."""

    num_examples: int

    def fetch(self, index: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the decoded image and the int32 label at a scalar int64 index."""
        ...


class FileSplit:
    """Image files on a disk, decoded when they are read.

    Args:
        paths: One file per example.
        labels: Their classes.
        channels: Channels to decode to.

    Attributes:
        paths: The files.
        labels: Their classes.
    """

    def __init__(self, paths: Sequence[str], labels: Sequence[int], channels: int = 3) -> None:
        self.num_examples = len(paths)
        self.paths = list(paths)
        # Made once: an epoch's graph refers to them and holds no copy.
        with tf.init_scope(), tf.device("CPU:0"):
            self._paths = tf.constant(self.paths, tf.string)
            self._labels = tf.constant(list(labels), tf.int32)
        self._channels = channels
        self.labels = list(labels)

    def part(self, start: int, stop: int) -> FileSplit:
        """Returns the examples from `start` to before `stop` as a split."""
        labels = self.labels[start:stop]
        return FileSplit(self.paths[start:stop], labels, self._channels)

    def read(self, index: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the bytes of a file and its int32 label."""
        return tf.io.read_file(tf.gather(self._paths, index)), tf.gather(self._labels, index)

    def fetch(self, index: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the image `(height, width, channels)` uint8 and its int32 label."""
        data, label = self.read(index)
        image = tf.io.decode_image(data, channels=self._channels, expand_animations=False)
        image.set_shape([None, None, self._channels])
        return image, label


class StreamSplit(abc.ABC):
    """Examples that are read in order, part by part; or kept in memory, decoded, by index.

    Attributes:
        num_examples: Their number.
    """

    num_examples: int

    def __init__(self) -> None:
        self._tensors: tuple[tf.Tensor, tf.Tensor] | None = None

    @property
    @abc.abstractmethod
    def decoded_bytes(self) -> int | None:
        """Bytes of all decoded images together, None where their sizes vary."""

    @abc.abstractmethod
    def stream(self, start: int, stop: int, file_seed: int | None) -> tf.data.Dataset:
        """Reads the examples `[start, stop)`, still encoded.

        Args:
            start: The first example.
            stop: The one after the last.
            file_seed: The seed of the order of files; None for their own order.

        Returns:
            (encoded image, int32 label) pairs; `decode` makes images of them.
        """

    def decode(self, image: tf.Tensor) -> tf.Tensor:
        """Decodes one image of `stream`."""
        return image

    def fetch(self, index: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the decoded image and its int32 label from memory.

        The first call reads the whole split.
        """
        images, labels = self._eager_tensors()
        return tf.gather(images, index), tf.gather(labels, index)

    def _eager_tensors(self) -> tuple[tf.Tensor, tf.Tensor]:
        # Made outside the graph once, so an epoch captures them and copies nothing. init_scope:
        # the pipeline may be built inside a tf.function (as the parameter-server coordinator
        # does), and reading is not part of its graph.
        if self._tensors is None:
            with tf.init_scope(), tf.device("CPU:0"):
                images, labels = self._arrays()
                self._tensors = tf.constant(images), tf.constant(labels)
        return self._tensors

    def _arrays(self) -> tuple[np.ndarray, np.ndarray]:
        dataset = self.stream(0, self.num_examples, None)
        dataset = dataset.map(lambda image, label: (self.decode(image), label), tf.data.AUTOTUNE)
        parts = list(untuned(dataset.batch(1024)).as_numpy_iterator())
        images, labels = zip(*parts, strict=True)
        return np.concatenate(images), np.concatenate(labels)


class TfdsSplit(StreamSplit):
    """One split of a prepared TFDS dataset with `image` and `label` features.

    Args:
        builder: The dataset.
        name: The split's name.
    """

    def __init__(self, builder: tfds.core.DatasetBuilder, name: str) -> None:
        super().__init__()
        self._builder = builder
        self._name = name
        self._image = builder.info.features["image"]
        self._sized = name in builder.info.splits
        if self._sized:
            self.num_examples = int(builder.info.splits[name].num_examples)
        else:
            # No metadata (a mocked dataset): the stream itself must know.
            self.num_examples = int(self._raw(name, None).cardinality())

    @property
    @override
    def decoded_bytes(self) -> int | None:
        if None in self._image.shape:
            return None
        pixels = int(np.prod(self._image.shape))
        return self.num_examples * pixels * np.dtype(self._image.np_dtype).itemsize

    @override
    def stream(self, start: int, stop: int, file_seed: int | None) -> tf.data.Dataset:
        """Reads the examples `[start, stop)`, still encoded, and only the files they are in."""
        if not self._sized:
            return self._raw(self._name, file_seed).skip(start).take(stop - start)
        part = tfds.core.ReadInstruction(self._name, from_=start, to=stop, unit="abs")
        return self._raw(part, file_seed)

    @override
    def decode(self, image: tf.Tensor) -> tf.Tensor:
        return self._image.decode_example(image)

    def _raw(self, part: Any, file_seed: int | None) -> tf.data.Dataset:
        options = tf.data.Options()
        options.deterministic = True
        # The coordinator traces this, and TFDS's own code is not made for graphs.
        as_dataset = tf.autograph.experimental.do_not_convert(self._builder.as_dataset)
        with warnings_hidden():
            dataset = as_dataset(
                split=part,
                shuffle_files=file_seed is not None,
                decoders=tfds.decode.PartialDecoding(
                    {"image": True, "label": True}, {"image": tfds.decode.SkipDecoding()}
                ),
                read_config=tfds.ReadConfig(
                    options=options,
                    try_autocache=False,
                    shuffle_seed=file_seed,
                    shuffle_reshuffle_each_iteration=False,
                ),
            )
        return dataset.map(lambda item: (item["image"], tf.cast(item["label"], tf.int32)))

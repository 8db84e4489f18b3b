"""Makes a dataset of examples that the user has: arrays, or a tf.data.Dataset of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from typing_extensions import override

from tfdist.data.recipe import Recipe, recipe_for
from tfdist.data.source import Source
from tfdist.data.splits import StreamSplit
from tfdist.errors import ConfigError
from tfdist.function_name import call_function
from tfdist.validation import kind, quote

_WHERE = "from_examples"
_PIXELS = "uint8, or floats from 0 to 1"


def from_examples(
    train: Any,
    test: Any = None,
    *,
    class_names: Sequence[str] | None = None,
    name: str = "examples",
    image_size: int | tuple[int, int] | None = None,
    channels: int | None = None,
    recipe: Recipe | None = None,
    seed: int = 0,
) -> Source:
    """Makes a dataset of your own images and labels.

    Every worker needs all of them: each reads its part of every global batch.

    Args:
        train: Images and labels to train on. A pair of arrays: `(examples, height, width)` or
            `(examples, height, width, channels)`, uint8 or floating point in 0 to 1, and integers
            `(examples,)` or `(examples, 1)`. Or a `tf.data.Dataset` of single such examples,
            of known length (`tf.data.experimental.assert_cardinality` sets it).
        test: Those to test on, in the same form; None for none.
        class_names: The names of labels 0, 1, ...; numbers if None, which a `tf.data.Dataset`
            does not allow, as its labels are not known beforehand.
        name: What it is called in output.
        image_size: Side, or height and width, to resize to. None: the images' own, or 224
            where that varies.
        channels: 1 or 3 to make images grey or RGB. None: the images' own.
        recipe: Augmentation and normalisation. None: the usual one for images of this size.
        seed: The seed of order and augmentation of every epoch.

    Raises:
        ConfigError: An argument has another form, or a label is not one of the classes.

    Example:
        >>> images = np.zeros((100, 28, 28), "uint8")
        >>> labels = np.arange(100) % 10
        >>> source = tfdist.data.from_examples((images, labels))
        >>> source.num_train, source.num_classes, source.image_shape
        (100, 10, (28, 28, 1))
    """
    check_options(seed, channels)
    given = {"train": train} if test is None else {"train": train, "test": test}
    splits = {part: _split(part, value) for part, value in given.items()}
    if class_names is None:
        class_names = [str(number) for number in range(_count_classes(splits.values()))]
    for part, split in splits.items():
        if isinstance(split, _Arrays) and split.num_classes > len(class_names):
            raise ConfigError(
                f"{_WHERE}({part}): a label is {split.num_classes - 1}, but there are "
                f"{len(class_names)} class names; labels are 0 to {len(class_names) - 1}"
            )
    first = splits["train"]
    height, width, depth = first.shape
    for split in splits.values():
        if split.shape[2] != depth:
            raise ConfigError(
                f"{_WHERE}(test): images have {split.shape[2]} channels, and those of train have "
                f"{depth}; give the same"
            )
    recipe = recipe or recipe_for("", (height, width, depth))
    size = checked_size(image_size)
    if size is None:
        side = recipe.default_size
        size = (side, side) if height is None or width is None else (height, width)
    return Source(
        name=name,
        num_classes=len(class_names),
        class_names=tuple(class_names),
        image_shape=(*size, channels or (1 if depth == 1 else 3)),
        num_train=first.num_examples,
        num_test=splits["test"].num_examples if "test" in splits else 0,
        recipe=recipe,
        seed=seed,
        _train=first,
        _test=splits.get("test"),
    )


def from_function(
    name: str,
    *,
    image_size: tuple[int, int] | None,
    channels: int | None,
    recipe: Recipe | None,
    seed: int,
) -> Source:
    """Returns the dataset that a user's function makes.

    Args:
        name: `package.module:function`. It gets those of the options for which it has a parameter;
            they hold for what it returns in any case.
        image_size: As for `from_examples`, as are those below.
        channels: 1, 3 or None.
        recipe: Augmentation and normalisation, or None.
        seed: Of order and augmentation.

    Raises:
        ConfigError: There is no such function, or it returns something else.
    """
    options = {"image_size": image_size, "channels": channels, "recipe": recipe, "seed": seed}
    source = call_function("dataset", name, **options)
    if isinstance(source, tuple | list) and len(source) == 2:
        source = from_examples(source[0], source[1], name=name)
    if not isinstance(source, Source):
        raise ConfigError(
            f"dataset: {quote(name)} returns {kind(source)}; allowed: ((images, labels) to train "
            "on, (images, labels) to test on or None), or a tfdist.data.Source"
        )
    height, width, depth = source.image_shape
    return dataclasses.replace(
        source,
        image_shape=(*(image_size or (height, width)), channels or depth),
        recipe=recipe or source.recipe,
        seed=seed,
    )


class _Arrays:
    """Arrays in memory.

    Attributes:
        num_examples: Their length.
        num_classes: One more than the largest label.
        shape: Height, width and channels.
    """

    def __init__(self, images: np.ndarray, labels: np.ndarray) -> None:
        self.num_examples = len(images)
        self.num_classes = int(labels.max()) + 1
        self.shape: tuple[int | None, int | None, int] = images.shape[1:]
        with tf.init_scope(), tf.device("CPU:0"):
            self._images, self._labels = tf.constant(images), tf.constant(labels, tf.int32)

    def fetch(self, index: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the image and the int32 label at an index."""
        return tf.gather(self._images, index), tf.gather(self._labels, index)


class _Stream(StreamSplit):
    """A tf.data.Dataset of single examples.

    Attributes:
        num_examples: Its length.
        shape: Height and width, None where they vary, and channels.
    """

    def __init__(self, examples: tf.data.Dataset, count: int) -> None:
        super().__init__()
        self.num_examples = count
        image, _ = examples.element_spec
        self.shape = (*image.shape[:2], image.shape[2] if image.shape.rank == 3 else 1)
        self._itemsize = image.dtype.size
        self._examples = examples.map(_example)

    @property
    @override
    def decoded_bytes(self) -> int | None:
        if None in self.shape:
            return None
        return self.num_examples * int(np.prod(self.shape)) * self._itemsize

    @override
    def stream(self, start: int, stop: int, file_seed: int | None) -> tf.data.Dataset:
        """Reads the examples `[start, stop)`, always in their own order; those before as well."""
        return self._examples.skip(start).take(stop - start)


def _example(image: tf.Tensor, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    image = image if image.shape.rank == 3 else image[..., tf.newaxis]
    return image, tf.cast(tf.reshape(label, []), tf.int32)


def _split(part: str, value: Any) -> _Arrays | _Stream:
    where = f"{_WHERE}({part})"
    if isinstance(value, tf.data.Dataset):
        return _of_dataset(where, value)
    if not isinstance(value, tuple | list) or len(value) != 2:
        raise ConfigError(
            f"{where}: {kind(value)} is given; allowed: (images, labels), or a tf.data.Dataset of "
            "such pairs"
        )
    images, labels = (np.asarray(each) for each in value)
    if images.ndim not in (3, 4) or not len(images):
        raise ConfigError(
            f"{where}: images of shape {images.shape} are given; allowed: (examples, height, "
            "width) or (examples, height, width, channels)"
        )
    images = images if images.ndim == 4 else images[..., np.newaxis]
    _check_pixels(where, images, images.shape[3])
    if labels.shape not in ((len(images),), (len(images), 1)) or labels.dtype.kind not in "iu":
        raise ConfigError(
            f"{where}: labels of shape {labels.shape} and type {labels.dtype} are given; allowed: "
            f"integers of shape ({len(images)},), a class for each image"
        )
    if labels.min() < 0:
        raise ConfigError(f"{where}: a label is {labels.min()}; allowed: 0 or more")
    return _Arrays(images, labels.reshape(-1))


def _of_dataset(where: str, examples: tf.data.Dataset) -> _Stream:
    spec = examples.element_spec
    image = spec[0] if isinstance(spec, tuple) and len(spec) == 2 else None
    is_one = isinstance(image, tf.TensorSpec) and image.shape.rank in (2, 3)
    if not is_one or not spec[1].dtype.is_integer or spec[1].shape.num_elements() != 1:
        raise ConfigError(
            f"{where}: a tf.data.Dataset of {spec} is given; allowed: pairs of one image (height, "
            "width, channels) and its integer label, not batched"
        )
    count = int(examples.cardinality())
    if count <= 0:
        raise ConfigError(
            f"{where}: a tf.data.Dataset of unknown, no or endless length is given; leave out "
            "repeat(), and set its length with tf.data.experimental.assert_cardinality"
        )
    stream = _Stream(examples, count)
    first = next(iter(stream.stream(0, 1, None)))[0].numpy()
    _check_pixels(where, first, stream.shape[2])
    return stream


def _check_pixels(where: str, images: np.ndarray, channels: int | None) -> None:
    if channels not in (1, 3, 4):
        raise ConfigError(f"{where}: images have {channels} channels; allowed: 1, 3 or 4")
    if images.dtype != np.uint8 and images.dtype.kind != "f":
        raise ConfigError(f"{where}: images of type {images.dtype} are given; allowed: {_PIXELS}")
    if images.dtype.kind == "f" and not (images.min() >= 0.0 and images.max() <= 1.0):
        raise ConfigError(
            f"{where}: pixels from {images.min():g} to {images.max():g} are given; allowed: "
            f"{_PIXELS}"
        )


def _count_classes(splits: Any) -> int:
    splits = list(splits)
    if not all(isinstance(split, _Arrays) for split in splits):
        raise ConfigError(
            f"{_WHERE}(class_names): missing for a tf.data.Dataset; give a name for each label"
        )
    return max(split.num_classes for split in splits)


def check_options(seed: int, channels: int | None) -> None:
    """Checks the arguments that every way to open a dataset has.

    Raises:
        ConfigError: One of them is not allowed.
    """
    if not isinstance(seed, int) or seed < 0:
        raise ConfigError(f"seed: {seed!r} is not allowed; give an integer of 0 or more")
    if channels not in (None, 1, 3):
        raise ConfigError(f"channels: {channels!r} is not allowed; give 1 or 3")


def checked_size(image_size: int | tuple[int, int] | None) -> tuple[int, int] | None:
    """Returns height and width.

    Raises:
        ConfigError: They are not positive integers.
    """
    if image_size is None:
        return None
    sides = (image_size, image_size) if isinstance(image_size, int) else tuple(image_size)
    if len(sides) != 2 or not all(isinstance(side, int) and side > 0 for side in sides):
        raise ConfigError(f"image_size: {image_size!r} is not allowed; give pixels, as in 32")
    return sides

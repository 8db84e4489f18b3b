"""Opens a dataset by name, and makes its pipelines."""

from __future__ import annotations

import dataclasses
import os
from typing import Any, Literal

import tensorflow as tf

from tfdist.data.augment import Transform
from tfdist.data.builders import TEST_NAMES, open_folder, open_tfds
from tfdist.data.pipeline import IndexedPipeline, Pipeline, StreamPipeline
from tfdist.data.recipe import Recipe, recipe_for
from tfdist.data.splits import FileSplit, TfdsSplit
from tfdist.data.stages import stages
from tfdist.data.synthetic import SyntheticPipeline
from tfdist.errors import ConfigError

_FOLDER = "folder:"
# Decoded bytes of a split up to which "auto" keeps it in memory: CIFAR-10 has 154 MB.
_CACHE_BYTES = 512 * 2**20


@dataclasses.dataclass(frozen=True)
class Source:
    """A dataset ready to be read. Made by `load`.

    Attributes:
        name: full name with its version, as in `digits/1.0.0`.
        num_classes: labels lie in 0 to `num_classes - 1`.
        class_names: the names of the labels.
        image_shape: height, width and channels of the pipelines' images.
        num_train: training examples.
        num_test: test examples, 0 where there are none.
        recipe: the augmentation and normalisation of images.
        seed: the seed of order and augmentation.

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
    _train: TfdsSplit | FileSplit | None = dataclasses.field(default=None, repr=False)
    _test: TfdsSplit | FileSplit | None = dataclasses.field(default=None, repr=False)

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
            global_batch: examples in a batch, over all workers.
            augment: augment as the recipe says.
            shuffle: read each epoch in a different random order.
            drop_remainder: leave the last, partial batch out.
            cache: keep the decoded images in memory, in every process. Global batches are
                then the same for every number of workers; otherwise each worker shuffles
                its own part. "auto": up to 512 MiB. A folder of images is never kept, as its
                files are read by index anyway.
            one_hot: labels are vectors of the classes' probabilities, as
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
            ConfigError: as for `train`, or the dataset has no test split.

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
            global_batch: examples in a batch.
            augment: augment as the recipe says.

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
        size = None if isinstance(self._train, FileSplit) else self._train.decoded_bytes
        whole = self.train(global_batch, augment=augment)
        batches = whole().repeat()
        made = stages(
            self._train,
            Transform(self.recipe, self.image_shape),
            in_memory=size is not None and size <= _CACHE_BYTES,
            augments=augment,
        )
        return {**made, "batch": batches}

    def _pipeline(
        self,
        split: TfdsSplit | FileSplit | None,
        num_examples: int,
        *,
        global_batch: int,
        drop_remainder: bool,
        augment: bool,
        shuffle: bool,
        cache: bool | Literal["auto"],
        one_hot: bool,
    ) -> Pipeline:
        classes = self.num_classes if one_hot else None
        if split is None:
            return SyntheticPipeline(
                num_examples=num_examples,
                image_shape=self.image_shape,
                num_classes=self.num_classes,
                global_batch=global_batch,
                seed=self.seed,
                drop_remainder=drop_remainder,
                one_hot=classes,
            )
        options: dict[str, Any] = {
            "transform": Transform(self.recipe, self.image_shape),
            "global_batch": global_batch,
            "seed": self.seed,
            "drop_remainder": drop_remainder,
            "augment": augment,
            "shuffle": shuffle,
            "one_hot": classes,
        }
        if isinstance(split, FileSplit):
            return IndexedPipeline(split, **options)
        size = split.decoded_bytes
        if cache == "auto":
            cache = size is not None and size <= _CACHE_BYTES
        if cache and size is None:
            raise ConfigError(
                f"cache: the images of {self.name} vary in size and cannot be cached; "
                "give cache=False"
            )
        return IndexedPipeline(split, **options) if cache else StreamPipeline(split, **options)


def load(
    name: str,
    *,
    data_dir: str | os.PathLike[str] | None = None,
    image_size: int | tuple[int, int] | None = None,
    channels: int | None = None,
    recipe: Recipe | None = None,
    seed: int = 0,
    validation_split: float = 0.0,
    num_classes: int | None = None,
    num_examples: int | None = None,
    prepare_timeout: float = 3600.0,
) -> Source:
    """Opens a dataset, preparing it on disk if it is not there yet.

    Any number of processes may call it at once: one per machine prepares, the others wait.

    Args:
        name: one of
            `digits`, the 1,797 bundled UCI digits (needs no network);
            any TFDS dataset with `image` and `label`, with config and version where
            wanted, as in `cifar10`, `imagenet2012:5.1.0`, `cifar10_corrupted/fog_3`;
            `folder:PATH`, images in `PATH/<split>/<class>/`;
            `synthetic`, random images for benchmarks.
        data_dir: where TFDS keeps its datasets. None: $TFDIST_DATA_DIR, else
            $TFDS_DATA_DIR, else `~/tensorflow_datasets`.
        image_size: side, or height and width, to resize to. None: the dataset's own, or
            224 where that varies.
        channels: 1 or 3 to make images grey or RGB. None: the dataset's own.
        recipe: augmentation and normalisation. None: the usual one for the dataset.
        seed: the seed of order and augmentation of every epoch.
        validation_split: fraction of the images of a folder without a test split to test on.
        num_classes: classes of `synthetic` (1,000 by default); not for others.
        num_examples: examples per split of `synthetic` (10,240 by default); not for others.
        prepare_timeout: seconds to wait for another process that is preparing.

    Raises:
        ConfigError: there is no such dataset or folder, it cannot be prepared (no network),
            it is not one of labelled images, or an argument is out of range.
        PeerError: another process was still preparing after `prepare_timeout` seconds.

    Example:
        >>> source = tfdist.data.load("synthetic", image_size=32, num_examples=1000)
        >>> images, labels = next(iter(source.train(global_batch=64)()))
        >>> images.shape
        TensorShape([64, 32, 32, 3])
    """
    if not isinstance(seed, int) or seed < 0:
        raise ConfigError(f"seed: {seed!r} is not allowed; give an integer of 0 or more")
    if channels not in (None, 1, 3):
        raise ConfigError(f"channels: {channels!r} is not allowed; give 1 or 3")
    size = _size(image_size)
    if validation_split and not name.startswith(_FOLDER):
        raise ConfigError(
            f"validation_split: {validation_split:g} is given with {name}; allowed: with "
            "folder:PATH"
        )
    if name == "synthetic":
        height, width = size or (224, 224)
        count = _positive("num_examples", num_examples, 10_240)
        classes = _positive("num_classes", num_classes, 1000)
        return Source(
            name=name,
            num_classes=classes,
            class_names=tuple(str(label) for label in range(classes)),
            image_shape=(height, width, channels or 3),
            num_train=count,
            num_test=count,
            recipe=recipe or Recipe(crop="none", flip=False),
            seed=seed,
        )
    for argument, value in (("num_classes", num_classes), ("num_examples", num_examples)):
        if value is not None:
            raise ConfigError(f"{argument}: {name} has its own; only synthetic takes one")
    train: TfdsSplit | FileSplit
    test: TfdsSplit | FileSplit | None
    if name.startswith(_FOLDER):
        builder, train, test = open_folder(name.removeprefix(_FOLDER), validation_split)
        full_name = name
    else:
        builder, train, test = open_tfds(name, data_dir, prepare_timeout)
        full_name = builder.info.full_name
    height, width, depth = builder.info.features["image"].shape
    recipe = recipe or recipe_for(builder.name, (height, width, depth))
    if size is None:
        fixed = height is not None and width is not None
        size = (height, width) if fixed else (recipe.default_size, recipe.default_size)
    label = builder.info.features["label"]
    return Source(
        name=full_name,
        num_classes=label.num_classes,
        class_names=tuple(label.names),
        image_shape=(*size, channels or (1 if depth == 1 else 3)),
        num_train=train.num_examples,
        num_test=test.num_examples if test else 0,
        recipe=recipe,
        seed=seed,
        _train=train,
        _test=test,
    )


def _size(image_size: int | tuple[int, int] | None) -> tuple[int, int] | None:
    if image_size is None:
        return None
    sides = (image_size, image_size) if isinstance(image_size, int) else tuple(image_size)
    if len(sides) != 2 or not all(isinstance(side, int) and side > 0 for side in sides):
        raise ConfigError(f"image_size: {image_size!r} is not allowed; give pixels, as in 32")
    return sides


def _positive(argument: str, value: int | None, default: int) -> int:
    if value is None:
        return default
    if not isinstance(value, int) or value < 1:
        raise ConfigError(f"{argument}: {value!r} is not allowed; give 1 or more")
    return value

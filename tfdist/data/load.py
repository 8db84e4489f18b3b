"""Opens a dataset by name."""

from __future__ import annotations

import os

import tensorflow_datasets as tfds

from tfdist.data.builders import open_folder, open_tfds
from tfdist.data.examples import check_options, checked_size, from_function
from tfdist.data.local_copy import local_copy
from tfdist.data.recipe import Recipe, recipe_for
from tfdist.data.source import Source
from tfdist.data.splits import FileSplit, TfdsSplit
from tfdist.errors import ConfigError
from tfdist.function_name import is_function_name
from tfdist.validation import quote

_FOLDER = "folder:"
_SYNTHETIC = "synthetic"
_SYNTHETIC_SIZE = (224, 224)
# What may stand before a colon and is not a module: tfdist's own, and the namespaces of TFDS.
_NOT_MODULES = ("folder", "huggingface", "kubric", "robotics")
_Files = TfdsSplit | FileSplit


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
    stage_dir: str | os.PathLike[str] | None = None,
) -> Source:
    """Opens a dataset, preparing it on disk if that has not been done yet.

    Any number of processes may call it at once: one per machine prepares, the others wait.

    Args:
        name: One of
            `digits`, the 1,797 bundled UCI digits (needs no network);
            any TFDS dataset with `image` and `label`, with config and version where
            wanted, as in `cifar10`, `imagenet2012:5.1.0`, `cifar10_corrupted/fog_3`;
            `folder:PATH`, images in `PATH/<split>/<class>/`;
            `package.module:function`, your function that returns a `Source`, or pairs of
            images and labels to train and to test on as `keras.datasets.cifar10:load_data` does;
            `synthetic`, random images for benchmarks.
        data_dir: Where TFDS keeps its datasets. None: $TFDIST_DATA_DIR, else
            $TFDS_DATA_DIR, else `~/tensorflow_datasets`.
        image_size: Side, or height and width, to resize to. None: the dataset's own, or
            224 where that varies.
        channels: 1 or 3 to make images grey or RGB. None: the dataset's own.
        recipe: Augmentation and normalisation. None: the usual one for the dataset.
        seed: The seed of order and augmentation of every epoch.
        validation_split: Fraction of the images of a folder without a test split to test on.
        num_classes: Classes of `synthetic` (1,000 by default); not for others.
        num_examples: Examples per split of `synthetic` (10,240 by default); not for others.
        prepare_timeout: Seconds to wait for another process that is preparing.
        stage_dir: A folder on this machine's own disk to read the files from; one of its
            processes copies them there first. Not for `synthetic` and functions.

    Raises:
        ConfigError: There is no such dataset or folder, it cannot be prepared (no network),
            it is not one of labelled images, or an argument is out of range.
        PeerError: Another process was still preparing after `prepare_timeout` seconds.

    Example:
        >>> source = tfdist.data.load("synthetic", image_size=32, num_examples=1000)
        >>> images, labels = next(iter(source.train(global_batch=64)()))
        >>> images.shape
        TensorShape([64, 32, 32, 3])
    """
    check_options(seed, channels)
    size = checked_size(image_size)
    _check_goes_with(name, validation_split, stage_dir, num_classes, num_examples)
    if _is_of_the_user(name):
        return from_function(name, image_size=size, channels=channels, recipe=recipe, seed=seed)
    if name == _SYNTHETIC:
        count = _positive("num_examples", num_examples, 10_240)
        classes = _positive("num_classes", num_classes, 1000)
        return Source(
            name=name,
            num_classes=classes,
            class_names=tuple(str(label) for label in range(classes)),
            image_shape=(*(size or _SYNTHETIC_SIZE), channels or 3),
            num_train=count,
            num_test=count,
            recipe=recipe or Recipe(crop="none", flip=False),
            seed=seed,
        )
    builder, train, test = _open(name, data_dir, validation_split, prepare_timeout, stage_dir)
    height, width, depth = builder.info.features["image"].shape
    recipe = recipe or recipe_for(builder.name, (height, width, depth))
    if size is None:
        fixed = height is not None and width is not None
        size = (height, width) if fixed else (recipe.default_size, recipe.default_size)
    label = builder.info.features["label"]
    return Source(
        name=name if name.startswith(_FOLDER) else builder.info.full_name,
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


def _is_of_the_user(name: str) -> bool:
    return is_function_name(name) and name.partition(":")[0] not in _NOT_MODULES


def _check_goes_with(
    name: str,
    validation_split: float,
    stage_dir: str | os.PathLike[str] | None,
    num_classes: int | None,
    num_examples: int | None,
) -> None:
    """Refuses arguments that a dataset of this name does not take."""
    if validation_split and not name.startswith(_FOLDER):
        raise ConfigError(
            f"validation_split: {validation_split:g} is given with {name}; allowed: with "
            "folder:PATH"
        )
    if stage_dir is not None and (name == _SYNTHETIC or _is_of_the_user(name)):
        raise ConfigError(
            f"stage_dir: {quote(str(stage_dir))} is given with {name}, which has no "
            "files; leave it out"
        )
    if name != _SYNTHETIC:
        for argument, value in (("num_classes", num_classes), ("num_examples", num_examples)):
            if value is not None:
                raise ConfigError(f"{argument}: {name} has its own; only synthetic takes one")


def _open(
    name: str,
    data_dir: str | os.PathLike[str] | None,
    validation_split: float,
    timeout: float,
    stage_dir: str | os.PathLike[str] | None,
) -> tuple[tfds.core.DatasetBuilder, _Files, _Files | None]:
    """Opens a folder or a dataset of TFDS, copied to `stage_dir` where one is given."""
    if not name.startswith(_FOLDER):
        return open_tfds(name, data_dir, timeout, stage_dir)
    path = os.path.expanduser(name.removeprefix(_FOLDER))
    if stage_dir is not None and os.path.isdir(path):
        path = local_copy(path, os.fspath(stage_dir), timeout=timeout)
    return open_folder(path, validation_split)


def _positive(argument: str, value: int | None, default: int) -> int:
    if value is None:
        return default
    if not isinstance(value, int) or value < 1:
        raise ConfigError(f"{argument}: {value!r} is not allowed; give 1 or more")
    return value

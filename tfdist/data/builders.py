"""Opens what holds labelled images: folders, and the data sets of TFDS."""

from __future__ import annotations

import os
import re

import tensorflow_datasets as tfds

from tfdist.data.local_copy import local_copy
from tfdist.data.prepare import default_data_dir, one_line, prepare
from tfdist.data.splits import FileSplit, TfdsSplit
from tfdist.errors import ConfigError
from tfdist.validation import did_you_mean

_DIGITS_SHARDS = 8
# Where "test" has no labels.
_TEST_SPLITS = {"imagenet2012": "validation", "imagenet_resized": "validation"}
TEST_NAMES = ("test", "validation", "val", "valid")
# Of TFDS: a module's name, then config and version.
_NAME = re.compile(r"\w+(:\w+)?([/:]|$)", re.ASCII)


class _ImageFolder(tfds.folder_dataset.ImageFolder):
    """TFDS's ImageFolder, which reads whole splits only, with the list of files added."""

    def split(self, name: str) -> FileSplit:
        """Returns the files of a split, in TFDS's fixed shuffled order."""
        examples = self._split_examples[name]
        to_index = self.info.features["label"].str2int
        return FileSplit(
            [example.image_path for example in examples],
            [to_index(example.label) for example in examples],
        )


def image_folder(path: str) -> _ImageFolder:
    """Opens a folder of images, `PATH/<split>/<class>/`.

    Raises:
        ConfigError: There is no such folder, or it is laid out in another way.
    """
    path = os.path.expanduser(path)
    layout = "folder:PATH wants images in PATH/<split>/<class>/, with a split named train"
    if not path or not os.path.isdir(path):
        raise ConfigError(f"dataset: there is no folder {path!r}; {layout}")
    builder = _ImageFolder(path)
    if not builder.info.splits.get("train"):
        found = ", ".join(builder.info.splits) or "none"
        raise ConfigError(f"dataset: {path} has no images in train (splits: {found}); {layout}")
    return builder


def open_folder(
    path: str, validation_split: float = 0.0
) -> tuple[tfds.core.DatasetBuilder, FileSplit, FileSplit | None]:
    """Opens a folder of images.

    Args:
        path: The folder.
        validation_split: The fraction of the training images to test on, where no split is for
            that.

    Returns:
        The builder, the images to train on, and those to test on, if any.

    Raises:
        ConfigError: There is no such folder, or it is laid out in another way, or it has a split
            to test on as well as a `validation_split`.
    """
    builder = image_folder(path)
    test = next((part for part in TEST_NAMES if part in builder.info.splits), None)
    if not validation_split:
        return builder, builder.split("train"), builder.split(test) if test else None
    if test:
        raise ConfigError(
            f"validation_split: {validation_split:g} is given, but {path} has a split named "
            f"{test} to test on; leave one of them out"
        )
    return builder, *_divide(builder.split("train"), validation_split)


def _divide(whole: FileSplit, fraction: float) -> tuple[FileSplit, FileSplit]:
    """Takes the last files, whose order is random and always the same, for testing."""
    count = round(whole.num_examples * fraction)
    if not 0 < count < whole.num_examples:
        raise ConfigError(
            f"validation_split: {fraction:g} of {whole.num_examples} images leaves none to test or "
            "to train on; allowed: more than 0, less than 1"
        )
    return whole.part(0, whole.num_examples - count), whole.part(
        whole.num_examples - count, whole.num_examples
    )


def open_tfds(
    name: str,
    data_dir: str | os.PathLike[str] | None,
    timeout: float,
    stage_dir: str | os.PathLike[str] | None = None,
) -> tuple[tfds.core.DatasetBuilder, TfdsSplit, TfdsSplit | None]:
    """Opens a data set of TFDS, preparing it if that has not been done yet.

    Args:
        name: Its name, with config and version where wanted.
        data_dir: Where it is kept; None for the default.
        timeout: Seconds to wait for another process that is preparing it.
        stage_dir: A disk to read it from, where it is copied to first; None to read it where it is.

    Returns:
        The builder, the images to train on, and those to test on, if any.

    Raises:
        ConfigError: There is none, it cannot be prepared, or it is not one of labelled images.
        PeerError: Another process was still preparing it after `timeout` seconds.
    """
    folder = os.path.expanduser(os.fspath(data_dir or default_data_dir()))
    # Importing it registers the name, so that `digits:1.0.0` works like any other.
    from tfdist.data.digits import digits_dataset_builder

    def make() -> tfds.core.DatasetBuilder:
        return tfds.builder(name, data_dir=folder)

    try:
        if not _NAME.match(name):
            raise tfds.core.DatasetNotFoundError
        builder = make()
    except tfds.core.DatasetNotFoundError:
        known = [*tfds.list_builders(with_community_datasets=False), "digits", "synthetic"]
        raise ConfigError(
            f"dataset: there is no {name!r}; give digits, synthetic, folder:PATH, or a name from "
            f"tensorflow.org/datasets/catalog (nothing of that name is in {folder} either)"
            f"{did_you_mean(name, known)}"
        ) from None
    except Exception as error:  # a bad version or config, or a script's missing import
        raise ConfigError(f"dataset: {name!r} cannot be opened: {one_line(error)}") from error
    _require_labelled_images(builder)
    bundled = isinstance(builder, digits_dataset_builder.Builder)
    builder = prepare(
        make, bundled=bundled, num_shards=_DIGITS_SHARDS if bundled else None, timeout=timeout
    )
    if stage_dir is not None and builder.info.splits:  # A mocked one has no files.
        path = local_copy(os.fspath(builder.data_dir), os.fspath(stage_dir), timeout=timeout)
        builder = tfds.builder_from_directory(path)
    splits = builder.info.splits
    if splits and "train" not in splits:
        raise ConfigError(
            f"dataset: {builder.info.full_name} has no split named train; it has "
            f"{', '.join(splits)}"
        )
    test = _TEST_SPLITS.get(builder.name)
    if test is None:
        test = next((part for part in TEST_NAMES if part in splits), None if splits else "test")
    return builder, TfdsSplit(builder, "train"), TfdsSplit(builder, test) if test else None


def _require_labelled_images(builder: tfds.core.DatasetBuilder) -> None:
    features = builder.info.features
    named = isinstance(features, tfds.features.FeaturesDict)
    image = features["image"] if named and "image" in features else None
    label = features["label"] if named and "label" in features else None
    labelled = isinstance(label, tfds.features.ClassLabel)
    if not labelled or not isinstance(image, tfds.features.Image):
        raise ConfigError(
            f"dataset: {builder.info.full_name} has no image with a class label; its features are "
            f"{', '.join(features) if named else features}, and an 'image' and a 'label' are needed"
        )

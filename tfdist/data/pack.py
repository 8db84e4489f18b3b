"""Packs a folder of images into a data set of TFDS: few large files, which many workers share."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any

import tensorflow as tf
import tensorflow_datasets as tfds

from tfdist.data.builders import image_folder
from tfdist.data.splits import FileSplit
from tfdist.data.tfds_side_effects import progress_hidden, warnings_hidden
from tfdist.errors import ConfigError
from tfdist.runtime.log import LOGGER
from tfdist.validation import quote

_VERSION = "1.0.0"
_REPORT_SECONDS = 10.0


def pack(path: str, name: str, data_dir: str, *, shards: int | None = None) -> dict[str, int]:
    """Writes the images of a folder, encoded as they are, as TFRecord files with their labels.

    Args:
        path: The folder: `PATH/<split>/<class>/`.
        name: The new data set's name, for `tfdist.data.load(name, data_dir=data_dir)`.
        data_dir: Where data sets are kept.
        shards: The number of files of each split; TFDS's choice, by their size, if None. A worker
            reads some of them only where there are more files than workers.

    Returns:
        The number of images of each split.

    Raises:
        ConfigError: There is no such folder, a file is not an image, the name cannot be that of a
            data set or is taken, or the files cannot be written.
    """
    if not (name.isascii() and name.isidentifier() and name == name.lower()):
        raise ConfigError(
            f"pack(name): {quote(name)} is given; allowed: lower-case letters, digits and _"
        )
    folder = image_folder(path)
    place = os.path.join(os.path.expanduser(data_dir), name)
    if os.path.exists(os.path.join(place, _VERSION)):
        raise ConfigError(
            f"pack(name): {quote(place)} already exists; give another name, or remove it"
        )
    names = folder.info.features["label"].names
    splits = {split: folder.split(split) for split in folder.info.splits}
    try:
        with warnings_hidden(), progress_hidden():
            tfds.dataset_builders.store_as_tfds_dataset(
                name,
                version=_VERSION,
                features=tfds.features.FeaturesDict(
                    {
                        "image": tfds.features.Image(shape=(None, None, 3)),
                        "label": tfds.features.ClassLabel(names=names),
                    }
                ),
                split_datasets={s: _examples(s, split, names) for s, split in splits.items()},
                data_dir=data_dir,
                download_config=tfds.download.DownloadConfig(num_shards=shards),
            )
    except OSError as error:
        raise ConfigError(
            f"pack(data_dir): {quote(data_dir)} cannot be written ({error.strerror or error}); "
            "give another directory"
        ) from None
    return {name: split.num_examples for name, split in splits.items()}


def _examples(
    name: str, split: FileSplit, names: list[str]
) -> Iterator[tuple[int, dict[str, Any]]]:
    reported = time.monotonic()
    for number, (path, label) in enumerate(zip(split.paths, split.labels, strict=True)):
        data = tf.io.read_file(path)
        try:
            # A file that cannot be decoded would end a training midway.
            tf.io.decode_image(data, channels=3, expand_animations=False)
        except tf.errors.OpError as error:
            reason = str(error.message).partition(" [")[0][:100]
            raise ConfigError(
                f"pack: {quote(path)} is not a readable image ({reason}); replace it, or remove it"
            ) from None
        now = time.monotonic()
        if now - reported >= _REPORT_SECONDS:
            reported = now
            LOGGER.info(
                "packed %s of %s images of %s", f"{number:,}", f"{split.num_examples:,}", name
            )
        yield number, {"image": path, "label": names[label]}

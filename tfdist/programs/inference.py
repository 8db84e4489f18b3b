"""Uses the model that a run has left: evaluates it, classifies files, exports it."""

from __future__ import annotations

import dataclasses
import pathlib
import shutil
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist import data
from tfdist.cluster import Cluster
from tfdist.errors import ConfigError
from tfdist.files import write_whole
from tfdist.programs import saved_model
from tfdist.programs.saved_model import SavedModel
from tfdist.strategy.build import build_strategy
from tfdist.training.trainer import Trainer
from tfdist.validation import quote

_IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".gif")
_BATCH = 32


@dataclasses.dataclass(frozen=True)
class Guess:
    """The classes that a model finds likely for an image.

    Attributes:
        path: The file.
        classes: The likeliest classes, the first one first.
        probabilities: Of each of them.
    """

    path: str
    classes: tuple[str, ...]
    probabilities: tuple[float, ...]


def evaluate(run: str, dataset: str | None, data_dir: str | None, batch: int) -> dict[str, float]:
    """Returns loss and metrics of a run's model on the test images of a dataset.

    Args:
        run: The run's output directory.
        dataset: As for `tfdist.data.load`; the run's own by default.
        data_dir: Where TFDS keeps its datasets.
        batch: Images at a time.

    Raises:
        ConfigError: There is no such run or dataset, or it has other classes.
    """
    strategy = build_strategy("auto", Cluster.from_environment())
    with strategy.scope():
        saved = saved_model.load(run, "evaluate")
    source = data.load(
        saved.dataset if dataset is None else dataset,
        data_dir=data_dir,
        image_size=saved.image_shape[:2],
        channels=saved.image_shape[2],
        recipe=saved.pixel_recipe,
        validation_split=saved.validation_split if dataset is None else 0.0,
    )
    if source.class_names != saved.classes:
        raise ConfigError(
            f"evaluate(--dataset): {source.name} has {source.num_classes} classes, "
            f"{quote(source.class_names)}; the model of {quote(run)} was trained on "
            f"{len(saved.classes)}, {quote(saved.classes)}"
        )
    one_hot = "sparse" not in str(saved.model.get_compile_config().get("loss"))
    results: dict[str, float] = Trainer(saved.model).evaluate(
        source.test(batch, one_hot=one_hot), verbose=0, return_dict=True
    )
    return results


def predict(run: str, paths: Sequence[str], top: int) -> Iterator[Guess]:
    """Yields the likeliest classes of image files by a run's model.

    Args:
        run: The run's output directory.
        paths: Files and folders of files.
        top: How many classes to name.

    Raises:
        ConfigError: There is no such run or file, or a file is not an image.
    """
    files = _files(paths)
    saved = saved_model.load(run, "predict")
    for start in range(0, len(files), _BATCH):
        part = files[start : start + _BATCH]
        images = np.stack([_read(saved, path) for path in part])
        found = np.asarray(saved.model.predict_on_batch(images), np.float64)
        for path, probabilities in zip(part, found, strict=True):
            best = np.argsort(-probabilities)[:top]
            yield Guess(
                path=path,
                classes=tuple(saved.classes[index] for index in best),
                probabilities=tuple(float(probabilities[index]) for index in best),
            )


def export(run: str, folder: str) -> pathlib.Path:
    """Writes a run's model as a SavedModel, for TensorFlow Serving and others; whole or not at all.

    Args:
        run: The run's output directory.
        folder: The folder to write.

    Raises:
        ConfigError: There is no such run, or the folder already exists or cannot be written.
    """
    path = pathlib.Path(folder)
    if path.exists():
        raise ConfigError(f"export(--output): {quote(folder)} already exists; give another name")
    saved = saved_model.load(run, "export")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with write_whole(path) as new:
            saved.model.export(str(new), verbose=False)
            shutil.copy(pathlib.Path(run) / saved_model.IMAGES, new / saved_model.IMAGES)
    except OSError as error:
        raise ConfigError(
            f"export(--output): {quote(folder)} cannot be written ({error.strerror}); give another"
        ) from None
    return path


def _files(paths: Sequence[str]) -> list[str]:
    found: list[str] = []
    for given in paths:
        path = pathlib.Path(given)
        inside = [str(p) for p in sorted(path.rglob("*")) if p.suffix.lower() in _IMAGES]
        if path.is_dir() and not inside:
            raise ConfigError(
                f"predict: {quote(given)} has no images; allowed: files of {', '.join(_IMAGES)}"
            )
        if not path.is_dir() and not path.is_file():
            raise ConfigError(f"predict: {quote(given)} does not exist; give files or folders")
        found += inside if path.is_dir() else [given]
    return found


def _read(saved: SavedModel, path: str) -> Any:
    try:
        image = tf.io.decode_image(tf.io.read_file(path), channels=3, expand_animations=False)
    except tf.errors.OpError:
        raise ConfigError(
            f"predict: {quote(path)} is not a readable image; allowed: {', '.join(_IMAGES)}"
        ) from None
    return saved.prepare(image).numpy()

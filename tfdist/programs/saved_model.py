"""Saves and loads the model that a run leaves, which takes raw images and knows its classes.

`model.keras` holds the trained model behind the normalisation of the dataset's recipe, so it takes
pixels of 0 to 255 in the size it was trained on. `images.json`, next to it, has the names of the
classes and how an image is brought to that size.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
import zipfile
from typing import Any, get_args, get_type_hints

import h5py
import keras
import tensorflow as tf

from tfdist import data
from tfdist.cluster.documents import load_documents
from tfdist.data.augment import Transform
from tfdist.errors import ConfigError
from tfdist.files import write_whole
from tfdist.programs.options import TrainOptions
from tfdist.training.checkpoint.model_file import save_model
from tfdist.validation import number, one_of, quote, reject, whole_number

MODEL = "model.keras"
IMAGES = "images.json"
_PIXEL_RANGE = 255.0
# The file in `model.keras` with the weights.
_WEIGHTS = "model.weights.h5"
# How much more than its bytes a file may hold: somebody may have packed it again.
_MOST_EXPANSION, _ALWAYS_ALLOWED = 4, 16 << 20
_MOST_PIXELS = 100_000


@dataclasses.dataclass(frozen=True)
class SavedModel:
    """A model that a run has left.

    Attributes:
        model: Takes images `(batch, height, width, channels)`, pixels of 0 to 255.
        classes: The names of its classes.
        recipe: That of its dataset; the normalisation is in the model.
        image_shape: Height, width and channels.
        dataset: The dataset's name, for `tfdist.data.load`.
        validation_split: The part of it that the model was tested on, if it has no such split.
    """

    model: keras.Model
    classes: tuple[str, ...]
    recipe: data.Recipe
    image_shape: tuple[int, int, int]
    dataset: str
    validation_split: float

    @property
    def pixel_recipe(self) -> data.Recipe:
        """The recipe whose results the model takes."""
        return dataclasses.replace(self.recipe, mean=(0.0,), std=(1.0 / _PIXEL_RANGE,))

    def prepare(self, image: tf.Tensor) -> tf.Tensor:
        """Brings a decoded image, `(height, width, channels)`, to what the model takes."""
        return Transform(self.pixel_recipe, self.image_shape)(image, None)


def save(
    model: keras.Model, source: data.Source, options: TrainOptions, folder: pathlib.Path
) -> None:
    """Writes the model and what belongs to it, each file whole or not at all.

    Args:
        model: The trained model.
        source: Its dataset.
        options: The options of the run.
        folder: The folder of the run.
    """
    new = folder / f".trained.{MODEL}"  # Keras looks at how the name ends.
    model.save(new)
    # A separate model, outside the strategy: there, making layers would need the other workers.
    inner = keras.saving.load_model(new)
    new.unlink()
    mean, std = (_of_channels(v, source) for v in (source.recipe.mean, source.recipe.std))
    outer = keras.Sequential(
        [
            keras.Input(source.image_shape, name="pixels"),
            keras.layers.Rescaling(
                [1.0 / (_PIXEL_RANGE * s) for s in std],
                [-m / s for m, s in zip(mean, std, strict=True)],
                dtype="float32",
                name="normalisation",
            ),
            inner,
        ],
        name=inner.name,
    )
    outer.compile_from_config(inner.get_compile_config())
    for to, variable in zip(outer.optimizer.variables, inner.optimizer.variables, strict=True):
        to.assign(variable)
    description = {
        "dataset": options.dataset,
        "validation_split": options.validation_split,
        "classes": list(source.class_names),
        "image_shape": list(source.image_shape),
        "recipe": dataclasses.asdict(source.recipe),
    }
    with write_whole(folder / IMAGES) as new:
        new.write_text(json.dumps(description, indent=1) + "\n")
    save_model(outer, folder / MODEL)


def _of_channels(values: tuple[float, ...], source: data.Source) -> tuple[float, ...]:
    channels = source.image_shape[2]
    # Grey from colour or the other way round, as `Transform` does it.
    return values if len(values) == channels else (sum(values) / len(values),) * channels


def load(folder: str, where: str) -> SavedModel:
    """Reads the model that a run has left.

    Args:
        folder: The run's output directory.
        where: What is given, for messages.

    Raises:
        ConfigError: There is none, or it cannot be read.
    """
    path = pathlib.Path(folder)
    for name in (MODEL, IMAGES):
        if not (path / name).is_file():
            raise ConfigError(
                f"{where}: {quote(folder)} has no {name}; give the --output-dir of a run of "
                "tfdist train that has ended"
            )
    described = _describe(path / IMAGES, f"{where}: {path / IMAGES}")
    model = _load_model(path / MODEL, f"{where}: {path / MODEL}")
    given = (*model.input_shape[1:], model.output_shape[-1])
    described_shape = (*described["image_shape"], len(described["classes"]))
    if given != described_shape:
        reject(
            f"{where}: {path / IMAGES}",
            f"is for height, width, channels and classes {quote(described_shape)}, {MODEL} for "
            f"{quote(given)}; give the folder as a run of tfdist train has left it",
        )
    return SavedModel(model=model, **described)


def _describe(path: pathlib.Path, where: str) -> dict[str, Any]:
    """Returns what a description says, but for the model, in the types that it should have.

    Raises:
        ConfigError: It cannot be read, or says something else.
    """
    (found,) = load_documents(str(path), "give a run of tfdist train")
    if not isinstance(found, dict) or not isinstance(found.get("recipe"), dict):
        reject(where, f"{quote(found)} is not the description of a model; give another run")
    shape, classes = found.get("image_shape"), found.get("classes")
    if not isinstance(shape, list) or len(shape) != 3:
        reject(f"{where}: image_shape", f"{quote(shape)} is not height, width and channels")
    if not isinstance(classes, list) or not all(isinstance(name, str) for name in classes):
        reject(f"{where}: classes", f"{quote(classes)} is not a list of names")
    if not isinstance(found.get("dataset"), str):
        reject(f"{where}: dataset", f"{quote(found.get('dataset'))} is not the name of a dataset")
    part = found.get("validation_split")
    return {
        "classes": tuple(classes),
        "recipe": _recipe(found["recipe"], f"{where}: recipe"),
        "image_shape": tuple(
            whole_number(f"{where}: image_shape", size, most=_MOST_PIXELS) for size in shape
        ),
        "dataset": found["dataset"],
        "validation_split": number(f"{where}: validation_split", part, least=0, most=1),
    }


def _recipe(found: dict[str, Any], where: str) -> data.Recipe:
    known = dataclasses.asdict(data.Recipe())
    if found.keys() != known.keys():
        reject(where, f"has {quote(list(found))}; allowed: {', '.join(known)}")
    if not isinstance(found["flip"], bool):
        reject(f"{where}: flip", f"{quote(found['flip'])} is given; allowed: true or false")
    crop = one_of(f"{where}: crop", found["crop"], get_args(get_type_hints(data.Recipe)["crop"]))
    means, deviations = found["mean"], found["std"]
    if not all(isinstance(each, list) and 1 <= len(each) <= 4 for each in (means, deviations)):
        reject(where, f"{quote(means)} and {quote(deviations)} are not a number per channel")
    size = whole_number(f"{where}: default_size", found["default_size"], most=_MOST_PIXELS)
    return data.Recipe(
        crop=crop,  # type: ignore[arg-type]
        pad=number(f"{where}: pad", found["pad"], least=0, most=1),
        flip=found["flip"],
        mean=tuple(number(f"{where}: mean", value, least=-1e6, most=1e6) for value in means),
        std=tuple(number(f"{where}: std", value, above=0, most=1e6) for value in deviations),
        default_size=size,
    )


def _load_model(path: pathlib.Path, where: str) -> keras.Model:
    """Returns the model in a file.

    Raises:
        ConfigError: It cannot be read, or holds far more than it has bytes.
    """
    try:
        _check_size(path, where)
        return keras.saving.load_model(path)
    except ConfigError:
        raise
    except Exception as error:  # Keras raises whatever it meets in a damaged file.
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        raise ConfigError(f"{where} cannot be read: {reason}; give another run") from None


def _check_size(path: pathlib.Path, where: str) -> None:
    """Rejects a file that unpacks to far more than it has bytes: Keras packs nothing."""
    size = path.stat().st_size
    most = _MOST_EXPANSION * size + _ALWAYS_ALLOWED
    with zipfile.ZipFile(path) as archive:
        unpacked = sum(info.file_size for info in archive.infolist())
        if unpacked <= most and _WEIGHTS in archive.namelist():
            arrays: list[int] = []

            def add(_: str, item: Any) -> None:
                if isinstance(item, h5py.Dataset):
                    arrays.append(item.nbytes)

            with archive.open(_WEIGHTS) as member, h5py.File(member) as file:
                file.visititems(add)
            unpacked = max(unpacked, sum(arrays))
    if unpacked > most:
        reject(where, f"would unpack {size} bytes to {unpacked}; give a file that Keras has saved")

"""Saves and loads the model that a run leaves, which takes raw images and knows its classes.

`model.keras` holds the trained model behind the normalisation of the dataset's recipe, so it takes
pixels of 0 to 255 in the size it was trained on. `images.json`, next to it, has the names of the
classes and how an image is brought to that size.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
from typing import Any

import keras
import tensorflow as tf

from tfdist import data
from tfdist.data.augment import Transform
from tfdist.errors import ConfigError
from tfdist.files import write_whole
from tfdist.programs.options import TrainOptions
from tfdist.training.checkpoint.model_file import save_model
from tfdist.validation import quote

MODEL = "model.keras"
IMAGES = "images.json"
_PIXEL_RANGE = 255.0


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
    try:
        found: dict[str, Any] = json.loads((path / IMAGES).read_text())
        recipe: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in found["recipe"].items()
        }
        height, width, channels = found["image_shape"]
        return SavedModel(
            model=keras.saving.load_model(path / MODEL),
            classes=tuple(found["classes"]),
            recipe=data.Recipe(**recipe),
            image_shape=(height, width, channels),
            dataset=found["dataset"],
            validation_split=found["validation_split"],
        )
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        reason = str(error).strip().splitlines()[0][:200]
        raise ConfigError(f"{where}: {quote(folder)} cannot be read: {reason}") from None

"""Saves a model to a file, whole or not at all: a good one is never half overwritten."""

from __future__ import annotations

import os
import pathlib

import keras

from tfdist.errors import ConfigError
from tfdist.files import write_whole
from tfdist.keras_internals import outside_scope
from tfdist.validation import quote


def save_model(model: keras.Model, path: str | os.PathLike[str]) -> None:
    """Saves a model as a file.

    Args:
        model: The model.
        path: A file whose name ends with `.keras`.

    Raises:
        ConfigError: Its name ends otherwise, or it cannot be written.
    """
    place = pathlib.Path(path)
    if place.suffix != ".keras":
        raise ConfigError(f"save(path): {quote(str(path))} is given; allowed: a name.keras")
    try:
        # Keras looks at how the name ends, and makes variables.
        with write_whole(place, suffix=place.suffix) as new, outside_scope():
            model.save(new)
    except OSError as error:
        raise ConfigError(
            f"save(path): {quote(str(path))} cannot be written ({error.strerror or error}); "
            "give another file"
        ) from None

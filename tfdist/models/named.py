"""Makes a model from its name: tfdist's own, one of keras.applications, or a saved one."""

from __future__ import annotations

import contextlib
import inspect
from pathlib import Path
from typing import Any

import keras

from tfdist.errors import ConfigError
from tfdist.models.resnet import resnet50
from tfdist.models.small import small_cnn
from tfdist.validation import quote

_OWN = {"resnet50": resnet50, "small_cnn": small_cnn}


def named_model(name: str, image_size: int | None = None, classes: int | None = None) -> Any:
    """Returns a model with new weights, or a saved one with its own.

    Args:
        name: `resnet50`, `small_cnn`, the name of a model of keras.applications such as
            `ResNet101`, or the path of a file that Keras saved.
        image_size: Height and width of its input; its own by default.
        classes: Its classes; its own by default.

    Raises:
        ConfigError: There is no such model, or it cannot have that input.

    Example:
        >>> from tfdist.models.named import named_model
        >>> named_model("resnet50", image_size=32, classes=10).output_shape
        (None, 10)
    """
    if name.endswith(".keras"):
        return _saved(name, image_size, classes)
    build: Any = _OWN.get(name) or _of_keras(name)
    given: dict[str, Any] = {} if classes is None else {"classes": classes}
    if image_size is not None:
        own = inspect.signature(build).parameters["input_shape"].default
        channels = own[2] if own else 3
        given["input_shape"] = (image_size, image_size, channels)
    if name not in _OWN:
        given["weights"] = None
    try:
        return build(**given)
    except ValueError as error:
        if isinstance(error, ConfigError):
            raise
        reason = str(error).strip().splitlines()[0]
        raise ConfigError(
            f"plan(--model): {name} cannot be built with {given}: {reason}; give other values of "
            "--image-size and --classes"
        ) from None


def _of_keras(name: str) -> Any:
    found = getattr(keras.applications, name, None)
    if not inspect.isfunction(found):
        known = ", ".join(
            each
            for each in sorted(vars(keras.applications))
            if inspect.isfunction(vars(keras.applications)[each])
        )
        raise ConfigError(
            f"plan(--model): {quote(name)} is given; allowed: {', '.join(_OWN)}, a file that ends "
            f"with .keras, or of keras.applications: {known}"
        )
    return found


def _saved(name: str, image_size: int | None, classes: int | None) -> Any:
    if image_size is not None or classes is not None:
        raise ConfigError(
            f"plan(--image-size): given beside the file {quote(name)}, whose model has a size and "
            "classes of its own; leave --image-size and --classes out"
        )
    if not Path(name).is_file():
        raise ConfigError(f"plan(--model): {quote(name)} is not a file; give one that Keras saved")
    reason = "it is damaged"
    with contextlib.suppress(OSError):
        try:
            return keras.saving.load_model(name, compile=False)
        except (ValueError, TypeError, KeyError) as error:
            reason = str(error).strip().splitlines()[0]
    raise ConfigError(f"plan(--model): {quote(name)} cannot be loaded: {reason[:200]}")

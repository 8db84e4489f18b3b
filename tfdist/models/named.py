"""Makes a model from its name: tfdist's own, one of keras.applications, a saved one, a function."""

from __future__ import annotations

import contextlib
import inspect
from pathlib import Path
from typing import Any

import keras

from tfdist.errors import ConfigError
from tfdist.function_name import call_function
from tfdist.models.resnet import resnet50
from tfdist.models.small import small_cnn
from tfdist.validation import did_you_mean, quote

_OWN = {"resnet50": resnet50, "small_cnn": small_cnn}
_PLAN = "plan(--model)"
# ImageNet's, for a function that asks for them.
_USUAL_SHAPE, _USUAL_CLASSES = (224, 224, 3), 1000


def named_model(
    name: str,
    shape: tuple[int, int, int] | int | None = None,
    classes: int | None = None,
    *,
    where: str = _PLAN,
) -> Any:
    """Returns a model with new weights, or a saved one with its own.

    Args:
        name: `resnet50`, `small_cnn`, the name of a model of keras.applications such as
            `ResNet101`, the path of a file that Keras saved, or `package.module:function`.
        shape: Of its input, or height and width alone; its own by default.
        classes: Its classes; its own by default.
        where: What is given, for messages.

    Raises:
        ConfigError: There is no such model, or it cannot have that input.

    Example:
        >>> from tfdist.models.named import named_model
        >>> named_model("resnet50", 32, classes=10).output_shape
        (None, 10)
    """
    if name.endswith(".keras"):
        return _saved(name, shape, classes, where)
    if ":" in name:
        sides = (shape, shape, 3) if isinstance(shape, int) else shape
        return _of_function(where, name, sides or _USUAL_SHAPE, classes or _USUAL_CLASSES)
    build: Any = _OWN.get(name) or _of_keras(name, where)
    given: dict[str, Any] = {} if classes is None else {"classes": classes}
    if isinstance(shape, int):
        own = inspect.signature(build).parameters["input_shape"].default
        shape = (shape, shape, own[2] if own else 3)
    if shape is not None:
        given["input_shape"] = shape
    if name not in _OWN:
        given["weights"] = None
    try:
        return build(**given)
    except ValueError as error:
        if isinstance(error, ConfigError):
            raise
        reason = str(error).strip().splitlines()[0]
        raise ConfigError(
            f"{where}: {name} cannot be built with {given}: {reason}; give another image size or "
            "number of classes"
        ) from None


def check_name(name: str, where: str) -> None:
    """Checks a model's name before its data are there: a user's function is not called.

    Args:
        name: As for `named_model`.
        where: What is given, for messages.

    Raises:
        ConfigError: There is no such model or file.
    """
    if name.endswith(".keras"):
        _check_file(name, where)
    elif ":" not in name and name not in _OWN:
        _of_keras(name, where)


def _check_file(name: str, where: str) -> None:
    if not Path(name).is_file():
        raise ConfigError(f"{where}: {quote(name)} is not a file; give one that Keras saved")


def _of_function(where: str, name: str, shape: tuple[int, int, int], classes: int) -> keras.Model:
    """Returns the model that a user's function makes.

    It gets the shape of an image and the number of classes where it has parameters of the names
    `input_shape` and `classes`.
    """
    model = call_function(where, name, input_shape=shape, classes=classes)
    if not isinstance(model, keras.Model):
        raise ConfigError(
            f"{where}: {quote(name)} returns {type(model).__name__}; allowed: a keras.Model"
        )
    return model


def _of_keras(name: str, where: str) -> Any:
    found = getattr(keras.applications, name, None)
    if not inspect.isfunction(found):
        known = [
            each
            for each in sorted(vars(keras.applications))
            if inspect.isfunction(vars(keras.applications)[each])
        ]
        raise ConfigError(
            f"{where}: {quote(name)} is given; allowed: "
            f"{', '.join(_OWN)}, a file that ends with .keras, package.module:function, or of "
            f"keras.applications: {', '.join(known)}{did_you_mean(name, [*_OWN, *known])}"
        )
    return found


def _saved(name: str, shape: Any, classes: int | None, where: str) -> Any:
    if where == _PLAN and (shape is not None or classes is not None):
        raise ConfigError(
            f"plan(--image-size): given with the file {quote(name)}, whose model has its own size "
            "and classes; leave --image-size and --classes out"
        )
    _check_file(name, where)
    reason = "it is damaged"
    with contextlib.suppress(OSError):
        try:
            return keras.saving.load_model(name, compile=False)
        except (ValueError, TypeError, KeyError) as error:
            reason = str(error).strip().splitlines()[0]
    raise ConfigError(f"{where}: {quote(name)} cannot be loaded: {reason[:200]}")

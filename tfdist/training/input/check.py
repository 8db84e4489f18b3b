"""Rejects data that no step could use, and finds images that cannot be read."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist.data.iterators import iterator_of
from tfdist.errors import ConfigError

_KINDS = (
    "a tf.data.Dataset of batches, a function of tf.distribute.InputContext, a "
    "keras.utils.PyDataset, a generator, or arrays"
)
_UNREADABLE = (
    tf.errors.InvalidArgumentError,
    tf.errors.NotFoundError,
    tf.errors.PermissionDeniedError,
    tf.errors.DataLossError,
    tf.errors.FailedPreconditionError,
)
_DECODING = re.compile(
    r"Decode\w*(Image|Jpeg|Png|Gif|Bmp|Webp)|image file format|Invalid (PNG|JPEG)"
)


def check_given(x: Any, y: Any) -> None:
    """Rejects a call without data.

    Raises:
        ConfigError: There is none.
    """
    if x is None and y is None:
        raise ConfigError(f"data: None is given; allowed: {_KINDS}")


def check_kind(x: Any) -> None:
    """Rejects kinds of data that several replicas cannot read.

    Raises:
        ConfigError: Names the object's type, what is allowed, and what to do.
    """
    name = type(x).__name__
    if isinstance(x, (tf.distribute.DistributedDataset, tf.distribute.DistributedIterator)):
        raise ConfigError(
            f"data: a {name} is given, which is divided among replicas already; allowed: {_KINDS}; "
            "give the dataset it was made from"
        )
    if isinstance(x, (str, bytes, set)):
        raise ConfigError(f"data: {x!r} is given; allowed: {_KINDS}")
    if _is_loader(x):
        raise ConfigError(
            f"data: a {name} object is given, which can only be iterated over; allowed: {_KINDS}; "
            f"give a generator of its batches, or a PyDataset for several epochs"
        )


def _is_loader(x: Any) -> bool:
    known = (tf.data.Dataset, keras.utils.PyDataset, Iterator, Mapping, Sequence, tf.TypeSpec)
    return (
        isinstance(x, Iterable)
        and not isinstance(x, known)
        and not callable(x)
        and not tf.is_tensor(x)
        and not hasattr(x, "__array__")
        and not hasattr(x, "shape")
    )


def check_batched(dataset: tf.data.Dataset, model: keras.Model, *, divides: bool) -> None:
    """Rejects a dataset of single examples, or of tensors of which it knows no shape.

    Args:
        dataset: The dataset.
        model: The model it is for.
        divides: Whether its elements are divided among replicas, so that all tensors need rows.

    Raises:
        ConfigError: The elements' tensors have one dimension fewer than the model's inputs, an
            unknown number of them, or none to be divided.
    """
    inputs = keras.tree.flatten(getattr(model, "inputs", None) or ())
    spec = dataset.element_spec
    x = spec[0] if isinstance(spec, tuple) else spec
    given: list[Any] = [getattr(leaf, "shape", None) for leaf in tf.nest.flatten(x)]
    if divides and any(_is_number(leaf) for leaf in tf.nest.flatten(spec)):
        raise ConfigError(
            "data: an element of the dataset holds a single number, which has no rows to divide "
            "among replicas; give batches: dataset.batch(32)"
        )
    if not inputs or len(given) != len(inputs):
        return
    pairs = list(zip(given, (tensor.shape for tensor in inputs), strict=True))
    for one, wanted in pairs:
        if one is not None and one.rank is None:
            raise ConfigError(
                "data: the dataset does not know how many dimensions its tensors have (the model "
                f"takes {tuple(wanted)}); give from_generator an output_signature with shapes, or "
                "map tf.ensure_shape over what numpy_function or py_function returns"
            )
    if all(_lacks_rows(one, wanted) for one, wanted in pairs):
        one, wanted = pairs[0]
        shape = f"({', '.join(map(str, one))}{',' if len(one) == 1 else ''})"
        raise ConfigError(
            f"data: the dataset's elements are single examples (shape {shape}, where the model "
            f"takes {tuple(wanted)}); give batches of them: dataset.batch(32)"
        )


def _is_number(spec: Any) -> bool:
    shape = getattr(spec, "shape", None)
    return shape is not None and shape.rank == 0


def _lacks_rows(given: Any, wanted: Sequence[int | None]) -> bool:
    if given is None or given.rank is None or given.rank != len(wanted) - 1:
        return False
    # Keras adds a last dimension of one by itself.
    return wanted[-1] != 1


def unreadable(error: Exception, sources: Iterable[Any]) -> ConfigError | None:
    """Finds the image that TensorFlow could not read.

    Args:
        error: An error that TensorFlow raised in a step.
        sources: The data; read from files if it has `file_paths`.

    Returns:
        An error that names the file, or that only reports a broken image where the files are not
        known; None if the error is about something else.
    """
    if not isinstance(error, _UNREADABLE):
        return None
    for source in sources:
        paths = getattr(source, "file_paths", None)
        found = _first_unreadable(list(paths)) if paths is not None else None
        if found is not None:
            path, reason = found
            return ConfigError(
                f"data: {path} cannot be read ({reason}); replace it by an image, or remove it"
            )
    if _DECODING.search(str(error)):
        return ConfigError(
            f"data: an image cannot be decoded ({_reason(error)}); decode the files one by one to "
            "find it, and replace or remove it"
        )
    return None


def _first_unreadable(paths: list[str]) -> tuple[str, str] | None:
    def read(path: tf.Tensor) -> tf.Tensor:
        image = tf.io.decode_image(tf.io.read_file(path), expand_animations=False)
        return tf.size(image)

    images = tf.data.Dataset.from_tensor_slices(np.asarray(paths, dtype=object).astype("S"))
    # Deterministic, so that the path reached is that of the image that cannot be read.
    images = images.map(read, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
    iterator = iterator_of(images)
    for path in paths:
        try:
            next(iterator)
        except tf.errors.OpError as error:
            return path, _reason(error)
    return None


def _reason(error: Exception) -> str:
    lines = [line.strip() for line in getattr(error, "message", str(error)).splitlines()]
    first = next((line for line in lines if line), type(error).__name__)
    first = re.sub(r"^\{\{.*?\}\}\s*", "", first)
    return re.sub(r"^Error in user-defined function.*?iterator: \S+ ", "", first).rstrip(" .")

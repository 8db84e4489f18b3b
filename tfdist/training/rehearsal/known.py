"""The models whose steps need no rehearsal: of parts of Keras' that treat every row by itself."""

from __future__ import annotations

from typing import Any

import keras

from tfdist.keras_internals import compiled_losses, flatten_layers, function_of, is_of_keras
from tfdist.training.model.inspection import flat_metrics, overrides

_STEPS = ("train_step", "test_step", "predict_step", "compute_loss", "compute_metrics")
# Layers of Keras' that run the user's code, or pad rows to the longest one of a batch, or mix rows.
_OPEN = (
    *("Lambda", "TextVectorization", "MixUp", "CutMix", "RandAugment"),
    *("TFSMLayer", "FlaxLayer", "JaxLayer", "TorchModuleWrapper"),
)
_MODELS = (keras.Model, keras.Sequential)
# Attributes of layers that hold functions, which may be the user's own.
_FUNCTIONS = ("activation", "recurrent_activation")


def is_known(model: keras.Model) -> bool:
    """Returns whether each layer, loss, metric and step is Keras' own and treats rows one by one.

    What they do for one row is shown by the conformance tests.

    Args:
        model: A built model.
    """
    if any(overrides(model, method) for method in _STEPS):
        return False
    if overrides(model, "call") and not is_of_keras(type(model)):
        return False
    if not all(_is_known_layer(layer) for layer in flatten_layers(model, include_self=False)):
        return False
    operations = getattr(model, "operations", None) or ()
    if not all(isinstance(operation, keras.layers.Layer) for operation in operations):
        return False
    return not own_losses(model) and all(
        is_of_keras(type(metric)) and is_of_keras(function_of(metric) or type(metric))
        for metric in flat_metrics(model)
    )


def own_losses(model: keras.Model) -> list[keras.Loss]:
    """Returns the compiled losses that compute with the user's code."""
    return [
        loss
        for loss in compiled_losses(model)
        if not is_of_keras(getattr(loss, "fn", None) or type(loss))
    ]


def _is_known_layer(layer: Any) -> bool:
    kind = type(layer)
    if not is_of_keras(kind) or kind.__name__ in _OPEN:
        return False
    if isinstance(layer, _MODELS):
        return all(
            isinstance(part, keras.layers.Layer) for part in getattr(layer, "operations", ())
        )
    axis = getattr(layer, "axis", None)
    if 0 in (tuple(axis) if isinstance(axis, (list, tuple)) else (axis,)):
        return False
    for name in _FUNCTIONS:
        function = getattr(layer, name, None)
        if callable(function) and not is_of_keras(function) and not is_of_keras(type(function)):
            return False
    regularizers = (getattr(layer, n, None) for n in vars(layer) if n.endswith("regularizer"))
    return all(r is None or is_of_keras(type(r)) for r in regularizers)

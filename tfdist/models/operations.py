"""Counts the parameters, operations and activations of a Keras model.

The operations are counted twice: by TensorFlow's own profiler, which reads them from the graph of a
forward pass, and by the arithmetic of the layers. The first has all that the profiler knows (also
biases and normalizations), the second the multiply-adds of convolutions and dense layers, which is
what papers give. A layer of another kind that has a matrix of weights is named.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from tfdist.errors import ConfigError


@dataclass(frozen=True)
class Operations:
    """The size of a model, for one example.

    Attributes:
        parameters: Values of all weights.
        trainable: Values of those that are trained.
        multiply_adds: Multiply-adds of a forward pass, by the arithmetic of its layers.
        profiled_flop: FLOP of a forward pass, by TensorFlow's profiler; a multiply-add is two.
        activations: Values of all layers' outputs. A backward pass needs that many at most.
        input_bytes: Bytes of the inputs, in their own type.
        uncounted: Layers with matrices of weights that the arithmetic does not know.
    """

    parameters: int
    trainable: int
    multiply_adds: int
    profiled_flop: int
    activations: int
    input_bytes: int
    uncounted: tuple[str, ...] = ()


def count_operations(model: keras.Model) -> Operations:
    """Counts the operations of a forward pass of one example.

    Args:
        model: A model whose inputs have fixed shapes, except for the batch.

    Raises:
        ConfigError: An input's shape is not fixed, or not known.

    Example:
        >>> from tfdist.models.operations import count_operations
        >>> count = count_operations(tfdist.models.small_cnn())
        >>> count.parameters, count.multiply_adds
        (1418, 78496)
    """
    specs = _inputs(model)
    counted = 0
    activations = 0
    uncounted = []
    for layer in _leaves(model):
        own = multiply_adds(layer)
        if own is None:
            uncounted.append(f"{layer.name} ({type(layer).__name__})")
        counted += own or 0
        activations += _output_values(layer)
    return Operations(
        parameters=model.count_params(),
        trainable=sum(math.prod(weight.shape) for weight in model.trainable_weights),
        multiply_adds=counted,
        profiled_flop=_profiled(model, specs),
        activations=activations,
        input_bytes=sum(math.prod(spec.shape) * spec.dtype.size for spec in specs),
        uncounted=tuple(uncounted),
    )


def multiply_adds(layer: Any) -> int | None:
    """Returns the multiply-adds of a layer for one example; None where it is not known.

    Args:
        layer: A layer that has been called on one input of a fixed shape.
    """
    layers = keras.layers
    if isinstance(layer, layers.Dense):
        return math.prod(layer.output.shape[1:]) * layer.kernel.shape[0]
    pixels = _positions(layer)
    if isinstance(layer, (layers.SeparableConv1D, layers.SeparableConv2D)):
        kernels = (layer.depthwise_kernel, layer.pointwise_kernel)
        return pixels * sum(math.prod(kernel.shape) for kernel in kernels)
    if isinstance(layer, (layers.DepthwiseConv1D, layers.DepthwiseConv2D)):
        return pixels * math.prod(layer.kernel.shape)
    transposed = (layers.Conv1DTranspose, layers.Conv2DTranspose, layers.Conv3DTranspose)
    if isinstance(layer, transposed):
        return _positions(layer, of_input=True) * math.prod(layer.kernel.shape)
    if isinstance(layer, (layers.Conv1D, layers.Conv2D, layers.Conv3D)):
        # A kernel of a group has the channels of that group only.
        return pixels * math.prod(layer.kernel.shape)
    # An embedding looks rows up.
    has_matrix = any(len(weight.shape) > 1 for weight in layer.weights)
    return None if has_matrix and not isinstance(layer, layers.Embedding) else 0


def _positions(layer: Any, *, of_input: bool = False) -> int:
    """Returns the number of positions of a convolution's kernel; 1 for other layers."""
    if not hasattr(layer, "data_format") or not layer.weights:
        return 1
    shape = (layer.input if of_input else layer.output).shape[1:]
    return math.prod(shape[:-1] if layer.data_format == "channels_last" else shape[1:])


def _leaves(model: Any) -> Iterator[Any]:
    for layer in model.layers:
        if isinstance(layer, keras.Model):
            yield from _leaves(layer)
        else:
            yield layer


def _output_values(layer: Any) -> int:
    if isinstance(layer, keras.layers.InputLayer):
        return 0
    try:
        outputs = keras.tree.flatten(layer.output)
    except AttributeError:  # Called in a model's own code, not in a graph of layers.
        return 0
    return sum(math.prod(size or 1 for size in each.shape[1:]) for each in outputs)


def _inputs(model: Any) -> list[tf.TensorSpec]:
    try:
        inputs = keras.tree.flatten(model.inputs or [])
    except (AttributeError, ValueError):
        inputs = []
    if not inputs or any(None in each.shape[1:] for each in inputs):
        shapes = ", ".join(str(each.shape) for each in inputs) or "none"
        raise ConfigError(
            f"plan(--model): {model.name!r} has inputs of shapes {shapes}; allowed: a model made "
            "of layers whose inputs have fixed shapes except for the batch; give --image-size, or "
            "--multiply-adds and --parameters"
        )
    return [tf.TensorSpec((1, *each.shape[1:]), each.dtype) for each in inputs]


def _profiled(model: Any, specs: list[tf.TensorSpec]) -> int:
    """Returns the FLOP that TensorFlow's profiler counts in the graph of a forward pass."""

    def forward(*inputs: tf.Tensor) -> Any:
        given = inputs[0]
        if len(inputs) > 1:
            given = tf.nest.pack_sequence_as(model.input, list(inputs))
        return model(given, training=False)

    graph = tf.function(forward, autograph=False).get_concrete_function(*specs).graph
    options = tf.compat.v1.profiler.ProfileOptionBuilder.float_operation()
    logger = tf.get_logger()
    level = logger.level
    logger.setLevel("ERROR")  # It warns of its own use of a deprecated function.
    try:
        found = tf.compat.v1.profiler.profile(graph, options={**options, "output": "none"})
    finally:
        logger.setLevel(level)
    return int(found.total_float_ops)

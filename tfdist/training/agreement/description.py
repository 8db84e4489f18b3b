"""Describes a call of `fit` as fields that must be the same on every worker."""

from __future__ import annotations

import dataclasses
import json
import platform
import re
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tfdist
from tfdist.keras_internals import compile_arguments, inner_layers, is_of_keras, rate_of
from tfdist.training.agreement import checksum
from tfdist.training.agreement.compare import Field
from tfdist.training.agreement.values import (
    attributes_of,
    code_of,
    config_of,
    fields_of,
    flattened,
    numberless,
    serialized,
)
from tfdist.training.input.shuffles import seeds_of
from tfdist.training.model.inspection import all_optimizers, inner_optimizer
from tfdist.training.options import TrainerOptions

# Used by the chief only, so the other workers may have others.
_MAY_DIFFER = ("checkpoint_dir", "keep_checkpoints", "profile", "profile_dir")
# Parts of a configuration that other fields describe.
_PARTS = ("layers", "input_layers", "output_layers", "build_config", "compile_config")


def describe_call(
    model: keras.Model, options: TrainerOptions, data: dict[str, Any], fit: dict[str, Any]
) -> list[Field]:
    """Describes a call of `fit` before anything is read or built.

    Args:
        model: The model.
        options: The trainer's options.
        data: Structures that hold the data, by name; None where there is none.
        fit: The other arguments of `fit`.
    """
    fields: list[Field] = list(_versions())
    for name, value in data.items():
        if value is not None:
            fields += describe_data(name, value)
        else:
            fields.append((name, "None"))
    for name, value in fit.items():
        fields += fields_of(f"fit.{name}", value)
    fields += _trainer(options)
    fields += _model(model)
    return fields


def describe_data(name: str, data: Any) -> Iterator[Field]:
    """Describes data without reading it, apart from arrays, of which it takes a checksum.

    A function of `InputContext` gives each worker other data: only the attributes of the whole
    are described, which a `tfdist.data` pipeline has.
    """
    if isinstance(data, tf.data.Dataset):
        yield name, "tf.data.Dataset"
        yield f"{name}.element_spec", repr(data.element_spec)
        yield f"{name}.batches", str(int(data.cardinality()))
        for place, seeds in enumerate(seeds_of(data)):
            yield f"{name}.shuffle[{place}].seed", seeds
    elif isinstance(data, keras.utils.PyDataset):
        yield name, type(data).__name__
        yield f"{name}.batches", str(data.num_batches)
    elif callable(data) and not hasattr(data, "__array__"):
        yield name, "a function of InputContext"
        for attribute, label in (
            ("num_examples", "examples"),
            ("global_batch", "global_batch"),
            ("image_shape", "image_shape"),
            ("seed", "seed"),
        ):
            if hasattr(data, attribute):
                yield f"{name}.{label}", repr(getattr(data, attribute))
    elif hasattr(data, "__next__"):
        yield name, "a generator"
    else:
        yield from _arrays(name, data)


def _arrays(name: str, data: Any) -> Iterator[Field]:
    leaves = keras.tree.flatten(data)
    yield name, f"arrays ({len(leaves)})"
    for place, leaf in enumerate(leaves):
        if hasattr(leaf, "__next__") or isinstance(leaf, tf.data.Dataset) or callable(leaf):
            yield from describe_data(f"{name}[{place}]", leaf)
        elif leaf is not None:
            array = leaf if hasattr(leaf, "shape") else np.asarray(leaf)
            yield f"{name}[{place}].examples", str(tuple(array.shape)[:1])
            yield f"{name}[{place}]", " ".join(checksum.of_structure(array))


def describe_batch(data: Any, *, random: bool) -> list[Field]:
    """Describes the content of the first global batch.

    Args:
        data: The batch.
        random: Whether it is made with random numbers, as for augmentation, so that each worker
            may have other images. Then only labels are described: one integer per example.
    """
    leaves = tf.nest.flatten(data, expand_composites=True)
    return [
        (f"data.first_batch[{place}]", checksum.of_structure(leaf)[0])
        for place, leaf in enumerate(leaves)
        if not random or (not leaf.dtype.is_floating and len(leaf.shape) == 1)
    ]


def describe_variables(model: keras.Model) -> list[Field]:
    """Describes all weights, statistics and seeds, and the optimizers' variables."""
    weights = [
        (f"weights.{numberless(str(variable.path))} [{place}]", checksum.of_variable(variable))
        for place, variable in enumerate(model.variables)
    ]
    return weights + list(_states(model))


def describe_rates(model: keras.Model) -> list[Field]:
    """Describes the optimizers' scalars only, such as rates and counts, which is cheap."""
    return list(_states(model, only_scalars=True))


def _states(model: keras.Model, *, only_scalars: bool = False) -> Iterator[Field]:
    for number, optimizer in enumerate(all_optimizers(model)):
        owner = "optimizer" if not number else f"optimizer[{number}]"
        if not isinstance(optimizer, keras.optimizers.Optimizer):
            continue
        for place, variable in enumerate(optimizer.variables):
            name = f"state.{owner}.{numberless(str(variable.path)).rpartition('/')[2]} [{place}]"
            if tuple(variable.shape) == ():  # A rate or a count tells more than its checksum.
                yield name, str(checksum.value_of(variable)[()])
            elif not only_scalars:
                yield name, checksum.of_variable(variable)


def _versions() -> Iterator[Field]:
    yield "versions.tfdist", tfdist.__version__
    yield "versions.tensorflow", tf.__version__
    yield "versions.keras", keras.__version__
    yield "versions.python", ".".join(platform.python_version_tuple()[:2])


def _trainer(options: TrainerOptions) -> Iterator[Field]:
    for field in dataclasses.fields(options):
        if field.name not in _MAY_DIFFER:
            yield from fields_of(f"Trainer.{field.name}", getattr(options, field.name))
    given = "given" if options.checkpoint_dir is not None else "None"
    yield "Trainer.checkpoint_dir", given


def _model(model: keras.Model) -> Iterator[Field]:
    yield "keras.floatx", keras.config.floatx()
    yield "model", numberless(type(model).__name__)
    if not is_of_keras(type(model)):
        yield "model.code", code_of(type(model))
        yield from flattened("model", attributes_of(model))
    yield "model.trainable", str(model.trainable)
    yield from _layers("model", model, set())
    yield from _connections(model)
    yield "model.compiled", str(model.compiled)
    if not model.compiled:
        return
    for name, value in compile_arguments(model).items():
        if name != "optimizer":
            yield from fields_of(f"compile.{name}", value)
    for number, optimizer in enumerate(all_optimizers(model)):
        yield from _optimizer("optimizer" if not number else f"optimizer[{number}]", optimizer)


def _layers(name: str, container: Any, seen: set[int]) -> Iterator[Field]:
    """Describes the layers of a model and those within them; a shared one only once."""
    layers = getattr(container, "layers", None)
    layers = list(layers if layers is not None else inner_layers(container))
    yield f"{name}.layers", f"{len(layers)} of them"
    for place, layer in enumerate(layers):
        if id(layer) in seen:
            continue
        seen.add(id(layer))
        below = f"{name}.layers[{place}] {numberless(layer.name)}"
        yield from _layer(below, layer)
        if getattr(layer, "layers", None) or inner_layers(layer):
            yield from _layers(below, layer, seen)


def _layer(name: str, layer: keras.Layer) -> Iterator[Field]:
    described = serialized(layer)
    config = {k: v for k, v in described["config"].items() if k not in _PARTS}
    config |= {"trainable": layer.trainable, "dtype": layer.dtype_policy.name}
    yield from flattened(name, described | {"config": config})


def _connections(model: keras.Model) -> Iterator[Field]:
    """Describes the connections of a functional model's layers, by the layers' places."""
    config = config_of(model) if hasattr(model, "operations") else {}
    layers = [layer for layer in config.get("layers", []) if isinstance(layer, dict)]
    places = {layer.get("name", layer["config"].get("name")): i for i, layer in enumerate(layers)}
    for place, layer in enumerate(layers):
        nodes = json.dumps(layer.get("inbound_nodes", []), default=str, sort_keys=True)
        found = re.findall(r'"keras_history": \["([^"]*)", (\d+), (\d+)\]', nodes)
        yield (
            f"model.layers[{place}].inputs",
            str([(places.get(source, -1), int(tensor)) for source, _, tensor in found]),
        )


def _optimizer(name: str, optimizer: Any) -> Iterator[Field]:
    if optimizer is None:
        yield name, "None"
        return
    inner = inner_optimizer(optimizer)
    if inner is not optimizer:
        yield f"{name}.scaled_by", type(optimizer).__name__
    described = serialized(inner)
    # A rate that is a number is a variable, which a callback may set for all later.
    config = {k: v for k, v in described["config"].items() if k != "name"}
    rate = rate_of(inner)
    if rate is not None:
        rate = rate.numpy() if isinstance(rate, keras.Variable) else rate
        config["learning_rate"] = serialized(rate)
    yield from flattened(name, described | {"config": config})

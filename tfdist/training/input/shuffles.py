"""Finds transformations of a `tf.data.Dataset` whose order differs between workers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tfdist.errors import ConfigError
from tfdist.keras_internals import (
    dataset_functions,
    dataset_inputs,
    dataset_seeds,
    may_reorder,
)

# Operations that draw random numbers, those of Keras' seed generators included; and operations
# that call functions.
_DRAWS = (
    "Random",
    "StatelessRandom",
    "StatelessTruncated",
    "StatelessMultinomial",
    "TruncatedNormal",
    "ParameterizedTruncated",
    "Multinomial",
    "StatefulUniform",
    "StatefulStandardNormal",
    "StatefulTruncated",
    "SampleDistortedBoundingBox",
    "StatelessSampleDistorted",
)
_CALLS = {"PartitionedCall", "StatefulPartitionedCall", "If", "StatelessIf", "While"} | {
    "StatelessWhile",
    "Case",
    "StatelessCase",
}


def seeds_of(dataset: tf.data.Dataset) -> list[str]:
    """Returns the seeds of all shuffles of a dataset, the last first; `none` for no seed."""
    return [_seeds(node) or "none" for node in _nodes(dataset) if dataset_seeds(node) is not None]


def require_an_order(argument: str, data: Any) -> None:
    """Rejects a dataset that each worker would read in another order.

    Args:
        argument: The name of the argument, for the message.
        data: A dataset of global batches, of which each worker takes its part; anything else is
            accepted.

    Raises:
        ConfigError: It shuffles without a seed, or its order is not deterministic.
    """
    if not isinstance(data, tf.data.Dataset):
        return
    for node in _nodes(data):
        if dataset_seeds(node) == (0, 0):
            what = "shuffle" if "huffle" in type(node).__name__ else type(node).__name__.strip("_")
            raise ConfigError(
                f"{argument}: {what} has no seed, so each worker would read other batches and "
                "some examples twice; give it one, as in shuffle(n, seed=1), call "
                "keras.utils.set_random_seed(...) or tf.random.set_seed(...) before making the "
                "dataset, or give a function of InputContext"
            )
    if data.options().deterministic is False or any(map(may_reorder, _nodes(data))):
        raise ConfigError(
            f"{argument}: its order is not deterministic, so each worker would read other "
            "batches; leave deterministic=False out, or give a function of InputContext"
        )


def is_random(data: Any) -> bool:
    """Returns whether a dataset's own functions draw random numbers, as for augmentation."""
    if not isinstance(data, tf.data.Dataset):
        return False
    return any(_draws(graph) for node in _nodes(data) for graph in dataset_functions(node))


def _draws(graph: Any) -> bool:
    types = {operation.type for operation in graph.get_operations()}
    if types & _CALLS:
        library = graph.as_graph_def().library.function
        types |= {node.op for function in library for node in function.node_def}
    return any(type_.startswith(_DRAWS) for type_ in types)


def _nodes(dataset: tf.data.Dataset) -> Iterator[Any]:
    """Yields the dataset and all datasets that it is made from."""
    waiting, seen = [dataset], set()
    while waiting:
        node = waiting.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        yield node
        waiting.extend(reversed(dataset_inputs(node)))


def _seeds(node: Any) -> str:
    """Returns the two seeds of a transformation; "" if it has none."""
    pair = dataset_seeds(node)
    return "" if pair in (None, (0, 0)) else f"{pair[0]}, {pair[1]}"

"""Recognizes what kind of data users give, and makes its feed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from tfdist.collectives.layout import ReplicaLayout
from tfdist.errors import ConfigError
from tfdist.keras_internals import (
    ArrayDataAdapter,
    array_slicing,
    can_convert_arrays,
    data_adapters,
)
from tfdist.training.input.adapters import (
    Batches,
    DatasetBatches,
    FunctionBatches,
    one_line,
)
from tfdist.training.input.arrays import ArrayBatches, check_arrays
from tfdist.training.input.class_weights import check_weighable
from tfdist.training.input.feed import Feed, ShardedFeed
from tfdist.training.input.generated import GeneratorBatches, PyDatasetBatches

_DEFAULT_BATCH = 32


@one_line()
def make_feed(
    x: Any,
    y: Any = None,
    sample_weight: Any = None,
    *,
    layout: ReplicaLayout | None = None,
    batch_size: int | None = None,
    shuffle: bool | str = False,
    seed: int = 0,
    class_weight: dict[int, float] | None = None,
    steps: int | None = None,
    steps_a_call: int = 1,
    hands_out_rows: bool = False,
) -> Feed:
    """Makes the feed of any data that Keras' `fit` accepts, or a function of `InputContext`.

    Args:
        x: A `tf.data.Dataset` of global batches; a function of `tf.distribute.InputContext`
            (and, if it takes them, of `epoch`, and of `first_batch`, the batch to start at) that
            returns this pipeline's dataset of batches; a `keras.utils.PyDataset` or a generator of
            global batches; or arrays.
        y: Targets, with arrays only.
        sample_weight: Weights, with arrays only.
        layout: The replicas this process holds; None for one device, fed as by Keras.
        batch_size: The global batch, with arrays only.
        shuffle: Whether to shuffle arrays, and the batches of a PyDataset, in each epoch; "batch"
            shuffles arrays within their batches.
        seed: The order depends on it and the epoch.
        class_weight: A weight for each class.
        steps: Steps per epoch, or None for all of the data.
        steps_a_call: The number of steps that Keras makes per call on one device, where only the
            end of the data makes a call shorter.
        hands_out_rows: Whether elements of arrays for replicas are the numbers of their rows.

    Raises:
        ConfigError: The data is none of these, or an argument cannot be used with it.
    """
    for_replicas = layout is not None
    batches: Batches
    check_arrays(x, y, sample_weight, for_replicas=for_replicas)
    if isinstance(x, (tf.data.Dataset, keras.utils.PyDataset, Iterator)):
        _check_given_alone(x, y, sample_weight, batch_size if for_replicas else None)
    if _is_function(x):
        batches = FunctionBatches(x, layout or ReplicaLayout(), class_weight)
    elif can_convert_arrays((x, y, sample_weight)):
        if class_weight is not None:
            check_weighable(*(part for part in (x, y, sample_weight) if part is not None))
        adapter = ArrayDataAdapter(
            *(x, y, sample_weight),
            batch_size=batch_size or (_DEFAULT_BATCH if for_replicas else None),
            steps=steps,
            class_weight=class_weight,
        )
        batches = ArrayBatches(adapter, shuffle, seed, of_any_size=for_replicas)
    elif isinstance(x, tf.data.Dataset):
        batches = DatasetBatches(data_adapters.get_data_adapter(x), class_weight)
    elif isinstance(x, keras.utils.PyDataset):
        order = seed if shuffle else None
        batches = PyDatasetBatches(x, order, class_weight, for_replicas=for_replicas)
    elif isinstance(x, Iterator):
        batches = GeneratorBatches(x, class_weight, for_replicas=for_replicas)
    else:
        options = {"steps_per_epoch": steps, "class_weight": class_weight}
        batches = Batches(data_adapters.get_data_adapter(x, y, sample_weight, **options))
    if layout is None:
        # As in Keras, each call makes all of its steps.
        return Feed(batches, -(-steps // steps_a_call) * steps_a_call if steps else None)
    whole = layout.workers == 1 or not isinstance(batches, FunctionBatches)
    return ShardedFeed(batches, steps, layout=layout, whole=whole, hands_out_rows=hands_out_rows)


@one_line()
def split_validation(x: Any, y: Any, sample_weight: Any, fraction: float) -> tuple[Any, Any]:
    """Splits arrays as Keras does: the last rows are for validation.

    Args:
        x: Arrays, or a structure of them.
        y: Targets, or None.
        sample_weight: Weights, or None.
        fraction: The fraction of the rows to validate on.

    Returns:
        Two triples of x, y and sample_weight.

    Raises:
        ConfigError: The fraction is not between 0 and 1, or the data is not arrays.
    """
    if not 0 < fraction < 1:
        raise ConfigError(f"validation_split: {fraction} is given; allowed: between 0 and 1")
    if isinstance(x, tf.data.Dataset) or callable(x):
        raise ConfigError(
            "validation_split: allowed with arrays only; give validation_data instead"
        )
    return array_slicing.train_validation_split((x, y, sample_weight), fraction)


def _is_function(x: Any) -> bool:
    return (
        callable(x)
        and not hasattr(x, "__array__")
        and not isinstance(x, (tf.data.Dataset, keras.utils.PyDataset, Iterator))
    )


def _check_given_alone(x: Any, y: Any, sample_weight: Any, batch_size: int | None) -> None:
    """Rejects arguments that only arrays go with."""
    for name, value in (("y", y), ("sample_weight", sample_weight)):
        if value is not None:
            raise ConfigError(
                f"{name}: given as well as data that already holds it ({type(x).__name__}); "
                "put it into the dataset's elements (x, y, sample_weight)"
            )
    if batch_size is not None:
        raise ConfigError(
            f"batch_size: {batch_size} is given with data that comes in batches "
            f"({type(x).__name__}); leave it out"
        )

"""Features: where the batches come from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tests.training.conformance.setting import (
    BATCH,
    ROWS,
    WIDTH,
    Recipe,
    Setting,
    batches,
    classifier,
    classify,
    crossentropy,
    feature,
    inputs,
    labels,
    sgd,
)

GROUP = "Data"


def _classifier() -> keras.Model:
    model = classifier()
    model.compile(sgd(), crossentropy(), metrics=["accuracy"])
    return model


@feature("Last batch with fewer rows than replicas", GROUP)
def one_row_left(setting: Setting) -> Recipe:
    recipe = classify(_classifier(), rows=17)  # 8, 8 and 1
    recipe.evaluate = {"x": batches(inputs(11), labels(11), batch=5)}
    recipe.predict = {"x": inputs(8), "batch_size": BATCH}
    return recipe


@feature("Batches of one row", GROUP)
def single_rows(setting: Setting) -> Recipe:
    data = batches(inputs(4), labels(4), batch=1)
    return Recipe(
        _classifier(),
        fit={"x": data, "epochs": 2},
        evaluate={"x": data},
        predict={"x": inputs(3), "batch_size": 1},
    )


@feature("Repeated dataset with steps_per_epoch and validation_steps", GROUP)
def repeated(setting: Setting) -> Recipe:
    data = batches(inputs(), labels()).repeat()
    return Recipe(
        _classifier(),
        fit={
            "x": data,
            "epochs": 3,
            "steps_per_epoch": 4,
            "validation_data": data,
            "validation_steps": 2,
        },
        evaluate={"x": data, "steps": 3},
    )


@feature("Finite dataset with fewer steps_per_epoch", GROUP)
def limited(setting: Setting) -> Recipe:
    return classify(_classifier(), steps_per_epoch=3)


# Keras' own counter runs ahead of data of unknown size: it counts the step in which it ends.
@feature("Dataset of unknown size", GROUP, only=("history", "weight", "evaluate", "predict"))
def unknown_size(setting: Setting) -> Recipe:
    data = batches(inputs(), labels()).filter(lambda x, y: True)
    recipe = classify(_classifier())
    recipe.fit["x"] = data
    recipe.evaluate = {"x": data}
    return recipe


@feature("Arrays in their order, validation_split", GROUP)
def arrays(setting: Setting) -> Recipe:
    return Recipe(
        _classifier(),
        fit={
            "x": inputs(),
            "y": labels(),
            "batch_size": BATCH,
            "epochs": 2,
            "shuffle": False,
            "validation_split": 0.3,
        },
    )


@feature("Arrays, shuffled", GROUP, reference="one_device")
def shuffled_arrays(setting: Setting) -> Recipe:
    return Recipe(
        _classifier(),
        fit={"x": inputs(), "y": labels(), "batch_size": BATCH, "epochs": 2},
    )


@feature("Dict of arrays", GROUP)
def dict_of_arrays(setting: Setting) -> Recipe:
    ins = {name: keras.Input((WIDTH,), name=name) for name in ("a", "b")}
    out = keras.layers.Dense(3)(keras.layers.Add()(list(ins.values())))
    model = keras.Model(ins, out)
    model.compile(sgd(), crossentropy())
    x = {"a": inputs(), "b": inputs(seed=9)}
    return Recipe(
        model,
        fit={"x": x, "y": labels(), "batch_size": BATCH, "epochs": 2, "shuffle": False},
        predict={"x": x, "batch_size": 9},
    )


@feature("Python generator", GROUP)
def python_generator(setting: Setting) -> Recipe:
    def endless() -> Iterator[Any]:
        while True:
            for begin in range(0, ROWS, BATCH):
                yield inputs()[begin : begin + BATCH], labels()[begin : begin + BATCH]

    return Recipe(_classifier(), fit={"x": endless(), "epochs": 2, "steps_per_epoch": 6})


class Batches(keras.utils.PyDataset):
    """The batches one by one."""

    def __len__(self) -> int:
        return -(-ROWS // BATCH)

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        rows = slice(index * BATCH, (index + 1) * BATCH)
        return inputs()[rows], labels()[rows]


@feature("PyDataset", GROUP)
def py_dataset(setting: Setting) -> Recipe:
    return Recipe(_classifier(), fit={"x": Batches(), "epochs": 2, "shuffle": False})


@feature("Sparse inputs", GROUP)
def sparse_inputs(setting: Setting) -> Recipe:
    x = np.where(np.abs(inputs()) > 1, inputs(), 0)
    data = batches(x, labels()).map(lambda x, y: (tf.sparse.from_dense(x), y))
    model = keras.Sequential([keras.Input((WIDTH,), sparse=True), keras.layers.Dense(3)])
    model.compile(sgd(), crossentropy())
    return Recipe(model, fit={"x": data, "epochs": 2})


def _sharded(setting: Setting, missing: int, known: bool) -> Any:
    """A function of InputContext; one dataset with the same global batches in plain Keras.

    Every global batch is cut between the workers; worker 1 does not have the last `missing`.
    """

    def shard(worker: int, workers: int) -> tf.data.Dataset:
        def pick(index: Any, batch: Any) -> Any:
            rows = tf.shape(batch[0])[0]
            begin, end = worker * rows // workers, (worker + 1) * rows // workers
            return tuple(part[begin:end] for part in batch)

        data = batches(inputs(), labels()).enumerate().map(pick)
        if worker == 1:
            data = data.take(6 - missing)
        return data if known else data.filter(lambda x, y: True)

    if setting.trainer:
        return lambda context: shard(context.input_pipeline_id, context.num_input_pipelines)
    if setting.slices == 1 or missing == 0:
        return batches(inputs(), labels())
    parts = [[(x, y) for x, y in shard(worker, 2)] for worker in range(2)]
    whole = [
        tuple(np.concatenate(pair) for pair in zip(first, *parts[1][i : i + 1], strict=False))
        if i < len(parts[1])
        else tuple(map(np.asarray, first))
        for i, first in enumerate(parts[0])
    ]
    return tf.data.Dataset.from_generator(
        lambda: iter(whole),
        output_signature=(
            tf.TensorSpec((None, WIDTH), tf.float32),
            tf.TensorSpec((None,), tf.int32),
        ),
    )


def _shards(setting: Setting, missing: int, known: bool) -> Recipe:
    recipe = classify(_classifier())
    recipe.fit["x"] = _sharded(setting, missing, known)
    recipe.evaluate = {"x": _sharded(setting, missing, known)}
    recipe.predict = None
    return recipe


@feature("Function of InputContext, equal shards", GROUP, reference="workers")
def equal_shards(setting: Setting) -> Recipe:
    return _shards(setting, 0, True)


@feature(
    "Function of InputContext, one shard two batches shorter",
    GROUP,
    reference="workers",
    only=("history", "weight", "evaluate"),
)
def unequal_shards(setting: Setting) -> Recipe:
    return _shards(setting, 2, True)


@feature(
    "Function of InputContext, shards of unknown size",
    GROUP,
    reference="workers",
    only=("history", "weight", "evaluate"),
)
def unknown_shards(setting: Setting) -> Recipe:
    return _shards(setting, 2, False)

"""On one device data is read as Keras reads it, in an order that seed and epoch decide."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdist.errors import ConfigError
from tfdist.training.input.make_feed import make_feed, split_validation

X = np.arange(10, dtype="float32")[:, None]
Y = np.arange(10)


def batches(*data, epoch=0, first=0, **options) -> list[list[int]]:
    """The targets of each batch of an epoch."""
    passed = make_feed(*data, **options).epoch(epoch, first=first)
    found = []
    while passed.peek() if passed.steps is None else first + len(found) < passed.steps:
        found.append(np.asarray(passed.pop()[1]).tolist())
    return found


class Sequence(keras.utils.PyDataset):
    ends = 0

    def __len__(self):
        return 5

    def __getitem__(self, index):
        return X[2 * index : 2 * index + 2], Y[2 * index : 2 * index + 2]

    def on_epoch_end(self):
        self.ends += 1


def generated():
    for index in range(5):
        yield list(Sequence()[index])


PAIRS = [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]
DATA = {
    "arrays": lambda: (X, Y),
    "dataset": lambda: (tf.data.Dataset.from_tensor_slices((X, Y)).batch(2),),
    "py_dataset": lambda: (Sequence(),),
    "generator": lambda: (generated(),),
    "function": lambda: (lambda context: tf.data.Dataset.from_tensor_slices((X, Y)).batch(2),),
}


@pytest.mark.parametrize("kind", DATA)
def test_any_data_comes_in_its_batches_from_any_of_them_on(kind):
    options = {"batch_size": 2} if kind == "arrays" else {}
    assert batches(*DATA[kind](), **options) == PAIRS
    if kind != "generator":  # What has been read of it is gone.
        assert batches(*DATA[kind](), first=3, **options) == PAIRS[3:]
    assert make_feed(*DATA[kind](), **options).rows == 2


def test_shuffled_arrays_differ_by_epoch_and_agree_by_seed():
    options = {"batch_size": 4, "shuffle": True}
    first = batches(X, Y, seed=1, **options)
    assert [len(batch) for batch in first] == [4, 4, 2]
    assert sorted(sum(first, [])) == list(range(10))
    assert batches(X, Y, seed=1, **options) == first
    assert batches(X, Y, seed=1, first=1, **options) == first[1:]
    assert batches(X, Y, seed=2, **options) != first != batches(X, Y, seed=1, epoch=1, **options)
    within = batches(X, Y, batch_size=4, shuffle="batch")
    assert [sorted(batch) for batch in within] == batches(X, Y, batch_size=4)
    assert within != batches(X, Y, batch_size=4)


def test_a_shuffled_py_dataset_keeps_its_batches():
    orders = [batches(Sequence(), shuffle=True, seed=1, epoch=epoch) for epoch in (0, 0, 1)]
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[0]) == PAIRS
    assert batches(Sequence(), shuffle=True, seed=1, first=2) == orders[0][2:]
    assert batches(Sequence(), shuffle=True, seed=2) != orders[0]
    data = Sequence()
    feed = make_feed(data)
    feed.epoch(0)
    feed.end_epoch()
    assert data.ends == 1


@pytest.mark.parametrize(("batch_size", "rows"), [(5, 5), (4, None)])
def test_a_graph_knows_the_size_of_batches_that_are_all_of_one(batch_size, rows):
    spec = make_feed(X, Y, batch_size=batch_size).element_spec
    assert spec[0].shape.as_list() == [rows, 1]


@pytest.mark.parametrize("kind", DATA)
def test_class_weights_become_sample_weights(kind):
    options = {"batch_size": 2} if kind == "arrays" else {}
    feed = make_feed(
        *DATA[kind](), class_weight=dict.fromkeys(range(10), 1.0) | {1: 3.0}, **options
    )
    *_, weights = feed.epoch(0).pop()
    assert weights.numpy().tolist() == [1.0, 3.0]


def test_steps_are_those_of_whole_calls():
    feed = make_feed(X, Y, batch_size=2, steps=3, steps_a_call=2)
    assert feed.epoch(0).steps == 4


def test_what_keras_refuses_is_said_in_one_line():
    with pytest.raises(ConfigError, match="^data: [^\n]*$"):
        make_feed(X, Y[:3])
    with pytest.raises(ConfigError, match="^y: given as well as data[^\n]*$"):
        make_feed(Sequence(), Y)


def test_the_last_part_is_validated_on():
    (x, y, weight), (x_last, y_last, _) = split_validation(X, Y, None, 0.25)
    assert (len(x), len(y), weight) == (7, 7, None)
    assert np.asarray(y_last).tolist() == [7, 8, 9]
    assert np.asarray(x_last).tolist() == X[7:].tolist()
    with pytest.raises(ConfigError, match="^validation_split: "):
        split_validation(tf.data.Dataset.range(3), None, None, 0.5)

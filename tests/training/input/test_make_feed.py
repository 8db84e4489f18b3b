"""Whatever users give as data comes as the batches that Keras would make of it."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdist.collectives.layout import ReplicaLayout
from tfdist.errors import ConfigError
from tfdist.training.input import arrays
from tfdist.training.input.arrays import pick
from tfdist.training.input.feed import Feed
from tfdist.training.input.make_feed import make_feed, split_validation

X = np.arange(10, dtype="float64")[:, None]
Y = np.arange(10) % 3
ALONE = ReplicaLayout()


def elements(x, y=None, sample_weight=None, *, epoch=0, first=0, layout=ALONE, **options) -> list:
    """The elements of an epoch: data as arrays, and the rows it was cut from."""
    feed = make_feed(x, y, sample_weight, layout=layout, **options)
    feed.sample()
    passed = feed.epoch(epoch, first=first)
    found = []
    while passed.peek() if passed.steps is None else first + len(found) < passed.steps:
        data, rows = passed.pop()
        found.append((tf.nest.map_structure(np.asarray, data), int(rows)))
    return found


def batches(begin: int = 0) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices((X[begin:], Y[begin:])).batch(4)


class Sequence(keras.utils.PyDataset):
    def __len__(self):
        return 3

    def __getitem__(self, index):
        piece = slice(4 * index, 4 * index + 4)
        return [X[piece], X[piece]], Y[piece]


def generated():
    for index in range(3):
        yield Sequence()[index]


def test_arrays_come_in_batches_as_float32_with_a_default_size():
    (first, rows), *_, (last, _) = elements(X, Y, np.ones(10), batch_size=4)
    assert [part.dtype for part in first] == ["float32", Y.dtype, "float32"]
    assert rows == 4
    assert last[0].tolist() == [[8], [9]]
    many = np.zeros((70, 1), "int8")
    assert [(len(x), x.dtype) for x, _ in elements(many)] == [(n, "int8") for n in (32, 32, 6)]


def test_structures_of_arrays_stay():
    ((data, _),) = elements({"a": X, "b": [X, X + 1]}, {"p": Y}, batch_size=10)
    x, y = data
    assert sorted(x) == ["a", "b"]
    assert isinstance(x["b"], tuple)  # tf.data takes lists for tensors.
    assert x["b"][1][0, 0] == 1
    assert y["p"].tolist() == Y.tolist()


def test_an_element_that_is_no_tuple_is_the_inputs():
    dataset = tf.data.Dataset.from_tensor_slices(X).batch(4)
    assert elements(dataset)[0][0].tolist() == [[0], [1], [2], [3]]
    named = tf.data.Dataset.from_tensor_slices({"a": X}).batch(4)
    assert elements(named)[0][0]["a"].shape == (4, 1)
    pair = tf.data.Dataset.from_tensor_slices(((X, X + 1),)).batch(4)
    (inputs,) = elements(pair)[0][0]  # not inputs and targets
    assert inputs[1].tolist() == [[1], [2], [3], [4]]


@pytest.mark.parametrize("kind", ["arrays", "dataset", "py_dataset", "generator", "function"])
def test_any_kind_of_data_can_start_at_a_later_batch(kind):
    data = {
        "arrays": (X, Y),
        "dataset": (batches(),),
        "py_dataset": (Sequence(),),
        "generator": (generated(),),
        "function": (lambda context: batches(),),
    }[kind]
    options = {"batch_size": 4} if kind == "arrays" else {}
    found = elements(*data, first=1, **options)
    assert [data[-1].tolist() for data, _ in found] == [Y[4:8].tolist(), Y[8:].tolist()]
    assert [rows for _, rows in found] == [4, 2]


def test_each_worker_gets_its_part_and_knows_of_the_whole():
    layout = ReplicaLayout(worker=1, workers=2, local_replicas=2, replicas=4)
    for data in (batches(), Sequence()):
        found = elements(data, layout=layout)
        assert [part[-1].tolist() for part, _ in found] == [[2, 0], [0, 1], [0]]
        assert [rows for _, rows in found] == [4, 4, 2]


def test_a_function_is_given_what_it_takes_and_its_rows_are_the_workers_own():
    seen = []

    def function(context, epoch, first_batch):
        seen.append((context.input_pipeline_id, context.num_input_pipelines, epoch, first_batch))
        assert context.num_replicas_in_sync == 6
        return batches(4 * first_batch)

    layout = ReplicaLayout(worker=1, workers=3, local_replicas=2, replicas=6)
    feed = make_feed(function, layout=layout)
    assert not feed.whole
    passed = feed.epoch(5, exchange=lambda length: [length] * 3, first=1)
    assert seen == [(1, 3, 5, 1)]
    assert [int(passed.pop()[1]) for _ in range(2)] == [4, 2]
    assert make_feed(function, layout=ALONE).whole


def test_data_that_reshuffles_continues_where_an_earlier_run_had_come():
    def shuffled() -> tf.data.Dataset:
        return tf.data.Dataset.from_tensor_slices(X).shuffle(10, seed=1).batch(10)

    feed, again = (make_feed(shuffled(), layout=ALONE) for _ in range(2))
    orders = []
    for epoch in range(3):
        orders.append(feed.epoch(epoch).pop()[0].numpy().ravel().tolist())
        feed.end_epoch()
    assert len({tuple(order) for order in orders}) == 3
    again.resume(0, 2, 0)
    assert again.epoch(2).pop()[0].numpy().ravel().tolist() == orders[2]
    ends = []
    sequence = Sequence()
    sequence.on_epoch_end = lambda: ends.append(1)
    make_feed(sequence, layout=ALONE).resume(1, 3, 0)
    assert len(ends) == 2


@pytest.mark.parametrize(
    "labels",
    [Y, Y[:, None], Y.astype("float32"), np.eye(4, dtype="float32")[Y]],
    ids=["whole", "column", "float", "one-hot"],
)
def test_class_weights_go_by_any_form_of_label(labels):
    (((_, y, weight), _),) = elements(X, labels, batch_size=10, class_weight={0: 0.5, 1: 2.0})
    assert y.shape == labels.shape
    assert weight.tolist() == [{0: 0.5, 1: 2.0, 2: 1.0}[label] for label in Y]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"x": Sequence(), "y": Y}, "y: given as well as data"),
        ({"x": Sequence(), "sample_weight": Y}, "sample_weight: given as well as.*Sequence"),
        ({"x": Sequence(), "batch_size": 4}, "batch_size: 4"),
        ({"x": X, "y": {"p": Y}, "class_weight": {0: 1.0}}, "one target only"),
        ({"x": X, "class_weight": {0: 1.0}}, "one target only"),
        ({"x": X, "y": Y, "sample_weight": Y, "class_weight": {0: 1.0}}, "one of them"),
    ],
)
def test_arguments_that_do_not_go_together(arguments, named):
    with pytest.raises(ConfigError, match=named):
        make_feed(**arguments, layout=ALONE).sample()


def test_the_last_part_of_arrays_is_validated_on():
    (x, y, none), (x_last, y_last, _) = split_validation({"a": X}, Y, None, 0.25)
    assert (len(x["a"]), len(y), none) == (7, 7, None)
    assert x_last["a"].tolist() == X[7:].tolist()
    assert y_last.tolist() == Y[7:].tolist()
    for fraction in (0, 1, -0.5):
        with pytest.raises(ConfigError, match="validation_split"):
            split_validation(X, Y, None, fraction)
    for data in (tf.data.Dataset.range(3), lambda context: None):
        with pytest.raises(ConfigError, match="arrays only"):
            split_validation(data, None, None, 0.5)


def test_a_generator_may_give_sparse_tensors():
    dense = np.diag([1.0, 2.0, 3.0]).astype("float32")
    rows = [tf.sparse.from_dense(dense[:2]), tf.sparse.from_dense(dense[2:])]
    feed = make_feed(iter(rows), layout=ALONE)
    feed.sample()
    epoch, found = feed.epoch(0), []
    while epoch.peek():
        data, count = epoch.pop()
        found.append((tf.sparse.to_dense(data).numpy().tolist(), int(count)))
    assert found == [(dense[:2].tolist(), 2), (dense[2:].tolist(), 1)]


def test_rows_may_be_handed_out_to_be_picked_elsewhere():
    shuffled = {"batch_size": 4, "shuffle": True, "seed": 3, "class_weight": {0: 0.5, 2: 3.0}}
    labels = np.arange(len(X)) % 3
    given = make_feed(X, labels, layout=ALONE, **shuffled).epoch(1, first=1)
    handed = make_feed(X, labels, layout=ALONE, hands_out_rows=True, **shuffled).epoch(1, first=1)
    assert given.resident_arrays is None
    assert handed.steps == given.steps
    while handed.taken < handed.steps - 1:
        data, count = given.pop()
        rows, same_count = handed.pop()
        assert rows.dtype == "int64"
        assert int(count) == int(same_count)
        for part, picked in zip(data, pick(handed.resident_arrays, rows), strict=True):
            np.testing.assert_array_equal(part, picked)


def test_no_rows_are_handed_out_of_other_data_or_of_large_arrays(monkeypatch):
    data = tf.data.Dataset.from_tensor_slices(X).batch(4)
    assert make_feed(data, layout=ALONE, hands_out_rows=True).epoch(0).resident_arrays is None
    monkeypatch.setattr(arrays, "_MOST_BYTES", 4 * len(X))
    assert make_feed(X, layout=ALONE, hands_out_rows=True).epoch(0).resident_arrays is None


@pytest.mark.parametrize("layout", [None, ALONE], ids=["one device", "replicas"])
@pytest.mark.parametrize("steps", [None, 2])
def test_a_py_dataset_is_read_no_more_often_than_keras_reads_it(layout, steps):
    class Counting(Sequence):
        def __init__(self):
            super().__init__()
            self.read = []

        def __getitem__(self, index):
            self.read.append(index)
            return super().__getitem__(index)

    data = Counting()
    feed = make_feed(data, layout=layout, steps=steps)
    if layout is not None:
        feed.sample()
    assert feed.rows == 4
    assert data.read == [0, 1]  # From which the adapter knows the shapes.
    epoch = feed.epoch(0)
    for _ in range(epoch.steps):
        epoch.pop()
    assert data.read[:4] == [0, 1, 0, 1]


@pytest.mark.parametrize("layout", [None, ALONE], ids=["one device", "replicas"])
def test_lists_of_inputs_in_batches_of_python_code_stay_together(layout):
    for data in (Sequence(), generated()):
        epoch = make_feed(data, layout=layout).epoch(0)
        assert epoch.steps or epoch.peek()
        element = epoch.pop()
        (inputs, y) = element if layout is None else element[0]
        assert [len(part) for part in inputs] == [4, 4]
        assert len(y) == 4


def test_a_part_of_a_generators_batches_may_be_none():
    data = (((X[:4], None), Y[:4]) for _ in range(2))
    feed = make_feed(data, layout=ALONE)
    (first, none), _ = feed.sample()
    assert none is None and len(first) == 4
    epoch = feed.epoch(0)
    assert epoch.peek()
    ((first, none), _), rows = epoch.pop()
    assert none is None and len(first) == int(rows) == 4


@pytest.mark.filterwarnings("ignore:Your input ran out of data")
@pytest.mark.parametrize("to", [1, 2, 3, 4])
def test_fixed_steps_are_resumed_also_where_the_data_has_begun_again(to):
    def feed_of() -> Feed:
        return make_feed(batches(), layout=ALONE, steps=2)  # Of three batches.

    def targets(feed, number, first=0):
        epoch = feed.epoch(number, first=first)
        found = [epoch.pop()[0][1].numpy().tolist() for _ in range(epoch.steps - first)]
        feed.end_epoch()
        return found

    feed = feed_of()
    epochs = [targets(feed, number) for number in range(5)]
    again = feed_of()
    again.resume(0, to, 1)
    assert targets(again, to, first=1) == epochs[to][1:]

"""Rows of a batch of any structure and kind of tensor: counted, cut out, made up."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from tfdist.training.input.batch import empty_dataset, loosen, row_of_zeros, rows_between, rows_of

X = np.arange(12, dtype="float32").reshape(6, 2)


def ragged() -> tf.RaggedTensor:
    return tf.ragged.constant([[0], [1, 1], [], [3], [4, 4]])


def sparse() -> tf.SparseTensor:
    return tf.sparse.from_dense([[0, 1, 0], [2, 0, 0], [0, 0, 3], [4, 0, 0]])


def test_rows_are_those_of_the_first_tensor():
    for data, rows in (
        (tf.constant(X), 6),
        ((None, tf.constant(X)), 6),
        ({"a": tf.constant(X[:2]), "b": tf.constant(X)}, 2),
        (ragged(), 5),
        (sparse(), 4),
    ):
        found = rows_of(data)
        assert (int(found), found.dtype, found.shape.rank) == (rows, tf.int32, 0)


def test_rows_are_cut_out_of_every_tensor():
    data = {"a": tf.constant(X), "b": (None, ragged()), "c": sparse()}
    for begin, end in ((1, 4), (tf.constant(1), tf.constant(4))):
        found = rows_between(data, begin, end)
        np.testing.assert_array_equal(found["a"], X[1:4])
        assert found["b"][0] is None
        assert found["b"][1].to_list() == [[1, 1], [], [3]]
        np.testing.assert_array_equal(
            tf.sparse.to_dense(found["c"]), [[2, 0, 0], [0, 0, 3], [4, 0, 0]]
        )
    assert int(rows_of(rows_between(sparse(), 2, 2))) == 0


def test_in_a_graph_the_number_of_rows_is_made_unknown_and_nothing_else():
    data = (tf.constant(X), {"s": tf.constant(7), "n": None, "r": ragged()})
    shapes = []

    @tf.function(autograph=False)
    def graph():
        x, others = loosen(data)
        shapes.append((x.shape.as_list(), others["s"].shape.as_list(), others["n"]))
        assert isinstance(others["r"], tf.RaggedTensor)
        return x, others["s"]

    x, scalar = graph()
    np.testing.assert_array_equal(x, X)
    assert int(scalar) == 7
    assert shapes == [([None, 2], [], None)]
    assert loosen(data) is data  # There is nothing to loosen where nothing is traced.


def test_a_row_of_zeros_has_the_structure_the_types_and_the_known_sizes():
    spec = (tf.TensorSpec([None, 3], tf.int64), {"a": tf.TensorSpec([8, None, 2], tf.bfloat16)})
    first, others = row_of_zeros(spec)
    assert (first.dtype, first.shape) == (tf.int64, (1, 3))
    assert (others["a"].dtype, others["a"].shape) == (tf.bfloat16, (1, 1, 2))
    assert not first.numpy().any()


def test_an_empty_dataset_has_one_element_without_rows():
    dataset = tf.data.Dataset.from_tensor_slices((X, X.astype("int64"))).batch(4)
    spec = dataset.map(lambda x, y: ((x, y), tf.shape(x)[0])).element_spec
    ((x, y), rows), *more = empty_dataset(spec)
    assert not more
    assert (x.shape, x.dtype, y.shape, y.dtype) == ((0, 2), tf.float32, (0, 2), tf.int64)
    assert (int(rows), rows.dtype) == (0, tf.int32)
    together = dataset.map(lambda x, y: ((x, y), tf.shape(x)[0])).concatenate(empty_dataset(spec))
    assert [int(rows) for _, rows in together] == [4, 2, 0]

"""Each private thing of Keras and TensorFlow is there, and is what tfdist takes it for."""

from __future__ import annotations

import inspect
import threading
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdist import keras_internals
from tfdist.keras_internals import (
    LOSS_MODULE,
    ArrayDataAdapter,
    ResourceVariable,
    added_losses_replaced,
    already_connected,
    array_parts,
    array_slicing,
    assign_directly,
    assigning_directly,
    assignments_seen,
    attach_mask,
    build_symbolically,
    can_convert_arrays,
    clear_losses,
    collective_keys_from,
    compile_arguments,
    compiled_losses,
    compiled_parts,
    compute_output_spec,
    convert_to_np_if_not_ragged,
    data_adapters,
    dataset_functions,
    dataset_inputs,
    dataset_of_one,
    dataset_seeds,
    epoch_of_backup,
    first_batches,
    flatten_layers,
    function_of,
    global_seed,
    has_own_update,
    has_own_weight_decay,
    inner_layers,
    is_default_hook,
    is_eager,
    is_of_keras,
    mask_of,
    may_reorder,
    note_changed_dict,
    outside_scope,
    own_state,
    place_of,
    potentially_ragged_concat,
    pythonify_logs,
    rate_of,
    results_in_order,
    results_or_logs,
    summary_state_kept,
    take_local_number,
    trained_by,
    two_replicas_on_one_device,
    with_own_executor,
    wrapped_dict,
    wrapped_elements,
)

X, Y = np.ones((6, 3), "float32"), np.ones((6, 1), "float32")


def model_of(*layers: keras.Layer, **arguments) -> keras.Model:
    model = keras.Sequential([keras.Input((3,)), *layers, keras.layers.Dense(1)])
    model.compile(**({"optimizer": "sgd", "loss": "mse", "metrics": ["mae"]} | arguments))
    return model


class Adding(keras.Layer):
    """Adds a loss for each example, and counts its calls."""

    def build(self, shape):
        self.calls = self.add_weight(shape=(), initializer="zeros", trainable=False)

    def call(self, x):
        self.add_loss(x[:, 0])
        return x


def test_every_name_has_a_test_here():
    """Its own import counts once, a test that uses it again."""
    source = Path(__file__).read_text()
    defined = {
        name
        for name, thing in vars(keras_internals).items()
        if inspect.isfunction(thing) and thing.__module__ == keras_internals.__name__
    }
    wanted = {n for n in defined if not n.startswith("_")} | set(keras_internals.__all__)
    assert {name for name in wanted if source.count(name) < 2} == set()


def test_whose_code_it_is():
    class Own(keras.layers.Dense):
        def call(self, x):
            return x

    mine, theirs = Own(1), keras.layers.Dense(1)
    assert is_of_keras(type(theirs)) and is_of_keras(theirs.call) and is_of_keras(keras.ops.mean)
    assert not is_of_keras(Own) and not is_of_keras(mine.call) and not is_of_keras(np.mean)
    assert is_of_keras(mine.build)  # It is inherited.
    assert is_of_keras(keras.losses.MeanSquaredError().fn)
    assert not is_of_keras(None)


def test_layers_and_what_they_keep():
    inner = keras.Sequential([keras.Input((3,)), keras.layers.BatchNormalization()])
    model = model_of(inner)
    assert flatten_layers(model)[0] is model and inner in flatten_layers(model)
    assert inner.layers[0] in flatten_layers(model)
    outer = flatten_layers(model, include_self=False, recursive=False)
    assert inner in outer and inner.layers[0] not in outer
    assert inner in inner_layers(model)
    assert [v.name for v in own_state(inner.layers[0])] == ["moving_mean", "moving_variance"]
    assert own_state(model.layers[-1]) == []


def test_what_a_model_was_compiled_with():
    model = model_of()
    loss, metrics = compiled_parts(model)
    assert not loss.built and not metrics.built
    model.fit(X, Y, verbose=0)
    assert loss.built and metrics.built
    assert compile_arguments(model)["loss"] == "mse"
    plain = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    assert compiled_parts(plain) == (None, None)
    assert compile_arguments(plain) == {}


def test_variables_are_made_without_running_the_model():
    model = keras.Sequential([keras.layers.Dense(1)])
    assert tuple(compute_output_spec(model, tf.constant(X)).shape) == (6, 1)
    assert model.built
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("adam", "mse", metrics=["mae"])
    build_symbolically(model, (tf.TensorSpec((None, 3)), tf.TensorSpec((None, 1))))
    assert model.built and model.optimizer.built
    assert all(part.built for part in compiled_parts(model))


def test_the_results_of_a_pass():
    model = model_of()
    model.evaluate(X, Y, verbose=0)
    results = pythonify_logs(results_or_logs(model, {"loss": 0.0, "mae": 0.0}))
    assert list(results) == ["loss", "mae"] and all(type(v) is float for v in results.values())
    assert results_or_logs(model, {"other": 1.0}) == {"other": 1.0}
    assert results_in_order(model, {"mae": 2.0, "loss": 1.0}) == [1.0, 2.0]
    whole = potentially_ragged_concat([tf.ones((2, 1)), tf.ones((1, 1))])
    assert type(convert_to_np_if_not_ragged(whole)) is np.ndarray
    assert whole.shape == (3, 1)
    ragged = potentially_ragged_concat([tf.ragged.constant([[1.0], [1.0, 2.0]])])
    assert isinstance(convert_to_np_if_not_ragged(ragged), tf.RaggedTensor)


def test_where_a_backup_has_fit_begin(tmp_path):
    model = model_of()
    assert epoch_of_backup(model) == 0
    backup = keras.callbacks.BackupAndRestore(tmp_path / "backup", delete_checkpoint=False)
    model.fit(X, Y, epochs=2, verbose=0, callbacks=[backup])
    model = model_of()
    model.fit(X, Y, epochs=2, verbose=0, callbacks=[backup])
    assert epoch_of_backup(model) == 2


def test_losses_that_layers_add():
    model = model_of(Adding())
    model(X)
    assert len(model.losses) == 1
    clear_losses(model)
    assert model.losses == []

    def half(total, value):
        assert float(total) == 6.0 and value.shape == (6,)
        return total / 2

    y_pred = model(X)
    whole = float(model.compute_loss(X, y_pred, y_pred))
    with added_losses_replaced(model, half):
        assert float(model.compute_loss(X, y_pred, y_pred)) == whole / 2
    assert float(model.compute_loss(X, y_pred, y_pred)) == whole == 6.0


def test_keras_finds_the_reduction_of_a_loss_in_its_module(monkeypatch):
    assert LOSS_MODULE.apply_mask(None, tf.constant([True, False]), "float32", "sum").shape == (2,)
    given = []

    def reduced(values, sample_weight=None, mask=None, reduction="x", dtype=None):
        given.append((values.shape, reduction))
        return tf.zeros([])

    monkeypatch.setattr(LOSS_MODULE, "reduce_weighted_values", reduced)
    assert float(keras.losses.MeanSquaredError()(Y, Y + 1)) == 0.0
    assert given == [((6,), "sum_over_batch_size")]


def test_masks_of_outputs():
    layer = keras.layers.Embedding(3, 2, mask_zero=True)
    output = layer(np.array([[0, 1]]))
    assert mask_of(output).numpy().tolist() == [[False, True]]
    other = tf.ones((1, 2))
    assert mask_of(other) is None
    attach_mask(other, None)
    assert mask_of(other) is None
    values = tf.constant([[[1.0], [3.0]]])
    attach_mask(values, tf.constant([[True, False]]))
    assert float(keras.losses.MeanAbsoluteError()(tf.zeros((1, 2, 1)), values)) == 1.0


def test_the_function_of_a_mean():
    assert function_of(keras.metrics.MeanMetricWrapper(np.abs)) is np.abs
    assert function_of(keras.metrics.AUC()) is None


def test_hooks_that_do_nothing():
    class Own(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            """A user's hook."""

    own = Own()
    assert is_default_hook(own.on_train_batch_begin) and is_default_hook(own.on_batch_end)
    assert not is_default_hook(own.on_train_batch_end)


def test_the_rate_of_an_optimizer():
    adam = keras.optimizers.Adam(0.5)
    assert any(rate_of(adam) is variable for variable in adam.variables)
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)
    assert rate_of(keras.optimizers.Adam(schedule)) is schedule


def test_the_weights_of_an_optimizer():
    model = model_of(keras.layers.Dense(2))
    model.optimizer.build(model.trainable_variables)
    assert list(map(id, trained_by(model.optimizer))) == list(map(id, model.trainable_variables))
    assert [place_of(model.optimizer, v) for v in model.trainable_variables] == [0, 1, 2, 3]
    assert [place_of(model.optimizer, v.value) for v in model.trainable_variables] == [0, 1, 2, 3]


def test_optimizers_that_do_more_than_others():
    optimizers = keras.optimizers
    assert has_own_update(optimizers.Nadam()) and not has_own_update(optimizers.Adam())
    assert has_own_weight_decay(optimizers.Muon())
    assert not has_own_weight_decay(optimizers.AdamW())


def test_an_optimizer_assigns_to_keras_variables():
    weight = keras.Variable(np.ones(2, "float32"))
    adam = keras.optimizers.Adam(0.5, weight_decay=0.1)
    adam.build([weight])
    with keras.StatelessScope([(weight, weight.value)]) as scope, assigning_directly(adam):
        type(adam).apply(adam, [tf.ones(2)], [weight])
    assert float(scope.get_current_value(weight)[0]) < 0.6
    assert float(scope.get_current_value(adam.iterations)) == 1
    assert weight.numpy().tolist() == [1, 1]
    assert int(adam.iterations.value) == 0
    assert not {"assign", "_var_key", "_backend_update_step"} & set(vars(adam))
    adam.apply([tf.ones(2)], [weight])  # It has its own keys again.
    assert weight.numpy()[0] < 0.6


def test_a_variable_is_assigned_within_a_stateless_scope():
    variable = keras.Variable(1.0)
    with keras.StatelessScope():
        variable.assign(2.0)
        assign_directly(variable, 3.0)
    assert float(variable.value) == 3.0


def test_arrays():
    assert can_convert_arrays((X, Y)) and not can_convert_arrays((iter(X),))
    arrays, rows, batch = array_parts(ArrayDataAdapter(X, Y, batch_size=4))
    assert len(arrays) == 2 and (rows, batch) == (6, 4)
    found = array_slicing.convert_to_sliceable(arrays, target_backend="tensorflow")
    for part, given in zip(found, (X, Y), strict=True):
        np.testing.assert_array_equal(part[:6], given)
    assert inspect.isclass(array_slicing.TensorflowSparseWrapper)
    assert callable(array_slicing.slice_tensorflow_sparse_wrapper)


def test_datasets_and_generators():
    dataset = tf.data.Dataset.from_tensor_slices((X, Y)).batch(2)
    adapter = data_adapters.get_data_adapter(dataset)
    assert first_batches(adapter) == []
    adapter = data_adapters.get_data_adapter((X[:n], Y[:n]) for n in (2, 3))
    assert first_batches(adapter)[0][0].shape == (2, 3)
    spec = adapter.get_tf_dataset().element_spec
    one = dataset_of_one((X[:1], Y[:1]), adapter)
    assert one.element_spec == spec and [len(x) for x, _ in one] == [1]


def test_a_dataset_of_one_batch_of_a_py_dataset():
    class Dicts(keras.utils.PyDataset):
        def __len__(self):
            return 2

        def __getitem__(self, index):
            return {"a": X, "b": Y}

    adapter = data_adapters.get_data_adapter(Dicts())
    adapter.get_tf_dataset()
    ((found,),) = dataset_of_one({"a": X[:2], "b": Y[:2]}, adapter)
    assert found["a"].shape == (2, 3) and found["b"].shape == (2, 1)


def test_what_a_dataset_was_made_of():
    plain = tf.data.Dataset.range(4)
    shuffled = plain.shuffle(4, seed=7)
    mapped = shuffled.map(lambda x: x + 1, num_parallel_calls=2, deterministic=False)
    assert dataset_inputs(mapped) == [shuffled] and dataset_inputs(shuffled) == [plain]
    assert dataset_inputs(plain) == []
    (graph,) = dataset_functions(mapped)
    assert "AddV2" in {operation.type for operation in graph.get_operations()}
    assert dataset_functions(shuffled) == []
    assert may_reorder(mapped) and not may_reorder(shuffled)
    assert dataset_seeds(plain) is None
    found = dataset_seeds(shuffled)
    assert found is not None and 7 in found
    tf.random.set_seed(None)
    assert dataset_seeds(plain.shuffle(4)) == (0, 0)


def test_wrappers_of_what_is_set_on_a_module():
    module = tf.Module()
    module.list, module.dict = [1, 2], {"a": 1}
    assert wrapped_elements(module.list) == [1, 2] and wrapped_elements([1]) is None
    inner = wrapped_dict(module.dict)
    assert type(inner) is dict and inner is not module.dict
    own = {"a": 1}
    assert wrapped_dict(own) is own
    dict.update(inner, b=2)
    note_changed_dict(module.dict, inner)
    tf.train.Checkpoint(module=module)
    assert dict(module.dict) == {"a": 1, "b": 2}
    note_changed_dict(own, {})
    assert own == {"a": 1}


def test_eager_tensors():
    assert is_eager(tf.constant(1))

    @tf.function
    def step(x):
        assert not is_eager(x)
        return x

    step(tf.constant(1))


def test_the_global_seed():
    before = global_seed()
    try:
        tf.random.set_seed(12)
        assert global_seed() == 12
    finally:
        tf.random.set_seed(before)


def test_a_thread_may_have_its_own_executor():
    found = []

    def work():
        with with_own_executor():
            found.append(float(tf.constant(2.0) + 1))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [3.0]


def test_a_scope_that_is_left_for_a_while(devices):
    strategy = tf.distribute.MirroredStrategy(devices[:2])
    mine = []

    def creator(next_creator, **kwargs):
        mine.append(kwargs["name"])
        return next_creator(**kwargs)

    with tf.variable_creator_scope(creator), strategy.scope():
        with pytest.raises(KeyError), outside_scope():
            assert not tf.distribute.has_strategy()
            made = keras.Variable([1.0], name="outside")
            assert keras.optimizers.SGD().iterations.value.shape == ()
            with strategy.scope():
                assert tf.distribute.get_strategy() is strategy
                again = keras.Variable([1.0], name="inside")
            assert not tf.distribute.has_strategy()
            raise KeyError
        assert tf.distribute.get_strategy() is strategy
        later = keras.Variable([1.0], name="later")
    belongs = strategy.extended.variable_created_in_scope
    assert [belongs(v.value) for v in (made, again, later)] == [False, True, True]
    assert {"outside", "inside", "later"} <= set(mine)
    with outside_scope():
        assert not tf.distribute.has_strategy()


def test_a_variable_of_the_process_in_a_scope(devices):
    with tf.distribute.MirroredStrategy(devices[:2]).scope():
        found = ResourceVariable(1.0, trainable=False)
    assert type(found) is ResourceVariable
    assert float(found.assign_add(1.0)) == 2.0


def test_replica_contexts(devices):
    strategy = tf.distribute.MirroredStrategy(devices[:2])
    seen = []

    def replica():
        real = tf.distribute.get_replica_context()
        view = tf.distribute.ReplicaContext(strategy, real.replica_id_in_sync_group)
        take_local_number(view, real)
        seen.append(view._local_replica_id)
        before = real._summary_recording_distribution_strategy
        with summary_state_kept(real):
            real._summary_recording_distribution_strategy = "changed"
        assert real._summary_recording_distribution_strategy is before

    strategy.run(replica)
    assert sorted(seen) == [0, 1]


def test_how_a_strategy_of_workers_connects():
    kind = tf.distribute.MultiWorkerMirroredStrategy
    before = kind._collective_key_base
    extended = keras_internals.CollectiveAllReduceExtended
    names = {"_std_server_started", "_enable_check_health"}
    own = {name: vars(extended)[name] for name in names & set(vars(extended))}
    with collective_keys_from(5), already_connected():
        assert kind._collective_key_base == 5
        assert (extended._std_server_started, extended._enable_check_health) == (True, False)
    assert kind._collective_key_base == before
    assert {name: vars(extended)[name] for name in names & set(vars(extended))} == own


@pytest.mark.parametrize("name", ["_std_server_started", "_enable_check_health"])
def test_tensorflow_reads_what_is_set(name):
    """The class' attribute is read, which a strategy's own would hide if it were set earlier."""
    source = inspect.getsource(keras_internals.CollectiveAllReduceExtended)
    assert f"self.{name}" in source


def test_two_replicas_on_one_device_read_the_first_copy_of_a_variable(devices):
    with tf.distribute.MirroredStrategy(devices[:2]).scope():
        variable = tf.Variable(1.0)
    variable.values[0].assign(2.0)
    strategy = two_replicas_on_one_device()

    def replica():
        context = tf.distribute.get_replica_context()
        return variable + tf.cast(context.replica_id_in_sync_group, tf.float32)

    results = tf.function(lambda: strategy.experimental_local_results(strategy.run(replica)))()
    assert [float(value) for value in results] == [2.0, 3.0]


def test_assignments_are_seen_and_taken_back():
    variable, seen = tf.Variable(1.0), []
    with assignments_seen(lambda v, how, value: seen.append((v is variable, how, value))):
        variable.assign_add(2.0)
        variable.assign(7.0)
    assert seen == [(True, "assign_add", 2.0), (True, "assign", 7.0)]
    assert float(variable) == 1.0


def test_compiled_losses_are_those_of_compile():
    inputs = keras.Input((2,))
    model = keras.Model(inputs, [keras.layers.Dense(1)(inputs), keras.layers.Dense(1)(inputs)])
    own = keras.losses.Huber()
    model.compile("sgd", [own, "mse"])
    assert compiled_losses(model) == []  # Until they have seen an output.
    x = np.ones((4, 2), "float32")
    model.compute_loss(x, [x[:, :1]] * 2, model(x))
    first, second = compiled_losses(model)
    assert first is own and isinstance(second, keras.losses.Loss)

"""Each batch counts once, whichever worker has it, and answers are taken in their order."""

from __future__ import annotations

import ast

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.tasks import run_tasks
from tests.training.loops.made import (
    BATCH,
    X,
    Y,
    linear,
    numbers,
    plain_logs,
    plain_weights,
    strategy_of,
    weight,
)
from tfdist.collectives.layout import ReplicaLayout
from tfdist.training.epoch_runner import predict_epoch
from tfdist.training.input.make_feed import make_feed
from tfdist.training.loops import grouping, parameter_server
from tfdist.training.loops.parameter_server import ParameterServerLoop
from tfdist.training.step.build import build

LOST = tf.errors.UnavailableError(
    None, None, "GRPC error information from remote target /job:worker/replica:0/task:1"
)


class Answer:
    """What comes of a batch, computed when it is asked for; some answers are lost first."""

    def __init__(self, coordinator, function, args):
        self._of = coordinator
        self._compute = lambda: function(*args)

    def fetch(self):
        if self._of.errors:
            raise self._of.errors.pop(0)
        self._of.under_way -= 1
        return self._compute()


class Coordinator:
    """Hands batches out to this process, which is its only worker."""

    def __init__(self):
        self.under_way = self.most = self.asked = self.scheduled = 0
        self.errors = []

    def schedule(self, function, args):
        self.scheduled += 1
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        return Answer(self, function, args)

    def done(self):
        self.asked += 1
        return False


@pytest.fixture
def strategy(devices):
    return strategy_of("one_device", devices)


def epoch_of(*data, number=0, first=0, hands_out_rows=False):
    """An epoch of the data as the chief of ParameterServerStrategy reads it."""
    x, y = data or (X, Y)
    feed = make_feed(
        x,
        y,
        layout=ReplicaLayout(),
        batch_size=BATCH if y is not None else None,
        hands_out_rows=hands_out_rows,
    )
    return feed.epoch(number, first=first)


def make(strategy, workers=0, **options):
    """A model, its loop, and the coordinator that sees to so many workers."""
    model, coordinator = linear(strategy, **options), Coordinator()
    build(model, strategy, (tf.constant(X), tf.constant(Y)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parameter_server, "_count_workers", lambda: workers)
        loop = ParameterServerLoop(model, strategy, coordinator)
    loop.reset_metrics()
    return model, loop, coordinator


@pytest.mark.parametrize("rows", [True, False])
@pytest.mark.parametrize("workers", [0, 1, 2])
def test_every_batch_is_trained_on_once_in_the_end(strategy, workers, rows):
    model, loop, coordinator = make(strategy, workers)
    for number in range(2):
        loop.reset_metrics()
        epoch = epoch_of(number=number, hands_out_rows=rows)
        loop.train(epoch, 2, logs=False)
        loop.train(epoch, 1, logs=False)
        loop.finish_epoch()
        assert coordinator.under_way == 0
        begun = [0.0, *plain_weights(epochs=2)][3 * number : 3 * number + 3]
        assert numbers(loop.logs()) == plain_logs(begun)
    assert weight(model) == plain_weights(epochs=2)[-1]
    assert int(model.optimizer.iterations.numpy()) == 6
    # One that each worker computes on, one that waits, and the one that is being handed out.
    assert coordinator.most == min(3, 2 * workers + 1)


@pytest.fixture
def in_groups(monkeypatch):
    """However long a batch takes, twice as many as before make the next message."""
    monkeypatch.setattr(grouping, "_SECONDS", 1e9)


@pytest.mark.parametrize("rows", [True, False])
def test_batches_in_one_message_make_the_steps_they_make_alone(strategy, rows):
    model, loop, coordinator = make(strategy, workers=1)
    for number in range(2):
        loop.reset_metrics()
        loop._grouping.size = 16
        assert loop.train(epoch_of(number=number, hands_out_rows=rows), 3, logs=False) == {}
        loop.finish_epoch()
        begun = [0.0, *plain_weights(epochs=2)][3 * number : 3 * number + 3]
        assert numbers(loop.logs()) == plain_logs(begun)
    assert weight(model) == plain_weights(epochs=2)[-1]
    assert int(model.optimizer.iterations.numpy()) == 6
    # The last batch of an epoch has another number of rows and goes alone.
    assert coordinator.scheduled == 2 + 2


def test_nothing_waits_for_the_next_call_where_logs_are_read(strategy, in_groups):
    model, loop, coordinator = make(strategy)
    epoch = epoch_of()
    loop._grouping.size = 16
    loop.train(epoch, 1, logs=False)
    assert (coordinator.scheduled, weight(model)) == (0, 0.0)
    logs = loop.train(epoch, 1)
    assert coordinator.scheduled == 1
    assert weight(model) == plain_weights()[1]
    assert int(model.optimizer.iterations.numpy()) == 2
    assert numbers(logs) == plain_logs([0.0, plain_weights()[0]])


def test_a_batch_that_waited_when_training_broke_off_is_trained_on(strategy, in_groups):
    model, loop, _ = make(strategy)
    loop._grouping.size = 16
    loop.train(epoch_of(), 1, logs=False)
    loop.reset_metrics()
    assert weight(model) == plain_weights()[0]
    assert int(model.optimizer.iterations.numpy()) == 1
    assert numbers(loop.logs()) == {"loss": 0.0, "mae": 0.0}


def test_metrics_that_keep_no_sums_have_each_batch_sent_alone(strategy, in_groups):
    metric = keras.metrics.PearsonCorrelation(axis=0)
    _, loop, coordinator = make(strategy, metrics=[metric])
    for _ in range(3):
        loop.train(epoch_of(), 2, logs=False)
    assert coordinator.scheduled == 6


def test_evaluation_counts_all_rows_and_changes_nothing(strategy):
    model, loop, _ = make(strategy, workers=2)
    model.set_weights([np.array([[0.5]])])
    loop.test(epoch_of(), 2)
    loop.test(epoch_of(first=2, hands_out_rows=True), 1)
    loop.finish_epoch()
    assert numbers(loop.logs()) == plain_logs([0.5] * 3)
    assert (weight(model), int(model.optimizer.iterations.numpy())) == (0.5, 0)


def test_the_first_logs_of_an_epoch_are_those_of_a_batch(strategy):
    """Metrics of nothing are 0: a callback that stops at a small loss would stop there."""
    model, loop, coordinator = make(strategy, workers=2)
    for _ in range(2):
        loop.reset_metrics()
        model.set_weights([np.array([[0.0]])])
        epoch = epoch_of()
        assert loop.train(epoch, 1, logs=False) == {}
        for _ in range(2):
            logs = loop.train(epoch, 1)
            assert logs["loss"] == np.mean(Y[:BATCH] ** 2)
    assert coordinator.under_way == 2  # Only the first batch was waited for.
    loop.reset_metrics()
    model.set_weights([np.array([[0.0]])])
    assert loop.test(epoch_of(), 1)["loss"] == np.mean(Y[:BATCH] ** 2)


def test_predictions_are_fetched_in_the_order_they_were_asked_for(strategy):
    model, loop, _ = make(strategy, workers=2)
    model.set_weights([np.array([[2.0]])])
    epoch = epoch_of()
    outputs = [loop.predict(epoch) for _ in range(epoch.steps)]
    assert np.concatenate([loop.fetch(o) for o in outputs]).tolist() == (2 * X).tolist()


@pytest.mark.parametrize("listens", [True, False])
def test_a_callback_is_given_outputs_and_only_where_it_looks_are_they_waited_for(strategy, listens):
    model, loop, coordinator = make(strategy, workers=2)
    model.set_weights([np.array([[2.0]])])
    seen = []

    class Listener(keras.callbacks.Callback):
        def on_predict_batch_end(self, batch, logs=None):
            seen.append(np.asarray(logs["outputs"]).tolist())

    every = keras.callbacks.CallbackList(
        [Listener()] if listens else [keras.callbacks.Callback()], model=model, add_progbar=True
    )
    predicted = predict_epoch(epoch_of(), loop, every)
    assert predicted.tolist() == (2 * X).tolist()
    assert sum(seen, []) == ((2 * X).tolist() if listens else [])
    assert coordinator.most == (1 if listens else 3)


def test_a_model_that_is_not_compiled_predicts(strategy):
    with strategy.scope():
        layer = keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")
        model = keras.Sequential([keras.Input((1,)), layer])
    loop = ParameterServerLoop(model, strategy, Coordinator())
    outputs = loop.fetch(loop.predict(epoch_of()))
    assert outputs.numpy().tolist() == X[:BATCH].tolist()


def test_a_batch_whose_answer_is_lost_counts_once(strategy):
    model, loop, coordinator = make(strategy)
    coordinator.errors = [LOST, LOST]
    loop.train(epoch_of(), 3)
    loop.settle()
    assert coordinator.asked == 2
    assert (weight(model), int(model.optimizer.iterations.numpy())) == (plain_weights()[-1], 3)


def test_what_is_not_a_lost_worker_is_not_waited_for(strategy):
    gone = "GRPC error information from remote target /job:ps/replica:0/task:0 while calling"
    for error in (
        tf.errors.UnavailableError(None, None, gone),
        tf.errors.InvalidArgumentError(None, None, "labels out of range"),
    ):
        _, loop, coordinator = make(strategy)
        coordinator.errors = [error]
        with pytest.raises(type(error)):
            loop.train(epoch_of(), 1)
        assert coordinator.asked == 0


def test_a_step_whose_gradient_overflowed_is_not_counted(strategy):
    scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(2.0**-4), initial_scale=2.0)
    model, loop, _ = make(strategy, workers=1, optimizer=scaled)
    for y in (np.float32("inf"), 3.0):
        data = tf.data.Dataset.from_tensors((X[:1], np.array([[y]], "float32")))
        loop.train(epoch_of(data, None), 1)
    loop.settle()
    assert int(model.optimizer.inner_optimizer.iterations.numpy()) == 1
    assert weight(model) == 2 * 3.0 / 16


class Numbers(keras.optimizers.SGD):
    """Adds the number of each update to the weight."""

    def update_step(self, gradient, variable, learning_rate):
        self.assign_add(variable, tf.ones_like(variable) * tf.cast(self.iterations, "float32"))


def test_in_a_message_too_an_overflow_takes_no_number(strategy, in_groups):
    scaled = keras.optimizers.LossScaleOptimizer(Numbers(), initial_scale=2.0)
    model, loop, coordinator = make(strategy, optimizer=scaled)
    loop._grouping.size = 16
    labels = np.array([1, np.inf, 1, 1], "float32").reshape(4, 1, 1)
    data = tf.data.Dataset.from_tensor_slices((np.ones((4, 1, 1), "float32"), labels))
    loop.train(epoch_of(data, None), 4, logs=False)
    loop.settle()
    assert coordinator.scheduled == 1
    assert int(model.optimizer.inner_optimizer.iterations.numpy()) == 3
    assert weight(model) == 0 + 1 + 2


def test_an_epoch_goes_on_from_its_progress(strategy):
    model, loop, _ = make(strategy, workers=2)
    loop.train(epoch_of(), 2)
    loop.settle()
    progress = loop.progress()
    resumed, loop, _ = make(strategy)
    resumed.set_weights(model.get_weights())
    resumed.optimizer.iterations.assign(2)
    loop.resume([tf.constant(total) for total in progress.totals], progress.logs)
    loop.train(epoch_of(first=2), 1)
    assert numbers(loop.logs()) == plain_logs([0.0, *plain_weights()[:2]])
    assert int(resumed.optimizer.iterations.numpy()) == 3
    loop.resume(None, {"own": 2.0})
    assert numbers(loop.logs()) == {"loss": 0.0, "mae": 0.0, "own": 2.0}
    loop.resume(None, {"own": 2.0, "loss": 3.0})
    loop.train(epoch_of(), 1)
    loop.settle()
    assert numbers(loop.logs()).keys() == {"loss", "mae"} and loop.logs()["loss"] != 3.0


def test_metrics_that_keep_no_sums_see_the_rows_of_all_batches(strategy):
    metric = keras.metrics.PearsonCorrelation(axis=0)
    model, loop, _ = make(strategy, workers=2, metrics=[metric])
    model.set_weights([np.array([[1.0]])])
    for first in (0, 4):
        loop.test(epoch_of(X[first : first + 4], Y[first : first + 4]), 1)
    loop.finish_epoch()
    each = [np.corrcoef(X[i : i + 4, 0], Y[i : i + 4, 0])[0, 1] for i in (0, 4)]
    logs = numbers(loop.logs())
    np.testing.assert_allclose(logs["pearson_correlation"], np.mean(each), rtol=1e-5)


PROGRAM = """
import tfdist

cluster = tfdist.Cluster.from_environment()
if not tfdist.serve(cluster):
    import keras
    import numpy as np
    import tensorflow as tf
    from tests.traffic import bytes_sent
    from tests.training.loops.made import BATCH, X, Y, linear, weight
    from tfdist.training.loops import grouping, parameter_server

    grouping._SECONDS = 1e9  # Several batches make a message, however long they take.
    strategy = tfdist.build_strategy("parameter_server", cluster)
    model = linear(strategy)
    trainer = tfdist.Trainer(model)
    parameter_server._PER_WORKER = 0  # The workers take turns.
    workers = parameter_server._count_workers()
    fit = trainer.fit(X, Y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
    outputs = trainer.predict(X, batch_size=2, verbose=0)
    found = {
        "workers": workers,
        "logs": [{name: values[i] for name, values in fit.history.items()} for i in range(2)],
        "weight": weight(model),
        "iterations": int(model.optimizer.iterations.numpy()),
        "in order": outputs.tolist() == (weight(model) * X).tolist(),
    }

    class Numbers(keras.optimizers.SGD):  # Adds the number of each update to the weight.
        def update_step(self, gradient, variable, learning_rate):
            self.assign_add(variable, tf.ones_like(variable) * tf.cast(self.iterations, "float32"))

    with strategy.scope():
        numbers = Numbers()
    model = linear(strategy, optimizer=numbers)
    parameter_server._PER_WORKER = 2  # Two batches of each are under way.
    tfdist.Trainer(model).fit(X, Y, batch_size=BATCH, epochs=20, verbose=0)
    found["numbers"] = weight(model)

    wide = np.random.default_rng(0).normal(size=(1000, 5000)).astype("float32")  # 20 MB
    with strategy.scope():
        model = keras.Sequential([keras.Input((5000,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    trainer, before = tfdist.Trainer(model), bytes_sent()
    trainer.fit(wide, wide[:, :1], batch_size=10, epochs=5, verbose=0)
    trainer.evaluate(wide, wide[:, :1], batch_size=10, verbose=0)
    found["times sent"] = (bytes_sent() - before) / wide.nbytes
    print("FOUND", found, flush=True)
"""


@pytest.mark.cluster
def test_two_workers_and_a_ps_make_the_steps_of_one_device(tmp_path, monkeypatch, pytestconfig):
    monkeypatch.setenv("PYTHONPATH", str(pytestconfig.rootpath), prepend=":")
    ends = run_tasks(tmp_path, PROGRAM, {"chief": 1, "worker": 2, "ps": 1})
    for task, (code, output) in ends.items():
        assert code == 0, f"{task}: {output}"
    lines = ends["chief/0"][1].splitlines()
    (line,) = [line for line in lines if line.startswith("FOUND ")]
    weights = [0.0, *plain_weights(epochs=2)]
    found = ast.literal_eval(line.removeprefix("FOUND "))
    # Once to each worker for `fit`, and once for `evaluate`; not in each of the six passes.
    assert 1.5 < found.pop("times sent") < 4.5
    assert found == {
        "workers": 2,
        "logs": [plain_logs(weights[:3]), plain_logs(weights[3:6])],
        "weight": weights[-1],
        "iterations": 6,
        "in order": True,
        "numbers": sum(range(20 * 3)),
    }

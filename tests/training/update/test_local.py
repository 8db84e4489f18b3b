"""Replicas that step on their own do what as many copies of the model would, and then average."""

from __future__ import annotations

import json

import keras
import numpy as np
import pytest

import tfdist
from tests.tasks import run_workers
from tfdist.errors import ConfigError
from tfdist.training.update.local import LocalSteps

COMMON = """
import keras, numpy as np

def make():
    keras.utils.set_random_seed(5)
    layers = keras.layers
    model = keras.Sequential(
        [keras.Input((6,)), layers.Dense(8, activation="tanh"), layers.Dense(2)]
    )
    model.compile(keras.optimizers.AdamW(0.02), "mse", metrics=["mae"])
    return model

random = np.random.default_rng(7)
X = random.normal(size=(70, 6)).astype("float32")
Y = random.normal(size=(70, 2)).astype("float32")
BATCH = 10
"""
PROGRAM = (
    COMMON
    + """
import json, os
import tfdist

strategy = tfdist.build_strategy("auto", tfdist.Cluster.from_environment())
with strategy.scope():
    model = make()
trainer = tfdist.Trainer(model, **json.loads(os.environ["OPTIONS"]))
history = trainer.fit(X, Y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
weights = [w.tolist() for w in model.get_weights()]
state = [v.numpy().tolist() for v in model.optimizer.variables]
print("RESULT" + json.dumps([history.history, weights, state]))
"""
)


def emulated(steps, rate=1.0, momentum=0.0):
    """Two copies of the model, each with its half of every batch; NumPy averages."""
    space: dict = {}
    exec(COMMON, space)
    copies = [space["make"](), space["make"]()]
    for copy in copies:
        copy.optimizer.build(copy.trainable_variables)
    x, y, batch = space["X"], space["Y"], space["BATCH"]
    start = copies[0].get_weights()
    velocity = [np.zeros_like(w) for w in start]

    def average():
        means = [(a + b) / 2 for a, b in zip(*(c.get_weights() for c in copies), strict=True)]
        for i, mean in enumerate(means):
            way = start[i] - mean
            velocity[i] = momentum * velocity[i] + way
            if (rate, momentum) != (1.0, 0.0):
                means[i] = start[i] - rate * (way + momentum * velocity[i])
        for copy in copies:
            copy.set_weights(means)
        start[:] = means
        for pair in zip(*(copy.optimizer.variables for copy in copies), strict=True):
            if "float" in str(pair[0].dtype):
                mean = (pair[0].numpy() + pair[1].numpy()) / 2
                for variable in pair:
                    variable.assign(mean)

    for _ in range(2):
        taken = 0
        for begin in range(0, len(x), batch):
            for index, copy in enumerate(copies):
                at = slice(begin + 5 * index, begin + 5 * index + 5)
                copy.train_on_batch(x[at], y[at])
            taken += 1
            if taken == steps:
                average()
                taken = 0
        if taken:
            average()
    return copies[0].get_weights(), [v.numpy() for v in copies[0].optimizer.variables]


@pytest.mark.cluster
@pytest.mark.parametrize(
    "options",
    [
        {"local_steps": 3},
        {"local_steps": 4, "outer_learning_rate": 0.7, "outer_momentum": 0.9},
    ],
    ids=["average", "diloco"],
)
def test_two_workers_are_two_copies_that_are_averaged(tmp_path, monkeypatch, options):
    monkeypatch.setenv("OPTIONS", json.dumps(options))
    ends = run_workers(tmp_path, PROGRAM)
    assert [code for code, _ in ends] == [0, 0], ends
    one, other = (json.loads(text.split("RESULT")[1].splitlines()[0]) for _, text in ends)
    assert one == other  # To the bit.
    history, weights, state = one
    want = emulated(
        options["local_steps"],
        options.get("outer_learning_rate", 1.0),
        options.get("outer_momentum", 0.0),
    )
    assert history["loss"][1] < history["loss"][0]
    for kind, expected in zip((weights, state), want, strict=True):
        for own, number in zip(kind, expected, strict=True):
            # 14 steps in float32, as in the conformance suite.
            np.testing.assert_allclose(own, number, rtol=2e-5, atol=2e-6)


def made(optimizer="sgd"):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(optimizer, "mse")
    return model


X = np.random.default_rng(0).normal(size=(48, 4)).astype("float32")


def trained(epochs, optimizer="adam", **options):
    """The weights before and after training."""
    keras.utils.set_random_seed(3)
    model = made(optimizer)
    begin = model.get_weights()
    trainer = tfdist.Trainer(model, **options)
    trainer.fit(X, X[:, :1], batch_size=8, epochs=epochs, shuffle=False, verbose=0)
    return begin, model.get_weights()


def test_one_device_is_its_own_average():
    _, plain = trained(2)
    _, averaged = trained(2, local_steps=4)
    assert all(np.array_equal(a, b) for a, b in zip(plain, averaged, strict=True))


def test_an_outer_step_is_made_on_one_device_too():
    """With half of the way only, each weight ends halfway."""
    begin, whole = trained(1, "sgd")
    _, half = trained(1, "sgd", local_steps=6, outer_learning_rate=0.5)
    for first, last, between in zip(begin, whole, half, strict=True):
        np.testing.assert_allclose(between, (first + last) / 2, rtol=1e-5, atol=1e-6)


def test_a_checkpoint_holds_the_outer_momentum(tmp_path):
    options = {"local_steps": 4, "outer_learning_rate": 0.7, "outer_momentum": 0.9}
    _, whole = trained(3, **options)
    trained(2, checkpoint_dir=tmp_path, **options)
    _, resumed = trained(3, checkpoint_dir=tmp_path, **options)
    assert all(np.array_equal(a, b) for a, b in zip(whole, resumed, strict=True))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"local_steps": 0}, "local_steps"),
        ({"outer_momentum": 0.9}, "give local_steps of 2 or more"),
        ({"local_steps": 2, "outer_momentum": 1.0}, "less than 1"),
        ({"local_steps": 2, "outer_learning_rate": 0.0}, "outer_learning_rate"),
        ({"local_steps": 2, "accumulate_steps": 2}, "give one of them"),
        ({"local_steps": 2, "wire_dtype": "bfloat16"}, "leave wire_dtype out"),
    ],
)
def test_options_that_exclude_each_other_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        tfdist.Trainer(made(), **options)


def test_replicas_of_one_process_are_refused(devices):
    with tfdist.mirrored_strategy(devices[:2]).scope():
        model = made()
    with pytest.raises(ConfigError, match=r"local_steps.*not this .*MirroredStrategy"):
        tfdist.Trainer(model, local_steps=2)


def test_loss_scaling_is_refused():
    model = made(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD()))
    with pytest.raises(ConfigError, match="LossScaleOptimizer"):
        tfdist.Trainer(model, local_steps=2)


def test_the_plain_average_needs_no_memory():
    assert LocalSteps(4).averages_only
    assert not LocalSteps(4, outer_momentum=0.5).averages_only

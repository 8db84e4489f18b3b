"""Two workers act alike on what a rehearsal shows, and get the numbers of one device."""

from __future__ import annotations

import json

import pytest

from tests.tasks import run_workers

# More logs than a number of 64 bits could name.
LOGS = 70
PROGRAM = f"""
import json
import tfdist
strategy = tfdist.build_strategy("multi_worker_mirrored")
import keras
import numpy as np
import tensorflow as tf

class Summed(keras.Model):
    def __init__(self):
        super().__init__()
        self.d = keras.layers.Dense(1, kernel_initializer="ones")

    def call(self, x):
        return self.d(x)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            error = (y - self(x)) ** 2
            loss = tf.reduce_sum(error)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        counts = {{f"over {{n}}": tf.reduce_sum(tf.cast(error > n / 50, "float32"))
                   for n in range({LOGS})}}
        return {{"l": loss, **counts}}

x = np.random.RandomState(0).normal(size=(24, 3)).astype("float32")

def trained(scope, fit):
    with scope:
        model = Summed()
        model(x[:1])
        model.compile(keras.optimizers.SGD(0.01))
    history = fit(model)(x, x[:, :1], batch_size=8, epochs=2, shuffle=False, verbose=0).history
    return {{name: [float(v) for v in values] for name, values in history.items()}}

import contextlib
own = trained(strategy.scope(), lambda model: tfdist.Trainer(model).fit)
plain = trained(contextlib.nullcontext(), lambda model: model.fit)
print("RESULT", json.dumps([own, plain]))
"""


@pytest.mark.cluster
def test_sums_of_a_step_are_those_of_one_device(tmp_path):
    for code, output in run_workers(tmp_path, PROGRAM):
        assert code == 0, output
        assert "mixes rows" not in output
        (line,) = [line for line in output.splitlines() if line.startswith("RESULT ")]
        own, plain = json.loads(line.removeprefix("RESULT "))
        assert len(own) == LOGS + 1
        assert own.keys() == plain.keys()
        for name, values in plain.items():
            assert own[name] == pytest.approx(values, rel=2e-5), name

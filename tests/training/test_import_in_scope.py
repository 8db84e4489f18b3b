"""Importing tfdist for the first time inside a strategy's scope must not change what it does."""

import subprocess
import sys

SCRIPT = """
import keras
import tensorflow as tf
import tfdist

tfdist.virtual_devices(2)
strategy = tfdist.mirrored_strategy()
with strategy.scope():
    import tfdist.training.trainer  # as plan.schedule() does
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, kernel_initializer="ones")])
    model.compile(optimizer=keras.optimizers.SGD(1.0), loss="mse")
history = tfdist.Trainer(model).fit(tf.ones((2, 1)), tf.zeros((2, 1)), verbose=0)
assert history.history["loss"] == [1.0], history.history
assert model.get_weights()[0][0, 0] == -1.0, model.get_weights()
"""


def test_losses_are_not_divided_by_the_replicas():
    subprocess.run([sys.executable, "-c", SCRIPT], check=True, timeout=120)

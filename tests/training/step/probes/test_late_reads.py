"""A train_step that reads what its optimizer has updated is found, and no other one."""

from __future__ import annotations

import numpy as np
import pytest

X, Y = np.ones((4, 2), "float32"), np.ones((4, 1), "float32")


@pytest.mark.parametrize("late", [False, True])
def test_reads_its_update(late):
    import keras
    import tensorflow as tf

    from tfdist.training.step.build import build
    from tfdist.training.step.probes.late_reads import reads_its_update

    class Own(keras.Sequential):
        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                loss = self.compute_loss(y=y, y_pred=self(x))
            weights = self.trainable_variables
            self.optimizer.apply(tape.gradient(loss, weights), weights)
            if late:
                return {"norm": tf.norm(weights[0])}
            return {"loss": loss}

    model = Own([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    before = model.get_weights()
    build(model, tf.distribute.get_strategy(), (tf.constant(X), tf.constant(Y)))
    assert reads_its_update(model, (tf.constant(X), tf.constant(Y))) == late
    for one, other in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)
    assert int(model.optimizer.iterations) == 0

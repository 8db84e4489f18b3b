"""What a Trainer says of itself, and shows in a notebook."""

from __future__ import annotations

import keras
import numpy as np

import tfdist


def test_a_trainer_before_and_after_training() -> None:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)], name="a>b")
    model.compile(loss="mse")
    trainer = tfdist.Trainer(model)
    assert repr(trainer) == (
        "<Trainer of model a>b, 3 parameters, strategy the default strategy, replicas: 1>"
    )
    assert "<td>a&gt;b, 3 parameters</td>" in trainer._repr_html_()
    trainer.fit(np.zeros((8, 2)), np.zeros((8, 1)), batch_size=4, epochs=2, verbose=0)
    assert "latest fit 2 epochs, 4 steps in " in repr(trainer)

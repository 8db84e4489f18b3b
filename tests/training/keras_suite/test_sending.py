"""What Keras' tests call reaches the Trainer, and only while they run."""

from __future__ import annotations

import keras
import numpy as np
import pytest

import tfdist
from tests.training.keras_suite.sending import PLAIN, sent

X = np.ones((8, 2), "float32")


def model_of() -> keras.Model:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


@pytest.mark.skipif(PLAIN, reason="nothing is sent")
@pytest.mark.parametrize("replicas", [1, 2])
def test_calls_reach_the_trainer_of_the_tests_strategy(devices, monkeypatch, replicas):
    reached = []
    for name in ("fit", "evaluate", "predict"):
        method = getattr(tfdist.Trainer, name)

        def call(trainer, *args, _name=name, _method=method, **kwargs):
            reached.append((_name, trainer.strategy.num_replicas_in_sync))
            return _method(trainer, *args, **kwargs)

        monkeypatch.setattr(tfdist.Trainer, name, call)
    strategy = tfdist.mirrored_strategy(devices[:2]) if replicas == 2 else None
    with sent(strategy) as calls:
        model = model_of()
        model.fit(X, X[:, 0], verbose=0)
        model.evaluate(X, X[:, 0], verbose=0)
        model.predict(X, verbose=0)
    names = ["fit", "evaluate", "predict"]
    assert reached == [(name, replicas) for name in names]
    assert calls == dict.fromkeys(names, 1)
    model_of().predict(X, verbose=0)
    assert len(reached) == 3

"""What a run says of itself while it goes on."""

import numpy as np
import pytest


@pytest.fixture
def phases(monkeypatch):
    """The phases that heartbeats name, in order, each run of one phase once."""
    from tfdist.heartbeat import Heart

    seen = []
    write = Heart.write

    def record(self, phase, *arguments, **more):
        if not seen or seen[-1] != phase:
            seen.append(phase)
        write(self, phase, *arguments, **more)

    monkeypatch.setattr(Heart, "write", record)
    return seen


def test_what_compiles_is_not_taken_for_a_stall(phases):
    """The first step and the first validation compile; the launcher gives both more time."""
    import keras

    import tfdist

    strategy = tfdist.build_strategy("one_device")
    with strategy.scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile(loss="mse")
    x, y = np.ones((8, 2), "float32"), np.ones((8, 1), "float32")
    trainer = tfdist.Trainer(model)
    trainer.fit(x, y, batch_size=4, epochs=2, validation_data=(x, y), verbose=0)
    first = ["building", "tracing", "training", "tracing", "evaluating"]
    assert phases == [*first, "training", "evaluating", "done"]
    del phases[:]
    trainer.evaluate(x, y, batch_size=4, verbose=0)
    assert phases == ["tracing", "evaluating"]

"""A real profile of two workers, one of which is slowed on purpose: the summary names it."""

from __future__ import annotations

import json

import pytest

from tests.tasks import run_tasks
from tfdist.profiling.shares import shares, slowest, text
from tfdist.profiling.trace import read_all

PROGRAM = """
import os, time
import tfdist
cluster = tfdist.Cluster.from_environment()
strategy = tfdist.build_strategy("auto", cluster)
import keras, numpy as np
keras.utils.set_random_seed(0)
with strategy.scope():
    model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(256), keras.layers.Dense(1)])
    model.compile("sgd", "mse")

class Slow(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        if str(cluster.task) == "worker/1":
            time.sleep(0.2)

x = np.random.default_rng(0).normal(size=(320, 64)).astype("float32")
trainer = tfdist.Trainer(model, profile=(4, 8), profile_dir=os.environ["PROFILE"])
trainer.fit(x, x[:, :1], batch_size=32, verbose=0, callbacks=[Slow()])
"""


@pytest.mark.cluster
def test_a_slow_worker_is_named(tmp_path, monkeypatch):
    folder = tmp_path / "profile"
    monkeypatch.setenv("PROFILE", str(folder))
    for task, (code, output) in run_tasks(tmp_path, PROGRAM, {"worker": 2}).items():
        assert code == 0, f"{task}: {output}"
    traces = read_all(folder)
    assert [trace.task for trace in traces] == ["worker/0", "worker/1"]
    found = [shares(trace) for trace in traces]
    for each in found:
        assert each.steps == 5
        assert sum(each.parts.values()) == pytest.approx(each.seconds)
        assert each.parts["compute"] > 0
    assert slowest(found).startswith("worker/1 is slowest"), text(found)
    assert found[0].parts["wire"] > 0.5 * found[0].seconds, text(found)
    json.dumps([each.parts for each in found])

"""A process may build several strategies for its cluster, each worker at its own time."""

from __future__ import annotations

import pytest

from tests.tasks import run_workers

PROGRAM = """
import json, os, time
import keras
import numpy as np
import tensorflow as tf
import tfdist

worker = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
features = np.random.default_rng(0).normal(size=(16, 3)).astype("float32")
found = []
for late in (None, 0, 1):
    if late == worker:
        time.sleep(2.0)
    strategy = tfdist.build_strategy("multi_worker_mirrored")
    with strategy.scope():
        if late is not None:  # Another type than the first strategy's under the same number.
            counted = tf.Variable(worker + 5, dtype=tf.int64)
            assert counted.numpy() == 5
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.1), "mse")
    tfdist.Trainer(model).fit(features, features[:, :1], batch_size=8, verbose=0)
    found.append(np.concatenate([w.ravel() for w in model.get_weights()]).tolist())
assert found[0] == found[1] == found[2], found
print("FOUND", found[0], flush=True)
# As an actor that is used again does, whose ports are others then.
elsewhere = {"worker": ["127.0.0.1:4001", "127.0.0.1:4002"]}
try:
    tfdist.multi_worker_mirrored_strategy(tfdist.Cluster.from_cluster_spec(elsewhere))
except tfdist.ConfigError as error:
    print("REFUSED", error, flush=True)
"""


@pytest.mark.cluster
@pytest.mark.long
def test_workers_need_not_build_their_second_strategy_at_once(tmp_path):
    said = []
    for code, output in run_workers(tmp_path, PROGRAM, environment={"TFDIST_WAIT": "60"}):
        assert code == 0, output
        said += [line for line in output.splitlines() if line.startswith("FOUND ")]
        assert "REFUSED cluster: this process is worker/" in output
        assert "and cannot be worker/0 at 127.0.0.1:4001 as well" in output
    assert len(said) == 2 and said[0] == said[1]

"""One process of Horovod's contender; runs in an environment that has Horovod and not tfdist.

`python horovod_tape.py JSON`, with RANK, WORLD_SIZE, MASTER_ADDR and INTERFACE; the JSON is that of
`work.Work`. The step is that of Horovod's `tensorflow2_synthetic_benchmark.py`.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from pathlib import Path
from typing import Any

BATCH = 32


def meet(output: Path) -> None:
    """Starts the rendezvous in rank 0, and says where it is, as `horovodrun` does."""
    from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
    from horovod.runner.http.http_server import RendezvousServer

    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    place = output.with_suffix(".port")
    if rank == 0:
        server = RendezvousServer(verbose=0)
        port = server.start()
        server.init(get_host_assignments(parse_hosts(f"localhost:{size}"), size))
        draft = place.with_suffix(".draft")
        draft.write_text(str(port))
        draft.rename(place)
    while not place.exists():
        time.sleep(0.1)
    for name, value in {
        "RANK": rank,
        "SIZE": size,
        "LOCAL_RANK": rank,
        "LOCAL_SIZE": size,
        "CROSS_RANK": 0,
        "CROSS_SIZE": 1,
        "HOSTNAME": "localhost",
        "CONTROLLER": "gloo",
        "CPU_OPERATIONS": "gloo",
        "GLOO_IFACE": os.environ["INTERFACE"],
        "GLOO_RENDEZVOUS_ADDR": socket.gethostbyname(os.environ["MASTER_ADDR"]),
        "GLOO_RENDEZVOUS_PORT": place.read_text(),
    }.items():
        os.environ[f"HOROVOD_{name}"] = str(value)


def tape(work: dict[str, Any]) -> float:
    """Seconds of ResNet50's steps with Horovod's tape."""
    import horovod.tensorflow as hvd
    import numpy as np
    import tensorflow as tf
    import tf_keras

    hvd.init()
    model = tf_keras.applications.ResNet50(weights=None, input_shape=(32, 32, 3), classes=10)
    optimizer = tf_keras.optimizers.SGD(0.01, momentum=0.9)
    loss_of = tf_keras.losses.SparseCategoricalCrossentropy()
    random = np.random.default_rng(0)
    x = tf.constant(random.normal(size=(BATCH, 32, 32, 3)).astype("float32"))
    y = tf.constant(random.integers(0, 10, BATCH).astype("int32"))

    @tf.function
    def step() -> Any:
        with tf.GradientTape() as gradient_tape:
            loss = loss_of(y, model(x, training=True))
        gradients = hvd.DistributedGradientTape(gradient_tape).gradient(
            loss, model.trainable_variables
        )
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    for _ in range(work["warm_up"]):
        step()
    began = time.perf_counter()
    for _ in range(work["steps"]):
        step()
    return time.perf_counter() - began


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    meet(Path(given["output"]))
    seconds = tape(given)
    if os.environ["RANK"] == "0":
        Path(given["output"]).write_text(json.dumps({"seconds": seconds}))
    os._exit(0)

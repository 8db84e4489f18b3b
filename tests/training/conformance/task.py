"""One process of a run: `python -m tests.training.conformance.task FOLDER LOOP WHERE FEATURE...`.

WHERE is a strategy, or none@N for plain Keras on one device with layers that compute N slices.
With a TF_CONFIG in the environment, the process is that task of the cluster.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Mapping
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf

import tfdist
from tests.training.conformance import setting as setting_module
from tests.training.conformance.cell import run_cell
from tests.training.conformance.features import FEATURES
from tfdist.training.loops import grouping, parameter_server

DEVICES = 2


def end_with_parent() -> None:
    """Ends this process soon after the one that started it, which may have been killed."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


def main(
    folder: str,
    loop: str,
    where: str,
    *names: str,
    table: Mapping[str, setting_module.Feature] = FEATURES,
) -> None:
    """Runs the features of the table one after another."""
    tf.get_logger().setLevel("ERROR")
    # A warning from our own code is a failure, as it is in pytest.
    warnings.filterwarnings("error", module=r"tfdist\.")
    name, _, slices = where.partition("@")
    if name in ("none", "one_device"):
        # TensorFlow's rewriting of sums does not add in the same order each time that a graph is
        # built: plain Keras differs from itself in the last bit (of one program's loss, 11 times
        # in 60).
        tf.config.optimizer.set_experimental_options({"arithmetic_optimization": False})
    cluster = tfdist.Cluster.from_environment()
    if tfdist.serve(cluster):
        return
    strategy = None
    if name != "none":
        if cluster.is_local:
            tfdist.virtual_devices(DEVICES)
        strategy = tfdist.build_strategy(name, cluster)
        replicas = 2 if name in setting_module.TWO_REPLICAS else 1
        found = strategy.num_replicas_in_sync
        assert found == replicas, f"{name} has {found} replicas: see TWO_REPLICAS in setting.py"
    # PSS has one process that trains; the others are served by it.
    workers = len(cluster.jobs["worker"]) if name == "multi_worker_mirrored" else 1
    worker = cluster.task.index if name == "multi_worker_mirrored" else 0
    grouping._SECONDS = 1e9  # Batches go in groups, however long they take.
    for feature_name in names:
        feature = table[feature_name]
        # With no batch under way while another is handed out, the workers take turns, and
        # their steps are those of one device.
        parameter_server._PER_WORKER = 2 if feature.asynchronous else 0
        setting = setting_module.Setting(
            loop=loop,
            strategy=name,
            folder=Path(folder) / str(worker) / feature_name,
            slices=int(slices or 1),
            worker=worker,
            workers=workers,
        )
        run_cell(feature, setting, strategy)


if __name__ == "__main__":
    end_with_parent()
    main(*sys.argv[1:])
    # Not every thread of TensorFlow's ends by itself after a failure; all is written by now.

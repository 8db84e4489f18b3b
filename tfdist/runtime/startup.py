"""Starts TensorFlow with the threads, devices and log level that this task should have."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys

from tfdist.cluster.slurm_gpus import share_of_gpus
from tfdist.errors import ConfigError
from tfdist.runtime import sigterm
from tfdist.runtime.tf_log_filter import (
    filtered_import,
    forget_first_import,
    quiet_tensorflow,
)
from tfdist.runtime.threads import limit_threads

_has_listed = False


def prefer_onednn() -> None:
    """Makes TensorFlow compute with oneDNN's kernels, unless the user has decided otherwise.

    TensorFlow uses them by itself only on x86 processors with AVX-512 VNNI. On one with AVX2 they
    train ResNet50 4.7 times as fast (64 images/s for 14 on a core of an AMD EPYC). They add up in
    another order, so results differ in the last bits. Does nothing once TensorFlow is imported.
    """
    if "tensorflow" not in sys.modules:
        os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")


def start_tensorflow() -> None:
    """Imports TensorFlow and lists the devices, dropping its log lines about this machine.

    Before that, limits its threads where a scheduler limits this task's CPUs, and sets the GPUs it
    sees where a scheduler gives all tasks of a node the same GPUs.
    Does nothing more the second time, or where TF_CPP_MIN_LOG_LEVEL is set to 0, which asks for
    its log lines. All other output to standard error is passed on.

    Raises:
        ConfigError: Several tasks of a node have to share fewer GPUs, or Keras is set to a
            backend other than TensorFlow.
    """
    global _has_listed
    _check_backend()
    # TensorFlow reads these when it first computes, which may be later than its import.
    limit_threads()
    share = None if os.environ.get("TF_CONFIG", "").strip() else share_of_gpus(os.environ)
    if share is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = share
    if _has_listed or os.environ.get("TF_CPP_MIN_LOG_LEVEL") == "0":
        return
    quiet_tensorflow()
    if "tensorflow" not in sys.modules:
        sigterm.end_process_one()  # The import takes seconds.
        forget_first_import()
    with filtered_import():
        importlib.import_module("tensorflow").config.list_physical_devices()
    _has_listed = True


def _check_backend() -> None:
    where, backend = "KERAS_BACKEND", os.environ.get("KERAS_BACKEND")
    if "keras" in sys.modules:
        where, backend = "keras.config.backend()", sys.modules["keras"].config.backend()
    elif backend is None:
        home = os.environ.get("KERAS_HOME") or os.path.expanduser("~/.keras")
        where = os.path.join(home, "keras.json")
        with contextlib.suppress(OSError, ValueError, AttributeError), open(where) as file:
            backend = json.load(file).get("backend")
    if backend not in (None, "", "tensorflow"):
        raise ConfigError(
            f"{where}: {backend!r} is given; allowed: tensorflow, which tf.distribute is part of; "
            "set KERAS_BACKEND=tensorflow before Keras is imported"
        )

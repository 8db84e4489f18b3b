"""Trains a model for a few steps in separate processes, for the benchmarks of training."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfdist.benchmark.processes import ROOT, calling, ending_together, started
from tfdist.cluster import Cluster
from tfdist.errors import EXIT_PEER_LOST, ConfigError, PeerError, TfdistError
from tfdist.function_name import call_function
from tfdist.runtime.heartbeat import VARIABLE as HEARTBEAT
from tfdist.runtime.resources import resident_bytes
from tfdist.validation import quote

if TYPE_CHECKING:
    import keras

    from tfdist.cli.arguments import Parser

_WHERE = "bench(--model)"
_PATIENCE = 1800.0
_CLASSES = 10
# The models that need no function of the user's.
BUNDLED = ("resnet50", "small_cnn")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
    """What is trained.

    Attributes:
        of: "workers" (local processes) or "replicas" (of one process, on virtual CPUs).
        batch: Examples a step: of each replica, or of all of them where `is_strong`.
        is_strong: Whether the global batch stays the same for every count.
        model: "resnet50", "small_cnn", or `module:function` of a function that returns a
            compiled Keras model for images; parameters `input_shape` and `classes` are given
            where it has them.
        data: "synthetic" or a name for `tfdist.data.load`.
        image_size: Height and width of the images.
        warm_up: Steps before the clock starts.
        steps: Steps on the clock.
    """

    of: str = "workers"
    batch: int = 32
    is_strong: bool = False
    model: str = "resnet50"
    data: str = "synthetic"
    image_size: int = 32
    warm_up: int = 4
    steps: int = 12

    def per_replica(self, count: int) -> int:
        """Returns the batch of each of `count` replicas.

        Raises:
            ConfigError: The global batch cannot be divided among them.
        """
        if self.is_strong and self.batch % count:
            raise ConfigError(
                f"bench scaling(--global-batch): {self.batch} cannot be divided among {count} "
                f"{self.of}; give a multiple of it"
            )
        return self.batch // count if self.is_strong else self.batch


def check_model(parser: Parser, name: str) -> None:
    """Checks that a model is a bundled one or `module:function`.

    Raises:
        ConfigError: It is neither.
    """
    if name not in BUNDLED and ":" not in name:
        parser.error(f"--model {quote(name)}: allowed: {', '.join(BUNDLED)}, module:function")


def try_out(setting: Setting, count: int, *, cores: int, together: bool = True) -> dict[str, float]:
    """Trains in processes of this machine for as long as the setting says.

    Args:
        setting: What is trained.
        count: Replicas.
        cores: Cores of each.
        together: Whether they train one model, or each its own.

    Returns:
        What `train` returned in the first process.

    Raises:
        TfdistError: It failed or took too long.
    """
    in_one_process = setting.of == "replicas" and together
    tasks = {"worker": 1 if in_one_process else count}
    work = _work(setting, count, together, replicas=count if in_one_process else 0)
    width = cores * count if in_one_process else cores
    with started(*work, tasks, cores=width) as group:
        result: dict[str, float] = group.result(f"{count} {setting.of}", _PATIENCE)
    return result


def try_here(setting: Setting, cluster: Cluster, *, together: bool) -> dict[str, float] | None:
    """Trains in a process that takes this task's place in a cluster whose other tasks do the same.

    Args:
        setting: What is trained.
        cluster: The cluster of this task.
        together: Whether the tasks train one model, or each its own.

    Returns:
        What `train` returned; together, None in all tasks but the chief.

    Raises:
        TfdistError: It failed.
    """
    with tempfile.TemporaryDirectory() as folder, ending_together() as processes:
        path, log = Path(folder) / "result.json", Path(folder) / "log"
        program, work = _work(setting, cluster.num_workers, together)
        with log.open("wb") as file:
            processes["trial"] = subprocess.Popen(
                [*program, json.dumps(work | {"output": str(path)})],
                env=_environment(cluster if together else None),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
            )
        code = processes["trial"].wait()
        if code:
            lines = log.read_text(errors="replace").splitlines() or [f"exit code {code}"]
            kind = PeerError if code == EXIT_PEER_LOST else TfdistError
            raise kind(f"bench scaling: {lines[-1].removeprefix('tfdist: ')}")
        result: dict[str, float] | None = None
        if path.exists():
            result = json.loads(path.read_text())
        return result


def _work(
    setting: Setting, count: int, together: bool, replicas: int = 0
) -> tuple[list[str], dict[str, object]]:
    """Returns the program and the work of processes that call `train`."""
    arguments = {"setting": dataclasses.asdict(setting), "count": count}
    arguments |= {"together": together, "replicas": replicas}
    return calling("tfdist.benchmark.trial:train", arguments)


def _environment(cluster: Cluster | None) -> dict[str, str]:
    """Returns the variables of a process that is a task of the cluster, or is alone."""
    # The heartbeat is this process' own.
    left_out = ("TF_CONFIG", HEARTBEAT)
    found = {name: value for name, value in os.environ.items() if name not in left_out}
    found["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [found.get("PYTHONPATH")])])
    found.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    found.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
    if cluster is not None:
        found["TF_CONFIG"] = cluster.to_tf_config()
    return found


def train(
    setting: dict[str, Any], count: int, *, together: bool, replicas: int
) -> dict[str, float]:
    """Trains as one of the processes; returns the seconds of a step and its wait, and the memory.

    Args:
        setting: The fields of `Setting`.
        count: Replicas of the whole run.
        together: Whether they train one model, or each its own.
        replicas: Virtual CPUs of this process; 0 for one replica.
    """
    if not together:
        os.environ.pop("TF_CONFIG", None)
    import tfdist

    cluster = tfdist.Cluster.from_environment() if together else tfdist.Cluster.local()
    what = Setting(**setting)
    if replicas:
        tfdist.virtual_devices(replicas)
        strategy = tfdist.mirrored_strategy()
    else:
        strategy = tfdist.build_strategy("auto", cluster)
    per_replica = what.per_replica(count)
    batch = per_replica * count if together else per_replica
    data, examples, shape, classes = _data(what, batch)
    with strategy.scope():
        model = make_model(what.model, shape, classes)
    trainer = tfdist.Trainer(model)
    trainer.fit(data, steps_per_epoch=what.warm_up, verbose=0)
    trainer.fit(data, steps_per_epoch=what.steps, verbose=0)
    (timing,) = trainer.timings
    return {
        "step": timing.seconds / what.steps,
        "input": timing.input_seconds / what.steps,
        "memory": resident_bytes(),
        "examples": examples,
    }


def _data(what: Setting, batch: int) -> tuple[Any, int, tuple[int, int, int], int]:
    """Returns endless batches, the examples of an epoch, and the images' shape and classes."""
    import numpy as np
    import tensorflow as tf

    import tfdist

    if what.data != "synthetic":
        source = tfdist.data.load(what.data, image_size=what.image_size, channels=3)
        return (
            source.train(batch, drop_remainder=True),
            source.num_train,
            source.image_shape,
            source.num_classes,
        )
    shape = (what.image_size, what.image_size, 3)
    draw = np.random.default_rng(0)
    x = draw.normal(size=(batch, *shape)).astype("float32")
    y = draw.integers(0, _CLASSES, batch).astype("int32")
    return tf.data.Dataset.from_tensors((x, y)).repeat(), 0, shape, _CLASSES


def make_model(name: str, shape: tuple[int, int, int], classes: int) -> keras.Model:
    """Makes a compiled model.

    Args:
        name: "resnet50", "small_cnn", or `module:function`.
        shape: Of an image.
        classes: The number of labels.

    Raises:
        ConfigError: There is no such function, or it does not return a compiled model.
    """
    import keras

    import tfdist

    if ":" not in name:
        model = getattr(tfdist.models, name)(shape, classes)
        model.compile(keras.optimizers.SGD(0.01, momentum=0.9), "sparse_categorical_crossentropy")
        return model
    model = call_function(_WHERE, name, input_shape=shape, classes=classes)
    if not isinstance(model, keras.Model) or not model.compiled:
        raise ConfigError(f"{_WHERE}: {name} does not return a compiled keras.Model")
    return model

"""Trains a model for a few steps in processes of their own, for the benchmarks of training."""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING, Any

from tfdist.benchmark.peers.contenders import Contender
from tfdist.benchmark.peers.hosts import LOOPBACK
from tfdist.benchmark.peers.measure import run
from tfdist.errors import ConfigError
from tfdist.function_name import call_function
from tfdist.runtime.memory import resident_bytes

if TYPE_CHECKING:
    import keras

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


def try_out(setting: Setting, count: int, *, cores: int, together: bool = True) -> dict[str, float]:
    """Trains in processes of their own for as long as the setting says.

    Args:
        setting: What is trained.
        count: Replicas.
        cores: Cores of each.
        together: Whether they train one model, else each its own.

    Returns:
        What `train` returned in the first process.

    Raises:
        TfdistError: It failed or took too long.
    """
    in_one_process = setting.of == "replicas" and together
    tasks = {"worker": 1 if in_one_process else count}
    contender = Contender(f"{count} {setting.of}", "trial", tasks)
    options = {
        "setting": dataclasses.asdict(setting),
        "count": count,
        "together": together,
        "replicas": count if in_one_process else 0,
    }
    width = cores * count if in_one_process else cores
    result: dict[str, float] = run(
        contender,
        {"program": "trial", "options": options},
        None,
        _PATIENCE,
        [LOOPBACK],
        cores=width,
    )["trial"]
    return result


def train(
    setting: dict[str, Any], count: int, *, together: bool, replicas: int
) -> dict[str, float]:
    """Trains as one of the processes; returns seconds a step, of them waiting, and memory.

    Args:
        setting: The fields of `Setting`.
        count: Replicas of the whole run.
        together: Whether they train one model, else each its own.
        replicas: Virtual CPUs of this process; 0 for one replica.
    """
    if not together:
        os.environ.pop("TF_CONFIG", None)
    import tfdist

    what = Setting(**setting)
    if replicas:
        tfdist.virtual_devices(replicas)
        strategy = tfdist.mirrored_strategy()
    else:
        strategy = tfdist.build_strategy("auto", tfdist.Cluster.from_environment())
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
    """Returns batches without end, the examples of an epoch, and images' shape and classes."""
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
        ConfigError: There is no such function, or what it returns is no compiled model.
    """
    import keras

    import tfdist

    if ":" not in name:
        model = getattr(tfdist.models, name)(shape, classes)
        model.compile(keras.optimizers.SGD(0.01, momentum=0.9), "sparse_categorical_crossentropy")
        return model
    model = call_function(_WHERE, name, input_shape=shape, classes=classes)
    if not isinstance(model, keras.Model) or not model.compiled:
        raise ConfigError(f"{_WHERE}: {name} returns no compiled keras.Model")
    return model

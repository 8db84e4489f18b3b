"""The options of a training run, and those that follow from others."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from typing import Any

import yaml

from tfdist.collectives.transport_names import TRANSPORTS, WIRE_TYPES
from tfdist.option_fields import option
from tfdist.scaling.plan import DECAYS, RULES
from tfdist.strategy.kinds import AUTO, NAMES
from tfdist.validation import MOST_SECONDS

# The groups in which help lists options; those of the command itself stand among them.
CLUSTER, OUTPUT = "cluster and strategy", "checkpoints and output"
_DATA, _MODEL, _OPTIMISATION, _SPEED = "data", "model", "optimisation", "speed"
# The largest number of anything that is counted.
_MOST = 1_000_000_000

# Options that name places of files, which may differ between tasks without changing results.
PLACES = ("output_dir", "data_dir", "stage_dir", "checkpoint_dir", "overwrite")
_SMOKE_STEPS = 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """The options of a training run; the flags of `tfdist train` have the same names."""

    strategy: str = option(CLUSTER, "the tf.distribute strategy", AUTO, choices=NAMES)
    virtual_devices: int = option(
        CLUSTER, "number of devices to split the CPU into; 0: none", 0, least=0, most=_MOST
    )

    dataset: str = option(_DATA, "digits, of TFDS, folder:PATH, synthetic, or module:f", "digits")
    data_dir: str | None = option(_DATA, "the folder of TFDS's datasets")
    stage_dir: str | None = option(_DATA, "a node's own disk, to copy the data to first")
    validation_split: float = option(
        _DATA, "fraction of a folder's images to test on", 0.0, least=0, most=1
    )
    image_size: int | None = option(
        _DATA, "height and width, in pixels; the images' own", least=8, most=100_000
    )
    augment: bool = option(_DATA, "augment by the dataset's recipe", True)
    per_replica_batch: int = option(_DATA, "examples per replica and step", 32, most=_MOST)
    limit_steps: int | None = option(_DATA, "steps of an epoch, for a part of the data", most=_MOST)

    model: str = option(
        _MODEL, "resnet50, small_cnn, of keras.applications, or module:f", "resnet50"
    )
    synchronized_batch_norm: bool = option(_MODEL, "normalise over the global batch", False)
    seed: int = option(_MODEL, "initial weights, order and augmentation follow from it", 0, least=0)

    epochs: int = option(_OPTIMISATION, "passes over the training data", 10, most=_MOST)
    max_time: float | None = option(
        _OPTIMISATION, "seconds after which training ends", least=0, most=MOST_SECONDS
    )
    optimizer: str = option(
        _OPTIMISATION,
        "the optimizer; sgd has momentum 0.9",
        "sgd",
        choices=("sgd", "adam", "adamw"),
    )
    base_learning_rate: float = option(
        _OPTIMISATION, "the rate for a batch of --base-batch", 0.08, least=0, most=_MOST
    )
    base_batch: int = option(
        _OPTIMISATION, "the batch --base-learning-rate is for", 256, most=_MOST
    )
    rule: str = option(
        _OPTIMISATION, "how the rate is scaled with the global batch", "linear", choices=RULES
    )
    warmup_epochs: float | None = option(
        _OPTIMISATION, "epochs of gradual warmup; 1, or half a run", least=0, most=_MOST
    )
    decay: str = option(
        _OPTIMISATION, "the decay of the rate after warmup", "cosine", choices=DECAYS
    )
    weight_decay: float = option(_OPTIMISATION, "decoupled weight decay", 0.0, least=0, most=1)
    label_smoothing: float = option(
        _OPTIMISATION, "the fraction of a label that all classes share", 0.0, least=0, most=1
    )
    clip_norm: float | None = option(
        _OPTIMISATION, "the most that the gradient's norm may be", least=0, most=_MOST
    )
    ema: float | None = option(
        _OPTIMISATION, "momentum of an average of the weights, as 0.999", least=0, most=1
    )
    accumulate_steps: int = option(
        _OPTIMISATION, "batches per update of the weights", 1, most=_MOST
    )

    output_dir: str | None = option(OUTPUT, "the run's folder: model, plan, history, checkpoints")
    overwrite: bool = option(OUTPUT, "remove the run that is in it", False)
    checkpoint_dir: str | None = option(OUTPUT, "where training is saved, and resumed from")
    checkpoint_steps: int | None = option(
        OUTPUT, "batches between two checkpoints; by default each epoch"
    )
    checkpoint_seconds: float | None = option(
        OUTPUT, "seconds between them", least=0, most=MOST_SECONDS
    )
    smoke: bool = option(OUTPUT, "try everything out: 3 steps, a validation, a checkpoint", False)

    mixed_precision: str = option(
        _SPEED,
        "Keras' dtype policy",
        "float32",
        choices=("float32", "mixed_bfloat16", "mixed_float16"),
    )
    transport: str = option(
        _SPEED, "what carries tensors between workers", "auto", choices=TRANSPORTS
    )
    wire_dtype: str = option(_SPEED, "the type gradients are sent in", "auto", choices=WIRE_TYPES)
    local_steps: int = option(_SPEED, "steps between two averages of the workers", 1, most=_MOST)
    outer_learning_rate: float = option(
        _SPEED, "the fraction of the way to an average", 1.0, least=0, most=_MOST
    )
    outer_momentum: float = option(_SPEED, "Nesterov momentum of that way", 0.0, least=0, most=1)
    steps_per_call: int | None = option(_SPEED, "steps in one call of TensorFlow", most=_MOST)
    profile: str | None = option(_SPEED, "record steps A:B, for tfdist profile")
    profile_tasks: Sequence[str] | None = option(_SPEED, "the tasks that do: worker/1,...; all")

    def settled(self) -> TrainOptions:
        """Returns the options with those defaults filled in that follow from other options."""
        found: dict[str, Any] = {}
        if self.smoke:
            found |= {"epochs": 1, "limit_steps": _SMOKE_STEPS}
        if self.warmup_epochs is None:
            # An epoch, and no more than half of a short run.
            found["warmup_epochs"] = min(1.0, found.get("epochs", self.epochs) / 2)
        if self.checkpoint_dir is None and self.output_dir is not None:
            found["checkpoint_dir"] = os.path.join(self.output_dir, "checkpoints")
        return dataclasses.replace(self, **found)

    def to_yaml(self) -> str:
        """Returns them as a file for `tfdist train --config`, without the places of files."""
        fields = dataclasses.asdict(self)
        portable = {name: value for name, value in fields.items() if name not in PLACES}
        return yaml.safe_dump(portable, sort_keys=False)

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

# Groups of options in the help that also list flags of the command itself.
CLUSTER, OUTPUT = "cluster and strategy", "checkpoints and output"
_DATASETS = "digits, of TFDS, folder:PATH, synthetic, or module:f"
_MODELS = "resnet50, small_cnn, of keras.applications, or module:f"
_OPTIMIZERS = ("sgd", "adam", "adamw")
_POLICIES = ("float32", "mixed_bfloat16", "mixed_float16")
# Options that name places of files, which may differ between tasks without changing results.
PLACES = ("output_dir", "data_dir", "stage_dir", "checkpoint_dir", "overwrite")
_SMOKE_STEPS = 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """The options of a training run; the flags of `tfdist train` have the same names."""

    strategy: str = option("the tf.distribute strategy", AUTO, choices=NAMES, group=CLUSTER)
    virtual_devices: int = option("number of devices to split the CPU into; 0: none", 0, least=0)

    dataset: str = option(_DATASETS, "digits", group="data")
    data_dir: str | None = option("the folder of TFDS's datasets")
    stage_dir: str | None = option("a node's own disk, to copy the data to first")
    validation_split: float = option("fraction of a folder's images to test on", 0.0, most=1)
    image_size: int | None = option(
        "height and width, in pixels; the images' own", least=8, most=100_000
    )
    augment: bool = option("augment by the dataset's recipe", True)
    per_replica_batch: int = option("examples per replica and step", 32)
    limit_steps: int | None = option("steps of an epoch, for a part of the data")

    model: str = option(_MODELS, "resnet50", group="model")
    synchronized_batch_norm: bool = option("normalise over the global batch", False)
    seed: int = option("initial weights, order and augmentation follow from it", 0, least=0)

    epochs: int = option("passes over the training data", 10, group="optimisation")
    max_time: float | None = option("seconds after which training ends", most=MOST_SECONDS)
    optimizer: str = option("the optimizer; sgd has momentum 0.9", "sgd", choices=_OPTIMIZERS)
    base_learning_rate: float = option("the rate for a batch of --base-batch", 0.08)
    base_batch: int = option("the batch --base-learning-rate is for", 256)
    rule: str = option("how the rate is scaled with the global batch", "linear", choices=RULES)
    warmup_epochs: float | None = option("epochs of gradual warmup; 1, or half a run")
    decay: str = option("the decay of the rate after warmup", "cosine", choices=DECAYS)
    weight_decay: float = option("decoupled weight decay", 0.0, most=1)
    label_smoothing: float = option("the fraction of a label that all classes share", 0.0, most=1)
    clip_norm: float | None = option("the most that the gradient's norm may be")
    ema: float | None = option("momentum of an average of the weights, as 0.999", most=1)
    accumulate_steps: int = option("batches per update of the weights", 1)

    output_dir: str | None = option(
        "the run's folder: model, plan, history, checkpoints", group=OUTPUT
    )
    overwrite: bool = option("remove the run that is in it", False)
    checkpoint_dir: str | None = option("where training is saved, and resumed from")
    checkpoint_steps: int | None = option("batches between two checkpoints; by default each epoch")
    checkpoint_seconds: float | None = option("seconds between them", most=MOST_SECONDS)
    smoke: bool = option("try everything out: 3 steps, a validation, a checkpoint", False)

    mixed_precision: str = option(
        "Keras' dtype policy", "float32", choices=_POLICIES, group="speed"
    )
    transport: str = option("what carries tensors between workers", "auto", choices=TRANSPORTS)
    wire_dtype: str = option("the type gradients are sent in", "auto", choices=WIRE_TYPES)
    local_steps: int = option("steps between two averages of the workers", 1)
    outer_learning_rate: float = option("the fraction of the way to an average", 1.0)
    outer_momentum: float = option("Nesterov momentum of that way", 0.0, most=1)
    steps_per_call: int | None = option("steps in one call of TensorFlow")
    profile: str | None = option("record steps A:B, for tfdist profile")
    profile_tasks: Sequence[str] | None = option("the tasks that do: worker/1,...; all")

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

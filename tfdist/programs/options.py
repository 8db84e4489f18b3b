"""The options of a training run, and those that follow from others."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from typing import Any

import yaml

# Options that say where files are; tasks may have their own, and a run has the same results.
PLACES = ("output_dir", "data_dir", "stage_dir", "checkpoint_dir", "overwrite")
_SMOKE_STEPS = 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """The options of a training run; the flags of `tfdist train` have the same names."""

    strategy: str = "auto"
    virtual_devices: int = 0
    dataset: str = "digits"
    data_dir: str | None = None
    stage_dir: str | None = None
    validation_split: float = 0.0
    model: str = "resnet50"
    image_size: int | None = None
    augment: bool = True
    per_replica_batch: int = 32
    accumulate_steps: int = 1
    epochs: int = 10
    limit_steps: int | None = None
    max_time: float | None = None
    smoke: bool = False
    base_learning_rate: float = 0.08
    base_batch: int = 256
    rule: str = "linear"
    warmup_epochs: float | None = None
    decay: str = "cosine"
    optimizer: str = "sgd"
    weight_decay: float = 0.0
    label_smoothing: float = 0.0
    clip_norm: float | None = None
    ema: float | None = None
    synchronized_batch_norm: bool = False
    mixed_precision: str = "float32"
    seed: int = 0
    output_dir: str | None = None
    overwrite: bool = False
    checkpoint_dir: str | None = None
    checkpoint_steps: int | None = None
    checkpoint_seconds: float | None = None
    steps_per_call: int | None = None
    transport: str = "auto"
    wire_dtype: str = "auto"
    local_steps: int = 1
    outer_learning_rate: float = 1.0
    outer_momentum: float = 0.0
    profile: str | None = None
    profile_tasks: Sequence[str] | None = None

    def settled(self) -> TrainOptions:
        """Returns the options of the run that they describe, whose defaults follow from others."""
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
        told = {name: value for name, value in fields.items() if name not in PLACES}
        return yaml.safe_dump(told, sort_keys=False)

"""Trains Keras 3 models on every `tf.distribute` strategy.

Names are loaded when first asked for (PEP 562), so `import tfdist` costs
milliseconds and does not import TensorFlow. Type checkers and editors, which do
not run `__getattr__`, read the imports under `TYPE_CHECKING` instead.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tfdist.runtime import excepthook
from tfdist.runtime.resources import find_temporary_folder
from tfdist.runtime.tf_log_filter import filter_first_import

if TYPE_CHECKING:
    from tfdist import data as data
    from tfdist import models as models
    from tfdist.cluster import Cluster as Cluster
    from tfdist.cluster import Task as Task
    from tfdist.errors import CheckpointError as CheckpointError
    from tfdist.errors import ConfigError as ConfigError
    from tfdist.errors import OutOfStepError as OutOfStepError
    from tfdist.errors import PeerError as PeerError
    from tfdist.errors import Preempted as Preempted
    from tfdist.errors import TaskError as TaskError
    from tfdist.errors import TfdistError as TfdistError
    from tfdist.programs.function import launch as launch
    from tfdist.scaling.plan import Plan as Plan
    from tfdist.scaling.scale import scale as scale
    from tfdist.strategy.build import build_strategy as build_strategy
    from tfdist.strategy.build import central_storage_strategy as central_storage_strategy
    from tfdist.strategy.build import mirrored_strategy as mirrored_strategy
    from tfdist.strategy.build import (
        multi_worker_mirrored_strategy as multi_worker_mirrored_strategy,
    )
    from tfdist.strategy.build import one_device_strategy as one_device_strategy
    from tfdist.strategy.build import parameter_server_strategy as parameter_server_strategy
    from tfdist.strategy.devices import virtual_devices as virtual_devices
    from tfdist.strategy.serve import serve as serve
    from tfdist.training import Trainer as Trainer
    from tfdist.training.callbacks import on_chief as on_chief

__version__ = "0.1.0"

find_temporary_folder()
filter_first_import()
excepthook.install()

# public name -> (module, attribute); an attribute of None is the module itself.
_EXPORTS: dict[str, tuple[str, str | None]] = {
    "Cluster": ("tfdist.cluster", "Cluster"),
    "Task": ("tfdist.cluster", "Task"),
    "TfdistError": ("tfdist.errors", "TfdistError"),
    "ConfigError": ("tfdist.errors", "ConfigError"),
    "CheckpointError": ("tfdist.errors", "CheckpointError"),
    "OutOfStepError": ("tfdist.errors", "OutOfStepError"),
    "PeerError": ("tfdist.errors", "PeerError"),
    "Preempted": ("tfdist.errors", "Preempted"),
    "TaskError": ("tfdist.errors", "TaskError"),
    "launch": ("tfdist.programs.function", "launch"),
    "scale": ("tfdist.scaling.scale", "scale"),
    "Plan": ("tfdist.scaling.plan", "Plan"),
    "build_strategy": ("tfdist.strategy.build", "build_strategy"),
    "one_device_strategy": ("tfdist.strategy.build", "one_device_strategy"),
    "mirrored_strategy": ("tfdist.strategy.build", "mirrored_strategy"),
    "multi_worker_mirrored_strategy": ("tfdist.strategy.build", "multi_worker_mirrored_strategy"),
    "central_storage_strategy": ("tfdist.strategy.build", "central_storage_strategy"),
    "parameter_server_strategy": ("tfdist.strategy.build", "parameter_server_strategy"),
    "virtual_devices": ("tfdist.strategy.devices", "virtual_devices"),
    "serve": ("tfdist.strategy.serve", "serve"),
    "Trainer": ("tfdist.training", "Trainer"),
    "on_chief": ("tfdist.training.callbacks", "on_chief"),
    "models": ("tfdist.models", None),
    "data": ("tfdist.data", None),
}

_NEED_TENSORFLOW = {
    "tfdist.strategy.build",
    "tfdist.strategy.devices",
    "tfdist.strategy.serve",
    "tfdist.training",
    "tfdist.training.callbacks",
    "tfdist.models",
    "tfdist.data",
}

# Not for type checkers: they would take every name for one that `__getattr__` may find.
if not TYPE_CHECKING:
    __all__ = ["__version__", *_EXPORTS]

    def __getattr__(name: str) -> Any:
        try:
            module_name, attribute = _EXPORTS[name]
        except KeyError:
            raise AttributeError(f"module 'tfdist' has no attribute {name!r}") from None
        if module_name in _NEED_TENSORFLOW:
            importlib.import_module("tfdist.runtime.startup").start_tensorflow()
        module = importlib.import_module(module_name)
        value = module if attribute is None else getattr(module, attribute)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})

"""tfdist trains Keras 3 models on every `tf.distribute` strategy.

Names are loaded when first asked for (PEP 562), so `import tfdist` costs
milliseconds and does not import TensorFlow.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

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
    "scale": ("tfdist.scaling", "scale"),
    "Plan": ("tfdist.scaling", "Plan"),
    "build_strategy": ("tfdist.strategy", "build_strategy"),
    "one_device_strategy": ("tfdist.strategy", "one_device_strategy"),
    "mirrored_strategy": ("tfdist.strategy", "mirrored_strategy"),
    "multi_worker_mirrored_strategy": ("tfdist.strategy", "multi_worker_mirrored_strategy"),
    "central_storage_strategy": ("tfdist.strategy", "central_storage_strategy"),
    "parameter_server_strategy": ("tfdist.strategy", "parameter_server_strategy"),
    "virtual_devices": ("tfdist.strategy", "virtual_devices"),
    "serve": ("tfdist.serving", "serve"),
    "Trainer": ("tfdist.training", "Trainer"),
    "models": ("tfdist.models", None),
    "data": ("tfdist.data", None),
}

_NEED_TENSORFLOW = {
    "tfdist.strategy",
    "tfdist.serving",
    "tfdist.training",
    "tfdist.models",
    "tfdist.data",
}

__all__ = ["__version__", *_EXPORTS]


def __getattr__(name: str) -> Any:
    try:
        module_name, attribute = _EXPORTS[name]
    except KeyError:
        raise AttributeError(f"module 'tfdist' has no attribute {name!r}") from None
    if module_name in _NEED_TENSORFLOW:
        importlib.import_module("tfdist.quiet").start_tensorflow()
    module = importlib.import_module(module_name)
    value = module if attribute is None else getattr(module, attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

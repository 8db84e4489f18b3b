"""Keras' own tests of its callbacks, as classes for a module of tests."""

from __future__ import annotations

from typing import Any

from tests.training.keras_suite.sending import module_of_keras

_MODULES = (
    "backup_and_restore",
    "callback",
    "csv_logger",
    "early_stopping",
    "lambda_callback",
    "learning_rate_scheduler",
    "model_checkpoint",
    "monitor_callback",
    "orbax_checkpoint",
    "reduce_lr_on_plateau",
    "remote_monitor",
    "swap_ema_weights",
    "tensorboard",
    "terminate_on_nan",
)


def classes(how: type, module: str) -> dict[str, Any]:
    """The classes of Keras' tests, each run as a class says; `module_of` names where a test is.

    Args:
        how: Their first base: it has the fixture that each test runs in.
        module: The name of the module that asks.
    """
    made = {}
    for name in _MODULES:
        tests = module_of_keras(f"keras.src.callbacks.{name}_test")
        for attribute, value in vars(tests).items():
            own = isinstance(value, type) and value.__module__ == tests.__name__
            if own and any(test.startswith("test") for test in dir(value)):
                here = "Test" + attribute.removeprefix("Test")
                made[here] = type(here, (how, value), {"__module__": module, "about": name})
    return made

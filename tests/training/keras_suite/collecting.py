"""Keras' own tests, as classes for a module of tests to run in its own way."""

from __future__ import annotations

import fnmatch
import unittest
from collections.abc import Collection
from typing import Any

from tests.training.keras_suite.sending import module_of_keras

TRAINER = {"trainer": "keras.src.trainers.trainer_test"}
CALLBACKS = {
    name: f"keras.src.callbacks.{name}_test"
    for name in (
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
}


def classes(
    modules: dict[str, str],
    how: type,
    here: str,
    chosen: Collection[str] = ("*",),
    without: Collection[str] = (),
) -> dict[str, type]:
    """Makes a class for each class of Keras' tests.

    Args:
        modules: What each module is about, to its name.
        how: The first base of each class: it has the fixture that each test runs in, and finds in
            `about` what the test is about.
        here: The name of the module that asks.
        chosen: The tests to run, as "about: test"; stars stand for anything.
        without: Those of them that are not to run.

    Returns:
        The classes by name.
    """
    made = {}
    for about, module in modules.items():
        tests = module_of_keras(module)
        for attribute, value in vars(tests).items():
            if not isinstance(value, type) or not issubclass(value, unittest.TestCase):
                continue
            if value.__module__ != tests.__name__:
                continue
            names = [name for name in dir(value) if name.startswith("test")]
            kept = {
                name
                for name in names
                if is_among(f"{about}: {name}", chosen)
                and not is_among(f"{about}: {name}", without)
            }
            if kept:
                # pytest takes what is None for no test.
                others: dict[str, Any] = {name: None for name in names if name not in kept}
                own = {"__module__": here, "about": about, **others}
                name = "Test" + attribute.removeprefix("Test")
                made[name] = type(name, (how, value), own)
    return made


def is_among(test: str, patterns: Collection[str]) -> bool:
    """Whether a pattern names the test."""
    return any(fnmatch.fnmatchcase(test, pattern) for pattern in patterns)

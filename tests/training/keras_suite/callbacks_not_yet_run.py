"""Keras' own tests of its callbacks, through tfdist on one device."""

from __future__ import annotations

import pytest

from tests.training.keras_suite.left_out import CALLBACKS, reason
from tests.training.keras_suite.sending import PLAIN, module_of_keras, sent

_MODULES = (
    "backup_and_restore",
    "callback",
    "csv_logger",
    "early_stopping",
    "lambda_callback",
    "learning_rate_scheduler",
    "model_checkpoint",
    "monitor_callback",
    "reduce_lr_on_plateau",
    "remote_monitor",
    "swap_ema_weights",
    "tensorboard",
    "terminate_on_nan",
)


class _Sent:
    @pytest.fixture(autouse=True)
    def _sent(self, request):
        why = reason(request.node.name, CALLBACKS)
        if why and not PLAIN:
            pytest.skip(why)
        with sent():
            yield


def _collect():
    for name in _MODULES:
        module = module_of_keras(f"keras.src.callbacks.{name}_test")
        for attribute, value in vars(module).items():
            own = isinstance(value, type) and value.__module__ == module.__name__
            if own and any(test.startswith("test") for test in dir(value)):
                name_here = "Test" + attribute.removeprefix("Test")
                globals()[name_here] = type(name_here, (_Sent, value), {"__module__": __name__})


_collect()

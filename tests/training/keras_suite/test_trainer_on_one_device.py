"""Keras' own tests of `fit`, `evaluate` and `predict`, through tfdist on one device."""

from __future__ import annotations

import pytest

from tests.training.keras_suite.left_out import TRAINER, reason
from tests.training.keras_suite.sending import PLAIN, module_of_keras, sent

_TESTS = module_of_keras("keras.src.trainers.trainer_test")


# Keras runs them with its warnings shown, not raised.
@pytest.mark.filterwarnings("ignore")
class TestTrainer(_TESTS.TestTrainer):
    @pytest.fixture(autouse=True)
    def _sent(self, request):
        why = reason(request.node.name, TRAINER)
        if why and not PLAIN:
            pytest.skip(why)
        with sent():
            yield

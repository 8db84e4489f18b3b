"""Keras' own tests of `fit`, `evaluate` and `predict`, through tfdist on two mirrored replicas."""

from __future__ import annotations

import pytest

from tests.training.keras_suite.left_out import MIRRORED, TRAINER, reason
from tests.training.keras_suite.sending import PLAIN, module_of_keras, sent

_TESTS = module_of_keras("keras.src.trainers.trainer_test")


@pytest.fixture(scope="module")
def mirrored(devices):
    import tfdist

    return tfdist.mirrored_strategy(devices[:2])


# Keras runs them with its warnings shown, not raised.
@pytest.mark.filterwarnings("ignore")
class TestTrainer(_TESTS.TestTrainer):
    @pytest.fixture(autouse=True)
    def _sent(self, request, mirrored):
        why = reason(request.node.name, TRAINER, MIRRORED)
        if why and not PLAIN:
            pytest.skip(why)
        with sent(mirrored):
            yield

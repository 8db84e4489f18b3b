"""A few of Keras' own tests, through tfdist on two replicas whose variables are kept once."""

from __future__ import annotations

import pytest

from tests.training.keras_suite.chosen import SHORT
from tests.training.keras_suite.collecting import CALLBACKS, TRAINER, classes
from tests.training.keras_suite.one_test import OneTest

# Keras runs them with its warnings shown, not raised.
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.long]


class _CentralStorage(OneTest):
    @pytest.fixture(scope="module")
    def strategy(self, devices):
        import tfdist

        return tfdist.central_storage_strategy(devices[:2])


globals().update(classes(TRAINER | CALLBACKS, _CentralStorage, __name__, SHORT))

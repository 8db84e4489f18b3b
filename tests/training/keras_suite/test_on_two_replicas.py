"""Keras' own tests of its trainer and of its callbacks, through tfdist on two mirrored replicas.

All of them where TFDIST_CONFORMANCE=full; else a few.
"""

from __future__ import annotations

import os

import pytest

from tests.training.keras_suite import chosen
from tests.training.keras_suite.collecting import CALLBACKS, TRAINER, classes
from tests.training.keras_suite.left_out import MIRRORED
from tests.training.keras_suite.one_test import OneTest

# Keras runs them with its warnings shown, not raised.
pytestmark = pytest.mark.filterwarnings("ignore")


class _Mirrored(OneTest):
    leaves_out = MIRRORED

    @pytest.fixture(scope="module")
    def strategy(self, devices):
        import tfdist

        return tfdist.mirrored_strategy(devices[:2])


_FULL = os.environ.get("TFDIST_CONFORMANCE") == "full"
_CHOSEN = ("*",) if _FULL else chosen.SHORT

globals().update(classes(TRAINER | CALLBACKS, _Mirrored, __name__, _CHOSEN))

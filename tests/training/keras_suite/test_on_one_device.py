"""Keras' own tests of its trainer and of its callbacks, through tfdist on one device.

All of them where TFDIST_CONFORMANCE=full; else without what is a variant of another.
"""

from __future__ import annotations

import os

import pytest

from tests.training.keras_suite.chosen import VARIANTS
from tests.training.keras_suite.collecting import CALLBACKS, TRAINER, classes
from tests.training.keras_suite.one_test import OneTest

# Keras runs them with its warnings shown, not raised.
pytestmark = pytest.mark.filterwarnings("ignore")

_FULL = os.environ.get("TFDIST_CONFORMANCE") == "full"
_WITHOUT = () if _FULL else VARIANTS

globals().update(classes(TRAINER | CALLBACKS, OneTest, __name__, without=_WITHOUT))

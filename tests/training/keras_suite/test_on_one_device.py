"""Keras' own tests of its trainer and of its callbacks, through tfdist on one device."""

from __future__ import annotations

import pytest

from tests.training.keras_suite.collecting import CALLBACKS, TRAINER, classes
from tests.training.keras_suite.one_test import OneTest

# Keras runs them with its warnings shown, not raised.
pytestmark = pytest.mark.filterwarnings("ignore")

globals().update(classes(TRAINER | CALLBACKS, OneTest, __name__))

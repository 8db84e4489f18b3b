"""Keras' own tests of its callbacks, through tfdist on one device."""

from __future__ import annotations

import pytest

from tests.training.keras_suite.callbacks import classes
from tests.training.keras_suite.left_out import CALLBACKS, reason
from tests.training.keras_suite.sending import PLAIN, sent

# Keras runs them with its warnings shown, not raised.
pytestmark = pytest.mark.filterwarnings("ignore")


class _OneDevice:
    @pytest.fixture(autouse=True)
    def _sent(self, request):
        why = reason(f"{self.about}: {request.node.name}", CALLBACKS)
        if why and not PLAIN:
            pytest.skip(why)
        with sent():
            yield


globals().update(classes(_OneDevice, __name__))

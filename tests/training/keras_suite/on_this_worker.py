"""A few of Keras' own tests, on one of the workers that TF_CONFIG names.

`test_on_two_workers.py` runs pytest on this file in each of two processes.
"""

from __future__ import annotations

import pytest

from tests.training.keras_suite.chosen import SHORT
from tests.training.keras_suite.collecting import CALLBACKS, TRAINER, classes
from tests.training.keras_suite.one_test import OneTest


class _ThisWorker(OneTest):
    @pytest.fixture(scope="module")
    def strategy(self):
        import tfdist

        return tfdist.multi_worker_mirrored_strategy(tfdist.Cluster.from_environment())


globals().update(classes(TRAINER | CALLBACKS, _ThisWorker, __name__, SHORT))

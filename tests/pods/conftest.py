"""A cluster for each of these tests, of which nothing may be left."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator

import pytest

from tests.pods.cluster import Cluster

# What stands for the 120 seconds that manifests give. To save takes a fraction of a second here;
# to end Python afterwards takes seconds on a busy machine.
GRACE = 30.0


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    made = Cluster(GRACE)
    try:
        made.network.start()
        yield made
    finally:
        print(made.text())  # pytest shows it where the test fails.
        made.close()
    assert not glob.glob(f"/run/netns/tfdist-pods-{os.getpid()}*")

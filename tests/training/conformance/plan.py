"""Which runs the wanted cells take, and what each cell is compared with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tests.training.conformance.features import FEATURES
from tests.training.conformance.setting import STRATEGIES, TWO_REPLICAS, Feature

# Plain Keras on one device, whole batches and cut in two.
WHOLE, SLICED = ("keras", "none@1"), ("keras", "none@2")


def reference(feature: Feature, strategy: str) -> tuple[str, str]:
    """The run that the feature under the strategy is compared with."""
    if feature.reference == "slices":
        return SLICED if strategy in TWO_REPLICAS else WHOLE
    if feature.reference == "workers":
        return SLICED if strategy == "multi_worker_mirrored" else WHOLE
    if feature.reference == "one_device":
        return "tfdist", "one_device"
    return WHOLE


def plan(
    cells: Iterable[tuple[str, str]], table: Mapping[str, Feature] = FEATURES
) -> dict[tuple[str, str], list[str]]:
    """The runs, roughly the longest first: (loop, where) to the names of their features."""
    wanted: dict[tuple[str, str], set[str]] = {
        ("tfdist", strategy): set() for strategy in reversed(STRATEGIES)
    }
    wanted |= {key: set() for key in (WHOLE, SLICED)}
    for name, strategy in cells:
        wanted["tfdist", strategy].add(name)
        wanted[reference(table[name], strategy)].add(name)
    return {
        key: [name for name in table if name in names] for key, names in wanted.items() if names
    }

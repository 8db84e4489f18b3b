"""The coordinator is stopped when the process ends, and not again where Python deletes it."""

from __future__ import annotations

import pytest
import tensorflow as tf

from tfdist.runtime import shutdown
from tfdist.strategy.coordinator import Coordinator, coordinator_of


def test_it_is_stopped_once(monkeypatch: pytest.MonkeyPatch) -> None:
    class Strategy:
        """As one whose scope was entered already, which makes a coordinator of TensorFlow's."""

        _is_parameter_server_strategy_v2 = True

    stops, at_exit = [], []
    base = tf.distribute.coordinator.ClusterCoordinator
    monkeypatch.setattr(base, "__del__", lambda self: stops.append(type(self)))
    monkeypatch.setattr(shutdown, "at_exit", lambda what, act: at_exit.append(act))
    strategy = Strategy()
    strategy._cluster_coordinator = base.__new__(base, _Empty())  # type: ignore[attr-defined]
    strategy._cluster_coordinator._has_initialized = True  # type: ignore[attr-defined]
    made = coordinator_of(strategy)
    assert coordinator_of(strategy) is made is strategy._cluster_coordinator  # type: ignore[attr-defined]
    (stop,) = at_exit
    stop()
    made.__del__()
    assert stops == [Coordinator]


class _Empty:
    _cluster_coordinator = None

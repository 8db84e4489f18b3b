"""Which transport is taken, and what is said where it cannot be had."""

from __future__ import annotations

import pytest
import tensorflow as tf

from tfdist.collectives import choose
from tfdist.collectives.choose import make_transport
from tfdist.collectives.layout import ReplicaLayout
from tfdist.collectives.tensorflow import TensorFlowTransport
from tfdist.collectives.transport import SingleReplica
from tfdist.errors import ConfigError


class Group:
    """Three workers of which this is the first; the others say what it says, or something else."""

    def __init__(self, local_replicas=1, others=None):
        self.layout = ReplicaLayout(0, 3, local_replicas, 3 * local_replicas)
        self.tasks = ["chief/0", "worker/0", "worker/1"]
        self.is_chief, self.ring, self._others = True, None, others

    def exchange(self, value):
        return [value, value, value if self._others is None else self._others]


class Strategy:
    def __init__(self, device="/device:CPU:0"):
        self.extended = self
        self.worker_devices = (device,)


def made(strategy, group, wanted="auto"):
    return make_transport(strategy, group, wanted)


def test_one_replica_needs_none():
    class Alone(Group):
        def __init__(self):
            self.layout = ReplicaLayout()

    assert isinstance(made(tf.distribute.get_strategy(), Alone()), SingleReplica)


@pytest.mark.parametrize(
    ("strategy", "group", "reason"),
    [
        (Strategy("/device:GPU:0"), Group(), "replicas are on GPUs"),
        (Strategy(), Group(local_replicas=2), "2 replicas a worker"),
    ],
)
def test_where_the_ring_is_not_for(strategy, group, reason):
    assert isinstance(made(strategy, group), TensorFlowTransport)
    with pytest.raises(ConfigError, match=f"'ring' is given, but {reason}; allowed: "):
        made(strategy, group, "ring")


def test_the_ring_is_for_those_who_want_it(monkeypatch):
    monkeypatch.setattr(choose, "TRANSPORTS", (*choose.TRANSPORTS, "own"))
    monkeypatch.setattr(choose, "ring_of", lambda *_: pytest.fail("a ring is made"))
    for wanted in ("tensorflow", "own"):
        assert isinstance(made(Strategy(), Group(), wanted), TensorFlowTransport)


def test_where_it_cannot_be_made(monkeypatch):
    monkeypatch.setattr(choose, "ring_of", lambda *_: (None, "worker/1 could not connect"))
    assert isinstance(made(Strategy(), Group()), TensorFlowTransport)
    with pytest.raises(ConfigError, match="'ring' is given, but worker/1 could not connect"):
        made(Strategy(), Group(), "ring")


def test_workers_must_want_the_same():
    with pytest.raises(
        ConfigError,
        match=r"Trainer\(transport\): the workers ask for different transports "
        r"\(chief/0 tensorflow, worker/0 tensorflow, worker/1 ring\); give all workers the same",
    ):
        made(Strategy(), Group(others=2), "tensorflow")


def test_the_environment_says_what_auto_is(monkeypatch):
    monkeypatch.setenv("TFDIST_TRANSPORT", "tensorflow")
    assert isinstance(made(Strategy(), Group()), TensorFlowTransport)
    monkeypatch.setenv("TFDIST_TRANSPORT", "pigeon")
    with pytest.raises(ConfigError, match="TFDIST_TRANSPORT: 'pigeon'"):
        made(Strategy(), Group())


class Unshared:
    def share_memory(self):
        return False

    def check_all(self, wanted):
        self.checks = wanted


@pytest.mark.parametrize(
    ("wanted", "speed", "others", "checks"),
    [
        ("auto", 1e8, None, True),
        ("auto", 1e9, None, False),
        ("auto", 1e8, 0, False),  # Another worker does not wait.
        ("auto", 1e9, 2, True),  # Another asks for them.
        ("on", 1e9, None, True),
        ("off", 1e8, None, False),
    ],
)
def test_gradients_have_checksums_where_they_cost_no_time(
    monkeypatch, wanted, speed, others, checks
):
    ring = Unshared()
    group = Group()
    group.exchange = lambda value: [value, value if others is None else others]
    monkeypatch.setattr(choose, "_speed", lambda ring: speed)
    monkeypatch.setenv("TFDIST_CHECKSUM", wanted)
    assert choose._checks_all(ring, group) == checks


def test_checksums_that_are_malformed(monkeypatch):
    monkeypatch.setattr(choose, "ring_of", lambda *_: (Unshared(), ""))
    monkeypatch.setenv("TFDIST_CHECKSUM", "crc")
    with pytest.raises(ConfigError, match="TFDIST_CHECKSUM: 'crc'"):
        made(Strategy(), Group())


def test_a_ring_can_send_after_the_backward_pass(monkeypatch):
    given = []
    monkeypatch.setattr(choose, "ring_of", lambda *_: (Unshared(), ""))
    monkeypatch.setattr(choose, "_speed", lambda ring: 1.0)
    monkeypatch.setattr(choose, "_waiting_is_idle", lambda ring: True)
    monkeypatch.setattr(choose, "RingTransport", lambda ring, **more: given.append(more))
    made(Strategy(), Group())
    with choose.sending_after_backward():
        made(Strategy(), Group())
    made(Strategy(), Group())
    assert [more["overlaps"] for more in given] == [True, False, True]

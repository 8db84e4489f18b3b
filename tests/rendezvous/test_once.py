"""A process meets the others once, whoever asks."""

import pytest

from tfdist.cluster import Cluster
from tfdist.errors import ConfigError
from tfdist.rendezvous import once as meeting
from tfdist.runtime import heartbeat

JOBS = {"worker": ["127.0.0.1:1111", "127.0.0.1:1112"]}


@pytest.fixture
def meetings(monkeypatch):
    held: list[tuple[str, float, str]] = []
    monkeypatch.setattr(
        meeting,
        "rendezvous",
        lambda cluster, timeout, job: held.append((str(cluster.task), timeout, job)),
    )
    monkeypatch.setattr(meeting, "_met", set())
    return held


def test_the_second_to_ask_finds_it_done(meetings):
    cluster = Cluster.from_cluster_spec(JOBS)
    meeting.meet(cluster, 5.0, job="train")
    meeting.meet(cluster)
    assert meetings == [("worker/0", 5.0, "train")]


def test_the_heartbeat_says_so(monkeypatch, tmp_path):
    """A liveness probe must not end a task that waits for others as long as it may."""
    path = str(tmp_path / "heartbeat")
    monkeypatch.setenv("TFDIST_HEARTBEAT", path)
    monkeypatch.setattr(meeting, "_met", set())
    phases = []

    def note(*_: object, **__: object) -> None:
        beat = heartbeat.read(path)
        assert beat is not None
        phases.append(beat.phase)

    monkeypatch.setattr(meeting, "rendezvous", note)
    meeting.meet(Cluster.from_cluster_spec(JOBS))
    note()
    assert phases == ["meeting", "building"]


def test_a_meeting_that_failed_is_held_again(meetings, monkeypatch):
    cluster = Cluster.from_cluster_spec(JOBS)

    def fail(*_: object, **__: object) -> None:
        raise ConfigError("foreign")

    with monkeypatch.context() as patch:
        patch.setattr(meeting, "rendezvous", fail)
        with pytest.raises(ConfigError):
            meeting.meet(cluster)
    meeting.meet(cluster)
    assert len(meetings) == 1

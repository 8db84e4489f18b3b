"""Where the time of steps went, from given spans: parts add up, and the slow task is named."""

from __future__ import annotations

import json

import pytest

from tfdist.cli import main
from tfdist.errors import ConfigError
from tfdist.profiling import timeline
from tfdist.profiling.shares import (
    COMPUTE,
    HOST,
    INPUT,
    UPDATE,
    WIRE,
    kind_of,
    shares,
    slowest,
    text,
)
from tfdist.profiling.trace import NEXT, STEP, Span, Trace, read_all


def span(kind, begin, seconds, thread="tf_Compute/1"):
    return Span(f"model/{kind}", kind, thread, begin, seconds)


def trace(task, spans, steps=((0.0, 1.0), (1.0, 1.0))):
    return Trace(task, spans, [Span(STEP, "", "python", begin, long) for begin, long in steps])


FIRST = trace(
    "worker/0",
    [
        span(NEXT, 0.0, 0.2),
        span("Conv2D", 0.2, 0.5),
        span("MatMul", 0.3, 0.3, "tf_Compute/2"),  # Beside the one before.
        span("PyFunc", 0.6, 0.5),  # A tenth of a second of it during compute.
        span("ResourceApplyKerasMomentum", 1.1, 0.1),
        span("PyFunc", 0.0, 2.0, "tf_data_private_threadpool/7"),  # Of the input, ahead.
        span("StatefulPartitionedCall", 0.0, 2.0),  # Around the others.
    ],
)


@pytest.mark.parametrize(
    ("kind", "part"),
    [
        ("Conv2D", COMPUTE),
        ("_MklNativeConv2DBackpropInput", COMPUTE),
        ("CollectiveReduceV2", WIRE),
        ("_Recv", WIRE),
        ("PyFunc", WIRE),
        ("AssignAddVariableOp", UPDATE),
        ("ResourceApplyAdam", UPDATE),
        (NEXT, INPUT),
        ("PartitionedCall", None),
        ("While", None),
        ("", None),
    ],
)
def test_an_operation_belongs_to_a_part(kind, part):
    assert kind_of(span(kind, 0.0, 1.0)) == part


def test_the_parts_add_up_to_the_steps():
    found = shares(FIRST)
    assert found.steps == 2 and found.seconds == pytest.approx(2.0)
    assert found.parts == pytest.approx(
        {COMPUTE: 0.5, UPDATE: 0.1, WIRE: 0.4, INPUT: 0.2, HOST: 0.8}
    )
    assert sum(found.parts.values()) == pytest.approx(found.seconds)
    assert found.top[0][:2] in (("Conv2D", 1), ("PyFunc", 1))


def test_who_waits_least_on_the_wire_is_slow():
    slow = trace("worker/1", [span("Conv2D", 0.0, 0.9), span("PyFunc", 0.95, 0.05)])
    said = slowest([shares(FIRST), shares(slow)])
    assert said.startswith("worker/1 is slowest: the others wait 175 ms of a step of 1000 ms")
    assert said.endswith("mostly for its compute")
    assert slowest([shares(FIRST)]) == slowest([shares(FIRST), shares(FIRST)]) == ""
    assert "worker/1 is slowest" in text([shares(FIRST), shares(slow)])


def test_the_timeline_has_a_process_a_task(tmp_path):
    path = tmp_path / "timeline.json"
    timeline.write([FIRST, trace("worker/1", [span("Conv2D", 0.5, 0.25)])], path)
    events = json.loads(path.read_text())["traceEvents"]
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert names == {0: "worker/0", 1: "worker/1"}
    (only,) = [e for e in events if e["ph"] == "X" and e["pid"] == 1 and e["cat"] == COMPUTE]
    assert (only["ts"], only["dur"]) == (500_000, 250_000)
    assert len([e for e in events if e["cat" if "cat" in e else "ph"] == "step"]) == 4


def test_a_folder_without_a_profile_is_refused(tmp_path, capsys):
    with pytest.raises(ConfigError, match="has no profile of any task"):
        read_all(tmp_path)
    assert main(["profile", str(tmp_path / "absent")]) == 2
    assert main(["profile", str(tmp_path)]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 2

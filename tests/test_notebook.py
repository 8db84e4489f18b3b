"""What a notebook shows of a plan and of a cluster."""

from __future__ import annotations

from xml.etree import ElementTree

import tfdist


def rows(value: object) -> dict[str, str]:
    """The rows of the table that is shown, which is well-formed."""
    table = ElementTree.fromstring(value._repr_html_())  # type: ignore[attr-defined]
    assert table.tag == "table"
    cells = [[cell.text or "" for cell in row] for row in table]
    return {name: text for name, text in cells}


def test_a_plan() -> None:
    plan = tfdist.scale(
        per_replica_batch=32, num_replicas=4, base_learning_rate=0.1, epochs=2, num_examples=1000
    )
    assert rows(plan)["global batch"] == "128 = 32 x 4 replicas"
    assert list(rows(plan)) == [line.split("  ")[0] for line in str(plan).splitlines()]


def test_a_cluster() -> None:
    spec = {"worker": ["host1:2222", "host2:2222"]}
    assert rows(tfdist.Cluster.from_cluster_spec(spec, task_index=1)) == {
        "source": "cluster_spec",
        "worker/0": "host1:2222",
        "worker/1": "host2:2222, this process",
    }


def test_a_local_cluster() -> None:
    assert list(rows(tfdist.Cluster.local()).values())[-1] == "local, this process"

"""The shipped files are what their first lines print, and nothing refuses them."""

import contextlib
import io
import json
import shlex
from pathlib import Path

import pytest
import yaml

from tfdist.cli import main
from tfdist.cluster import Cluster
from tfdist.strategy.kinds import BY_NAME

from .jobs import KINDS
from .webhooks import refusals

SPECS = Path(__file__).parents[2] / "cluster_specs"
RUNTIME = SPECS / "cluster_training_runtime.yaml"
JOBS = sorted(set(SPECS.glob("*.yaml")) - {RUNTIME})


@pytest.mark.parametrize("path", [*JOBS, RUNTIME], ids=lambda path: path.name)
def test_a_file_is_what_its_first_line_prints(path):
    command = shlex.split(path.read_text().partition("\n")[0])
    assert command[:3] == ["#", "tfdist", "render"]
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert main(command[2:]) == 0
    assert out.getvalue() == path.read_text()


def test_there_is_a_file_for_each_strategy_on_each_kind():
    assert {path.stem for path in JOBS} == {f"{kind}_{name}" for kind in KINDS for name in BY_NAME}


@pytest.mark.parametrize("path", [*JOBS, RUNTIME], ids=lambda path: path.name)
def test_nothing_refuses_a_file(path):
    documents = list(yaml.safe_load_all(path.read_text()))
    assert [fault for document in documents for fault in refusals(document)] == []


@pytest.mark.parametrize("path", sorted(SPECS.glob("*.json")), ids=lambda path: path.name)
def test_plain_spec_is_a_cluster(path):
    spec = json.loads(path.read_text())
    cluster = Cluster.from_cluster_spec(spec["cluster"], task_type="worker", task_index=0)
    assert len(cluster.tasks) == sum(len(tasks) for tasks in spec["cluster"].values())

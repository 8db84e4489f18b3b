"""YAML with comments reads as the documents that it was made of."""

import pytest
import yaml

from tfdist.render.commented import commented
from tfdist.render.kubernetes import KINDS, documents
from tfdist.render.settings import Settings

from .jobs import settings, workload

AWKWARD = ["sh", "-c", "livenessProbe:\n  # no comment\n---\nspec:\n  resources: 1\n", "a: 'b'", ""]


@pytest.mark.parametrize("kind", KINDS)
def test_it_reads_as_the_same(kind):
    values = settings(gang="volcano", env={"A": "on", "B": "1e3", "C": "é\n"}, sharedMemory="1Gi")
    made = documents(kind, workload(command=AWKWARD), values)
    assert list(yaml.safe_load_all(commented(made))) == made


def test_a_comment_is_said_once_in_a_document():
    text = commented(documents("jobset", workload(ps=1), settings(queue="q")))
    lines = [line.strip() for line in text.splitlines() if line.strip().startswith("#")]
    assert len(lines) == len(set(lines)) > 5
    at = text.splitlines()
    (above,) = [i for i, line in enumerate(at) if line.strip().startswith("# Kueue starts")]
    assert at[above + 1].strip() == "kueue.x-k8s.io/queue-name: q"


def test_there_are_no_anchors():
    patch = {"spec": {"hostAliases": [{"ip": "1.2.3.4", "hostnames": ["a"]}]}}
    text = commented(documents("tfjob", workload(ps=1), Settings(patches={"p": patch})))
    assert "&id" not in text and text.count("hostAliases") == 3

from __future__ import annotations

import json

import pytest

from tfdist.errors import ConfigError
from tfdist.scaling.measured_link import read_link
from tfdist.scaling.network import Link


def test_a_transports_link_is_read(tmp_path):
    path = tmp_path / "network.json"
    links = {"ring": {"latency": 1e-5, "bandwidth": 2e9, "workers": 2}}
    path.write_text(json.dumps({"links": links}))
    assert read_link(str(path), "ring") == Link(1e-5, 2e9)
    with pytest.raises(ConfigError, match="it has no transport 'x'; it has ring"):
        read_link(str(path), "x")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "is not JSON"),
        ("[1]", "has no 'links'"),
        ('{"links": []}', "has no 'links'"),
        ('{"links": {"ring": {"latency": 1e-5}}}', "bandwidth: None is given"),
        ('{"links": {"ring": {"latency": -1, "bandwidth": 1}}}', "latency: -1 is given"),
    ],
)
def test_another_file_is_refused_in_one_line(tmp_path, text, problem):
    path = tmp_path / "network.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=problem) as caught:
        read_link(str(path), "ring")
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_named():
    with pytest.raises(ConfigError, match="'/none' cannot be read"):
        read_link("/none", "ring")

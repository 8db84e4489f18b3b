"""The α–β model, the fit that finds α and β again, and the file that keeps them."""

from __future__ import annotations

import json
import random

import pytest

from tfdist.errors import ConfigError
from tfdist.scaling.network import (
    LINKS,
    Link,
    fit_link,
    read_link,
    ring_bytes,
    ring_seconds,
    server_bytes,
    server_seconds,
    worst_error,
)

LINK = Link(latency=1e-3, bandwidth=1e6)
SIZES = [4**power for power in range(5, 15)]


def test_a_ring_takes_two_rounds_of_steps():
    # Three steps to sum and three to spread, of 1 ms and a quarter of the array.
    assert ring_seconds(4e6, 4, LINK) == pytest.approx(6 * 1e-3 + 6.0)
    assert ring_bytes(4e6, 4) == 6e6
    assert ring_seconds(4e6, 1, LINK) == 0


def test_each_message_has_its_latency():
    assert ring_seconds(4e6, 4, LINK, messages=5) == pytest.approx(30e-3 + 6.0)


def test_a_server_sends_to_all_workers():
    assert server_bytes(1e6, 8, 1) == 8e6
    assert server_seconds(1e6, 8, 1, LINK) == pytest.approx(2 * (1e-3 + 8.0))
    assert server_seconds(1e6, 8, 4, LINK) == pytest.approx(2 * (1e-3 + 2.0))
    # With many servers a worker's own link is the busiest.
    assert server_seconds(1e6, 8, 99, LINK) == pytest.approx(2 * (1e-3 + 1.0))


@pytest.mark.parametrize("workers", [2, 3, 16])
def test_a_link_is_found_again(workers):
    link = Link(42e-6, 2.5e9)
    found = fit_link([(s, ring_seconds(s, workers, link)) for s in SIZES], workers)
    assert found.latency == pytest.approx(link.latency)
    assert found.bandwidth == pytest.approx(link.bandwidth)


def test_noise_moves_it_a_little():
    noise = random.Random(0)
    link = Link(42e-6, 2.5e9)
    points = [(s, ring_seconds(s, 2, link) * noise.uniform(0.95, 1.05)) for s in SIZES]
    found = fit_link(points, 2)
    assert found.latency == pytest.approx(link.latency, rel=0.1)
    assert found.bandwidth == pytest.approx(link.bandwidth, rel=0.1)
    assert 0 < worst_error(points, 2, found) < 0.1


def test_a_latency_is_never_below_zero():
    points = [(s, s / 1e9 * (0.5 if s < 1e5 else 1.0)) for s in SIZES]
    assert fit_link(points, 2).latency == 0


@pytest.mark.parametrize("points", [[], [(1024, 1e-3)], [(1024, 1e-3), (1024, 2e-3)]])
def test_one_size_gives_no_link(points):
    with pytest.raises(ConfigError, match="measure several sizes"):
        fit_link(points, 2)


def test_named_links_are_in_seconds_and_bytes():
    assert LINKS["10gbe"].bandwidth * 8 == 10e9
    assert LINKS["100gb_infiniband"].bandwidth * 8 == 100e9
    assert all(0 < link.latency < 1e-4 for link in LINKS.values())


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

"""Predicted steps, and what papers have measured.

The model leaves out stragglers, input and contention, and knows nothing of how much of the
communication these systems hid: what they measured is to lie between all sent after the backward
pass and all that can be hidden behind it.
"""

from __future__ import annotations

import pytest

from tfdist.collectives.transport_names import BUCKET_BYTES
from tfdist.scaling.network import LINKS, Link
from tfdist.scaling.prediction import Model, powers_of_two

LINK = Link(1e-3, 1e6)


def test_a_step_is_computation_and_the_ring():
    model = Model(compute_seconds=2.0, wire_bytes=1e6, link=LINK)
    step = model.step(4, batch=10, examples=1000)
    assert step.communication == step.exposed == pytest.approx(6e-3 + 1.5)
    assert step.seconds == pytest.approx(3.506)
    assert step.efficiency == pytest.approx(2 / 3.506)
    assert step.epoch_seconds == pytest.approx(25 * 3.506)


def test_one_worker_does_not_communicate():
    for overlap in (False, True):
        model = Model(compute_seconds=2.0, wire_bytes=1e6, link=LINK, overlap=overlap)
        assert model.step(1).efficiency == 1.0


def test_two_thirds_of_a_step_can_hide_all_but_the_last_bucket():
    size = 10 * BUCKET_BYTES
    fast = Model(compute_seconds=3.0, wire_bytes=size, link=Link(0, size), overlap=True)
    step = fast.step(2)
    assert step.communication == pytest.approx(1.0)
    assert step.exposed == pytest.approx(0.1)
    slow = Model(compute_seconds=3.0, wire_bytes=size, link=Link(0, size / 5), overlap=True)
    assert slow.step(2).exposed == pytest.approx(5.0 - 2.0)


def test_each_bucket_has_its_latency():
    model = Model(compute_seconds=0.0, wire_bytes=3 * BUCKET_BYTES, link=LINK, overlap=True)
    alone = Model(compute_seconds=0.0, wire_bytes=3 * BUCKET_BYTES, link=LINK)
    assert model.step(2).communication - alone.step(2).communication == pytest.approx(4e-3)


def test_servers_take_longer_with_each_worker_and_a_ring_does_not():
    ring = Model(compute_seconds=1.0, wire_bytes=1e8, link=LINKS["10gbe"])
    servers = Model(compute_seconds=1.0, wire_bytes=1e8, link=LINKS["10gbe"], servers=1)
    assert servers.step(64).communication == pytest.approx(8 * servers.step(8).communication, 0.01)
    assert ring.step(64).communication < 1.2 * ring.step(8).communication


def test_an_epoch_ends_with_a_partial_batch():
    model = Model(compute_seconds=1.0, wire_bytes=1, link=Link(0, 1e9))
    assert model.step(2, batch=10, examples=41).epoch_seconds == pytest.approx(3.0)


def test_powers_of_two():
    assert powers_of_two(4096)[-1] == 4096
    assert powers_of_two(7) == [1, 2, 4]


def test_goyal_et_al_2017():
    """ResNet-50, 32 images a GPU (arXiv:1706.02677): 29 hours on 8 GPUs, 1 hour on 256.

    At 90 epochs of 1.28 M images, that is 0.232 s a step on 8 GPUs of one server, which are joined
    by NVLink, and 0.256 s on 256: 90 %. Between servers: 50 Gbit/s Ethernet, taken with 10 µs.
    """
    steps = 90 * 1_281_167 / (8 * 32)
    compute = 29 * 3600 / steps
    measured = compute / (3600 / (90 * 1_281_167 / (256 * 32)))
    assert measured == pytest.approx(0.90, abs=0.01)
    model = {"compute_seconds": compute, "wire_bytes": 4 * 25.6e6, "link": Link(10e-6, 50e9 / 8)}
    after = Model(**model).step(256).efficiency
    behind = Model(**model, overlap=True).step(256).efficiency
    assert after == pytest.approx(0.86, abs=0.01)
    assert after < measured < behind


def test_horovod_2018():
    """ResNet-101, 64 images a GPU (arXiv:1802.05799 and Horovod's page of benchmarks).

    103.6 images/s a GPU with 16 GPUs, and 90 % at 512, on servers of 4 GPUs with 25 Gbit/s RoCE,
    taken with 10 µs. 16 GPUs hid most of what they sent, or the GPUs would have been faster.
    """
    compute = 64 / (1656.82 / 16)
    model = {"compute_seconds": compute, "wire_bytes": 4 * 44.6e6, "link": Link(10e-6, 25e9 / 8)}
    after = Model(**model).step(512).efficiency
    behind = Model(**model, overlap=True).step(512).efficiency
    assert after == pytest.approx(0.83, abs=0.01)
    assert after < 0.90 < behind

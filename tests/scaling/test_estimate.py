from __future__ import annotations

import dataclasses
import json

import pytest

from tfdist.scaling.cost import Device, replica_memory
from tfdist.scaling.estimate import Estimate
from tfdist.scaling.network import Link
from tfdist.scaling.prediction import Model
from tfdist.scaling.quantities import duration, si

RESNET152 = Estimate(
    name="ResNet-152",
    multiply_adds=11.4e9,
    parameters=60e6,
    trainable=60e6,
    input_bytes=602_112,
    batch=32,
    wire_bytes=240e6,
    memory=replica_memory(60e6),
    images=1.2e6,
    epochs=128,
    device=Device(41.58, 0.33),
    price=2.0,
    prediction=Model(compute_seconds=0.2, wire_bytes=240e6, link=Link(1e-5, 12.5e9)),
    workers=(1, 8),
)


def rows(text: str) -> str:
    return " ".join(text.split())


def test_the_table_has_the_worked_example():
    text = rows(str(RESNET152))
    assert "68.4 GFLOP an image" in text
    assert "82.08 PFLOP an epoch of 1,200,000 images" in text
    assert "10.51 EFLOP in 128 epochs: 0.122 PFLOP/s-days" in text
    assert "113.6 kFLOP a byte, of 602,112 an image" in text
    assert "41.58 TFLOP/s at 33 %: 13.72 TFLOP/s, 1.186 EFLOP a day" in text
    assert "8.86 days on one device, price 425.38" in text


def test_what_is_not_known_is_left_out():
    short = dataclasses.replace(
        RESNET152, images=None, epochs=None, device=None, price=None, prediction=None
    )
    text = str(short)
    for word in ("epoch", "device", "price", "predicted"):
        assert word not in text
    assert short.to_dict()["steps"] == [] and short.flop is None


def test_json_has_numbers_in_plain_units():
    found = json.loads(json.dumps(RESNET152.to_dict()))
    assert found["flop"] == pytest.approx(1.050624e19)
    assert found["device_seconds"] == pytest.approx(found["flop"] / 41.58e12 / 0.33)
    one, eight = found["steps"]
    assert (one["bytes_sent"], eight["bytes_sent"]) == (0, pytest.approx(420e6))
    # Eight workers cost what eight would, in the time that they take.
    hours = 8 * 128 * eight["epoch_seconds"] / 3600
    assert eight["price"] == pytest.approx(2.0 * hours)
    assert eight["efficiency"] == pytest.approx(0.2 / eight["seconds"])


def test_quantities():
    assert si(999.96, "B") == "1 kB" and si(0, "B") == "0 B" and si(1e30, "B").endswith("YB")
    assert duration(3e-6) == "3 µs" and duration(86_400 * 800) == "2.19 years"
    assert duration(3599) == "60 min" and duration(5.25) == "5.25 s"

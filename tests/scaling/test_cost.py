"""The worked examples of Amodei and Hernandez, "AI and Compute" (2018), and their units."""

from __future__ import annotations

import pytest

from tfdist.scaling import cost
from tfdist.scaling.cost import Device

RESNET152 = 11.4e9
IMAGE_BYTES = 224 * 224 * 3 * 4


def test_resnet152_on_imagenet():
    flop = cost.training_flop(RESNET152, images=1.2e6, epochs=128)
    assert flop == pytest.approx(11.4e9 * 2 * 3 * 1.2e6 * 128)
    assert f"{flop / 1e18:.1f}" == "10.5"
    assert f"{cost.pflop_per_second_days(flop):.2f}" == "0.12"


def test_operations_a_byte_are_those_of_training_on_float32_images():
    assert round(cost.flop_per_byte(RESNET152, IMAGE_BYTES) / 1e3) == 114
    # Of 8-bit pixels, or of a forward pass, it would be another number.
    assert cost.flop_per_byte(RESNET152, 224 * 224 * 3) == pytest.approx(454e3, rel=0.01)


def test_two_devices_deliver_for_a_day():
    device = Device(41.58, 0.33)
    assert device.flop_per_second == pytest.approx(13.72e12, rel=1e-3)
    assert f"{device.delivered(86_400, count=2) / 1e18:.2f}" == "2.37"


def test_a_forward_pass_is_a_third():
    assert 3 * cost.forward_flop(5.0) == cost.training_flop(5.0) == 30.0


def test_price_is_by_the_hour():
    assert cost.price(7200, 1.5) == 3.0

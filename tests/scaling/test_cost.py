"""The worked examples of Amodei and Hernandez, "AI and Compute" (2018), their units, and memory."""

from __future__ import annotations

import pytest

from tfdist.scaling import cost
from tfdist.scaling.cost import PRECISIONS, SLOTS, Device, replica_memory

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


def test_momentum_in_float32_is_three_times_the_weights():
    memory = replica_memory(1000, activations=10, batch=4)
    assert (memory.weights, memory.gradients, memory.optimizer) == (4000, 4000, 4000)
    assert (memory.cast_weights, memory.activations) == (0, 160)
    assert memory.total == 12_160


def test_mixed_precision_halves_activations_and_adds_a_copy_of_the_weights():
    plain = replica_memory(1000, activations=10_000)
    mixed = replica_memory(1000, activations=10_000, precision="mixed_bfloat16")
    assert plain.total - mixed.total == 20_000 - 2000


def test_sharded_updates_divide_what_the_optimizer_keeps_and_nothing_else():
    whole, parts = (replica_memory(1000, optimizer="adam", shards=n) for n in (1, 8))
    assert (whole.optimizer, parts.optimizer) == (8000, 1000)
    assert whole.total - parts.total == 7000


def test_what_is_not_trained_has_no_gradient():
    memory = replica_memory(1000, trainable=100, optimizer="adam")
    assert (memory.weights, memory.gradients, memory.optimizer) == (4000, 400, 800)


@pytest.mark.parametrize("optimizer", SLOTS)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_each_choice_has_a_total(optimizer, precision):
    assert replica_memory(10, optimizer=optimizer, precision=precision).total > 0

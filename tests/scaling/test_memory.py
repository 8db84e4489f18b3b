from __future__ import annotations

import pytest

from tfdist.scaling.memory import PRECISIONS, SLOTS, replica_memory


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

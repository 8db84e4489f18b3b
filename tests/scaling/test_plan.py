"""The arithmetic, held against the paper it comes from."""

import dataclasses
import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfdist.errors import ConfigError
from tfdist.scaling.plan import Plan
from tfdist.scaling.scale import scale

IMAGENET = 1_281_167


def goyal(**changes):
    settings = {
        "per_replica_batch": 32,
        "num_replicas": 256,
        "base_learning_rate": 0.1,
        "decay": "step",
        "epochs": 90,
        "num_examples": IMAGENET,
    }
    return scale(**settings | changes)


def test_goyal_batch_and_peak():
    plan = goyal()
    assert plan.global_batch == plan.update_batch == 8192
    assert plan.peak_learning_rate == pytest.approx(3.2)
    assert plan.steps_per_epoch == 157
    assert plan.warmup_steps == 5 * 157
    assert plan.total_steps == 90 * 157


@pytest.mark.parametrize(
    ("epoch", "rate"),
    [
        (0, 0.1),
        (1, 0.1 + 3.1 / 5),
        (2.5, 0.1 + 3.1 / 2),
        (5, 3.2),
        (29.99, 3.2),
        (30, 0.32),
        (59.99, 0.32),
        (60, 0.032),
        (80, 0.0032),
        (89.99, 0.0032),
    ],
)
def test_goyal_rates(epoch, rate):
    plan = goyal(num_examples=None, steps_per_epoch=200)
    assert plan.learning_rate(int(epoch * 200)) == pytest.approx(rate, rel=1e-12)


def test_warmup_moves_every_step():
    plan = goyal()
    rates = [plan.learning_rate(step) for step in range(plan.warmup_steps + 1)]
    steps = np.diff(rates)
    np.testing.assert_allclose(steps, 3.1 / plan.warmup_steps, rtol=1e-9)


def test_boundaries_change_on_their_step():
    plan = goyal()
    for boundary in plan.boundary_steps:
        before, after = plan.learning_rate(boundary - 1), plan.learning_rate(boundary)
        assert after == pytest.approx(before / 10)


def test_steps_per_epoch_with_and_without_the_ragged_batch():
    assert goyal(drop_remainder=True).steps_per_epoch == 156
    assert goyal(drop_remainder=False).steps_per_epoch == 157


def test_rules():
    for rule, peak in [("linear", 3.2), ("sqrt", 0.1 * math.sqrt(32)), ("none", 0.1)]:
        assert goyal(rule=rule).peak_learning_rate == pytest.approx(peak)


def test_small_batch_warms_up_from_zero():
    plan = scale(per_replica_batch=32, num_replicas=2, base_learning_rate=0.04, steps_per_epoch=23)
    assert plan.peak_learning_rate == pytest.approx(0.01)
    assert plan.learning_rate(0) == 0.0
    assert plan.learning_rate(5 * 23) == pytest.approx(0.01)


def test_cosine():
    plan = goyal(decay="cosine", epochs=100, steps_per_epoch=10, num_examples=None)
    assert plan.learning_rate(50) == pytest.approx(3.2)
    assert plan.learning_rate(50 + 950 // 2) == pytest.approx(1.6)
    assert plan.learning_rate(1000) == pytest.approx(0.0, abs=1e-15)
    assert plan.learning_rate(5000) == plan.learning_rate(1000)
    warm = goyal(
        decay="cosine", epochs=100, steps_per_epoch=10, num_examples=None, final_fraction=0.1
    )
    assert warm.learning_rate(1000) == pytest.approx(0.32)


def test_accumulation_scales_the_rate_and_counts_updates():
    plain = goyal(num_replicas=64, accumulate_steps=4)
    assert plain.global_batch == 2048
    assert plain.update_batch == 8192
    assert plain.peak_learning_rate == pytest.approx(3.2)
    assert plain.batches_per_epoch == 626
    assert plain.steps_per_epoch == 157


def test_unknown_length_gives_the_peak_and_names_what_is_missing():
    plan = scale(per_replica_batch=64, num_replicas=8, base_learning_rate=0.1)
    assert plan.peak_learning_rate == pytest.approx(0.2)
    assert plan.total_steps is None
    assert "0.2" in str(plan)
    with pytest.raises(ConfigError, match=r"^scale\(num_examples\): missing"):
        plan.learning_rate(0)
    constant = dataclasses.replace(plan, warmup_epochs=0)
    assert constant.learning_rate(7) == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("per_replica_batch", -3),
        ("per_replica_batch", 0),
        ("per_replica_batch", 2.5),
        ("per_replica_batch", True),
        ("num_replicas", "8"),
        ("base_batch", None),
        ("accumulate_steps", 0),
        ("base_learning_rate", 0),
        ("base_learning_rate", float("nan")),
        ("base_learning_rate", "0.1"),
        ("warmup_epochs", -1),
        ("warmup_start", -0.1),
        ("epochs", 0),
        ("epochs", float("inf")),
        ("num_examples", 0),
        ("rule", "cubic"),
        ("decay", "linear"),
        ("boundaries", [60, 30]),
        ("boundaries", []),
        ("boundaries", [3, 30]),
        ("decay_factor", 0),
        ("final_fraction", 1.5),
        ("steps_per_epoch", 10),
    ],
)
def test_bad_arguments_are_named_in_one_line(argument, value):
    with pytest.raises(ConfigError) as caught:
        goyal(**{argument: value})
    assert str(caught.value).startswith(f"scale({argument}): ")
    assert "\n" not in str(caught.value)


def test_arguments_that_contradict():
    with pytest.raises(ConfigError, match=r"scale\(warmup_epochs\): 5 leaves nothing of 5"):
        goyal(decay="cosine", epochs=5)
    with pytest.raises(ConfigError, match=r"scale\(epochs\): missing"):
        goyal(decay="cosine", epochs=None)
    with pytest.raises(ConfigError, match=r"scale\(boundaries\): given with decay='constant'"):
        goyal(decay="constant", boundaries=[30])
    with pytest.raises(ConfigError, match=r"scale\(num_examples\): 100 do not fill"):
        goyal(num_examples=100, drop_remainder=True)


def test_message_in_full():
    with pytest.raises(ConfigError) as caught:
        goyal(per_replica_batch=-3)
    assert (
        str(caught.value)
        == "scale(per_replica_batch): -3 is given; allowed: a whole number of 1 or more"
    )


def test_table():
    assert str(goyal()) == (
        "global batch     8,192 = 32 x 256 replicas\n"
        "learning rate    3.2 = 0.1 for 256, linear\n"
        "warmup           5 epochs (785 steps) from 0.1\n"
        "then             x0.1 at epochs 30, 60, 80\n"
        "steps per epoch  157\n"
        "epochs           90 (14,130 steps)"
    )


def test_saved_and_read_back():
    plan = goyal()
    saved = json.loads(plan.to_json())
    assert saved["global_batch"] == 8192
    assert Plan.from_dict(saved) == plan
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan.epochs = 1


def test_what_another_number_of_replicas_changes_is_said():
    plan = goyal()
    assert plan.changes_since(plan) == []
    half = goyal(num_replicas=128)
    assert half.changes_since(plan)[:2] == [
        "global batch: 8,192 = 32 x 256 replicas before, 4,096 = 32 x 128 replicas now",
        "learning rate: 3.2 = 0.1 for 256, linear before, 1.6 = 0.1 for 256, linear now",
    ]
    (change,) = goyal(warmup_epochs=0, boundaries=(30, 60, 80)).changes_since(plan)
    assert change == "warmup: 5 epochs (785 steps) from 0.1 before, none now"


@settings(max_examples=60, deadline=None)
@given(
    batch=st.integers(1, 512),
    replicas=st.integers(1, 512),
    warmup=st.floats(0, 10),
    decay=st.sampled_from(["constant", "step", "cosine"]),
    steps=st.integers(1, 500),
    data=st.data(),
)
def test_rate_stays_between_its_ends(batch, replicas, warmup, decay, steps, data):
    plan = scale(
        per_replica_batch=batch,
        num_replicas=replicas,
        base_learning_rate=0.1,
        warmup_epochs=warmup,
        decay=decay,
        epochs=90,
        steps_per_epoch=steps,
    )
    step = data.draw(st.integers(0, 2 * plan.total_steps))
    top = max(plan.peak_learning_rate, plan.warmup_start)
    assert 0 <= plan.learning_rate(step) <= top * (1 + 1e-9)
    assert plan.learning_rate(plan.warmup_steps) == pytest.approx(plan.peak_learning_rate)

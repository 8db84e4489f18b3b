"""Keras' rates equal the plan's, and survive a file that plain Keras reads."""

import subprocess
import sys

import numpy as np
import pytest

from tfdist.scaling.scale import scale

CASES = [
    {"decay": decay, "warmup_epochs": warmup}
    for decay in ("constant", "step", "cosine")
    for warmup in (0, 5)
]


def plan_of(**changes):
    arguments = {
        "per_replica_batch": 32,
        "num_replicas": 256,
        "base_learning_rate": 0.1,
        "epochs": 90,
        "steps_per_epoch": 20,
    }
    return scale(**arguments | changes)


def probes(plan):
    edges = [0, plan.warmup_steps, plan.total_steps, *plan.boundary_steps]
    near = {max(0, step + offset) for step in edges for offset in (-1, 0, 1)}
    return sorted(near | set(range(0, plan.total_steps, 37)))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_rates_equal_the_plan(case):
    from keras import ops

    plan = plan_of(**case)
    schedule = plan.schedule()
    steps = probes(plan)
    got = [float(schedule(ops.convert_to_tensor(step, "int64"))) for step in steps]
    want = [plan.learning_rate(step) for step in steps]
    np.testing.assert_allclose(got, want, rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_saved_form_is_keras_own(case):
    import keras
    from keras import ops

    plan = plan_of(**case)
    saved = keras.optimizers.schedules.serialize(plan.schedule())
    assert saved["module"] == "keras.optimizers.schedules"
    assert saved["registered_name"] is None
    again = keras.optimizers.schedules.deserialize(saved)
    assert type(again).__module__.startswith("keras.")
    steps = probes(plan)[::3]
    got = [float(again(ops.convert_to_tensor(step, "int64"))) for step in steps]
    np.testing.assert_allclose(
        got, [plan.learning_rate(step) for step in steps], rtol=2e-6, atol=1e-7
    )


def test_a_long_warmup_is_saved_in_few_pieces():
    plan = plan_of(decay="step", steps_per_epoch=5000)
    config = plan.schedule().get_config()
    assert len(config["values"]) == len(config["boundaries"]) + 1 <= 510
    assert config["boundaries"] == sorted(set(config["boundaries"]))
    levels = dict(zip(config["boundaries"], config["values"], strict=False))
    for last_step, rate in levels.items():
        assert rate == pytest.approx(plan.learning_rate(last_step - 20), abs=0.01)


def test_decay_right_after_warmup():
    plan = plan_of(decay="step", boundaries=[5, 10])
    config = plan.schedule().get_config()
    assert config["boundaries"] == [*range(100), 199]
    assert config["values"][-2:] == pytest.approx([0.32, 0.032])


def test_model_loads_without_tfdist(tmp_path):
    import keras

    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    optimizer = keras.optimizers.SGD(plan_of(decay="step").schedule(), momentum=0.9)
    model.compile(optimizer, "mse")
    data = np.ones((4, 2), "float32"), np.ones((4, 1), "float32")
    model.fit(*data, epochs=3, batch_size=4, verbose=0)
    model.save(tmp_path / "model.keras")
    program = f"""
import sys
sys.modules["tfdist"] = None
import keras, numpy as np
model = keras.models.load_model({str(tmp_path / "model.keras")!r})
model.fit(np.ones((4, 2), "float32"), np.ones((4, 1), "float32"), verbose=0)
print(int(model.optimizer.iterations), float(model.optimizer.learning_rate))
"""
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    steps, rate = result.stdout.split()[-2:]
    assert int(steps) == 4
    assert float(rate) == pytest.approx(plan_of(decay="step").learning_rate(4), rel=1e-5)

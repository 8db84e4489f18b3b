"""Every feature under every strategy gives what plain Keras gives on one device.

Bit for bit on one device: the same operations run in the same order. Under the strategies of
two replicas a sum over examples is made of two partial sums, so float32 rounding differs in the
last places (1e-5 of the largest value allowed after a dozen steps; half precision has its own
tolerance in the table). ParameterServerStrategy hands out one batch at a time here, so its steps
are those of one device too; what holds when workers overlap is in `test_parameter_server.py`.
"""

from __future__ import annotations

import os

import pytest

from tests.training.conformance.cell import read_cell
from tests.training.conformance.compare import differences
from tests.training.conformance.features import FEATURES
from tests.training.conformance.launch import JOBS
from tests.training.conformance.plan import reference
from tests.training.conformance.setting import STRATEGIES

pytestmark = pytest.mark.conformance

FULL = os.environ.get("TFDIST_CONFORMANCE") == "full"
PLACES = [
    pytest.param(strategy, marks=pytest.mark.cluster if strategy in JOBS else ())
    for strategy in STRATEGIES
]


# The strategies of two replicas share all but transport and where variables lie, and Keras' own
# suite goes through one device: a part of the features is run under one of them here, and each
# under all of them in `make conformance`.
IN_TURN = (
    *("mirrored", "", "", "", "", "", "multi_worker_mirrored", "", "", "", "", "", ""),
    *("mirrored", "", "", "", "", "", "central_storage", "", "", "", "parameter_server", "", ""),
)


def _is_selected(feature: str, strategy: str) -> bool:
    if FULL or (feature == "files" and strategy in ("mirrored", "multi_worker_mirrored")):
        return True
    return strategy == IN_TURN[list(FEATURES).index(feature) % len(IN_TURN)]


CELLS = [
    pytest.param(place.values[0], feature, marks=place.marks)
    for place in PLACES
    for feature in FEATURES
    if _is_selected(feature, place.values[0])
]


@pytest.mark.parametrize(("strategy", "feature"), CELLS)
def test_feature(runs, feature, strategy):
    cell = FEATURES[feature]
    values, error = read(runs, ("tfdist", strategy), feature)
    if strategy in cell.refused:
        assert error is not None, f"{strategy} accepted {cell.title}"
        assert error["type"] == "ConfigError", error["traceback"]
        assert cell.refused[strategy] in error["message"]
        assert not values
        return
    assert error is None, error["traceback"]
    expected, problem = read(runs, reference(cell, strategy), feature)
    assert problem is None, problem["traceback"]
    allowed = cell.one_device if strategy == "one_device" else cell.tolerance
    far = {
        name: apart
        for name, apart in differences(expected, values, cell.only or None).items()
        if apart > allowed
    }
    assert not far
    if strategy == "multi_worker_mirrored":
        other, error = read(runs, ("tfdist", strategy), feature, worker=1)
        assert error is None, error["traceback"]
        same = [name for name in values if name in other]  # the chief alone has files to report
        assert not {
            name: apart
            for name, apart in differences(values, other).items()
            if name in same and apart
        }


def read(runs, key, feature, worker=0):
    try:
        return read_cell(runs.folder(*key, worker) / feature)
    except FileNotFoundError:
        pytest.fail(f"{feature} did not finish\n{runs.report(*key)}")


@pytest.mark.parametrize("feature", ["files"])
@pytest.mark.parametrize(
    "strategy", [place for place in PLACES if _is_selected("files", place.values[0])]
)
def test_files_load_in_a_plain_process(runs, feature, strategy):
    import keras
    import tensorflow as tf

    from tests.training.conformance.setting import CLASSES, WIDTH, inputs

    values, _ = read(runs, ("tfdist", strategy), feature)
    folder = runs.folder("tfdist", strategy) / feature
    x = inputs(17, seed=5)
    expected = pytest.approx(values["predict/0"], abs=1e-5)
    saved = keras.models.load_model(folder / "model.keras")
    assert saved.predict(x, verbose=0) == expected
    assert int(saved.optimizer.iterations) == 4  # two epochs of two batches
    exported = tf.saved_model.load(str(folder / "exported"))
    assert exported.serve(x).numpy() == expected
    again = keras.Sequential(
        [
            keras.Input((WIDTH,)),
            keras.layers.Dense(8, activation="relu"),
            keras.layers.BatchNormalization(),
            keras.layers.Dense(CLASSES),
        ]
    )
    again.load_weights(folder / "model.weights.h5")
    assert again.predict(x, verbose=0) == expected

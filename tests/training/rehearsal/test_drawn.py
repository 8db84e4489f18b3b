"""Whatever program is drawn: two replicas give the numbers of plain Keras, or tfdist warns of it.

`make fuzz` draws many (TFDIST_FUZZ=N); `make test` a few, always the same.
"""

from __future__ import annotations

import logging

import numpy as np
import pytest
from hypothesis import example, given, note

import tfdist
from tests.drawn import drawn
from tests.training.rehearsal.programs import BATCH, Program, programs
from tfdist.errors import ConfigError
from tfdist.runtime.log import LOGGER

pytestmark = pytest.mark.filterwarnings("ignore")  # Keras warns of a softmax over the rows.
# Of the largest value: a few roundings of float32.
TOLERANCE = 1e-4


def numbers(fit, model, program):
    x, y = program.data()
    history = fit(x, y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0).history
    return {**history, **{w.path: w.numpy() for w in model.weights}}


def plain(program):
    model = program.made()
    return numbers(model.fit, model, program)


def on_two(program, devices, **options):
    """Returns the numbers of two replicas, and what was warned of; None where it is refused."""
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    LOGGER.addHandler(handler)
    try:
        with tfdist.mirrored_strategy(devices[:2]).scope():
            model = program.made()
        return numbers(tfdist.Trainer(model, **options).fit, model, program), said
    except ConfigError:
        return None, said
    finally:
        LOGGER.removeHandler(handler)


def differences(expected, found):
    return [
        f"{name}: {found[name]} for {value}"
        for name, value in expected.items()
        if not np.allclose(
            found[name], value, rtol=0, atol=TOLERANCE * max(1.0, float(np.abs(value).max()))
        )
    ]


@drawn
@given(program=programs())
@example(program=Program(layers=("add_loss sum",)))
@example(program=Program(own="step", of_rows="sum", log="count"))
@example(program=Program(loss="cox"))
def test_equal_or_warned_of(devices, program):
    note(str(program))
    expected = plain(program)
    if not all(np.all(np.isfinite(value)) for value in expected.values()):
        return
    found, said = on_two(program, devices)
    if found is None:
        return
    apart = differences({n: v for n, v in expected.items() if n in found}, found)
    assert bool(said) >= bool(apart), f"{program} is silent: {apart}"

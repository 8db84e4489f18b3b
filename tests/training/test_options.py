"""An argument of Trainer that is out of range is refused in one line, which names it."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from tfdist.errors import ConfigError
from tfdist.training.options import TrainerOptions

DEFAULTS = {
    "checkpoint_dir": None,
    "checkpoint_steps": None,
    "checkpoint_seconds": None,
    "keep_checkpoints": 3,
    "accumulate_steps": 1,
    "steps_per_call": "auto",
    "wire_dtype": "auto",
    "bytes_per_pack": "auto",
    "transport": "auto",
}


def options(**given):
    return TrainerOptions(**(DEFAULTS | given))


WHOLE = [0, -1, 1.5, "many", True, math.inf]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(
            (name, value)
            for name in ("keep_checkpoints", "accumulate_steps", "steps_per_call", "bytes_per_pack")
            for value in (*WHOLE, None)
        ),
        *(("checkpoint_steps", value) for value in WHOLE),
        *(("checkpoint_seconds", value) for value in (0, -0.5, math.nan, math.inf, "1", True)),
        *((name, v) for name in ("wire_dtype", "transport") for v in ("int8", None, 16, "")),
    ],
    ids=repr,
)
def test_what_is_out_of_range_is_named_in_one_line(name, value):
    with pytest.raises(ConfigError) as error:
        options(checkpoint_dir="somewhere", **{name: value})
    message = str(error.value)
    assert message.startswith(f"Trainer({name}): {value!r} is given; allowed: ")
    assert "\n" not in message


@pytest.mark.parametrize("name", ["checkpoint_steps", "checkpoint_seconds"])
def test_how_often_to_save_needs_a_place_to_save_to(name):
    with pytest.raises(ConfigError, match=r"^Trainer\(checkpoint_dir\): none is given.*give both$"):
        options(**{name: 1})
    assert getattr(options(checkpoint_dir=Path("here"), **{name: 1}), name) == 1


def test_whole_numbers_of_numpy_and_small_fractions_of_seconds_are_allowed():
    made = options(
        checkpoint_dir="here",
        checkpoint_steps=np.int64(5),
        checkpoint_seconds=1e-3,
        bytes_per_pack=np.int32(4096),
        accumulate_steps=np.uint8(2),
        steps_per_call=np.int16(7),
    )
    assert made.of_loops("").bytes_per_pack == 4096
    assert made.most_steps_a_call(compiled=1) == 7


def test_auto_is_what_the_strategy_and_the_model_have():
    made = options()
    loops = made.of_loops("/run/fed")
    assert (loops.accumulate_steps, loops.wire_dtype, loops.transport) == (1, "auto", "auto")
    assert (loops.bytes_per_pack, loops.fed_path) == (0, "/run/fed")
    assert made.most_steps_a_call(compiled=9) == made.fixed_steps_a_call(compiled=9) == 9


def test_what_is_given_is_handed_on():
    made = options(accumulate_steps=4, steps_per_call=3, bytes_per_pack=64)
    loops = made.of_loops("")
    assert (loops.accumulate_steps, loops.bytes_per_pack, loops.fed_path) == (4, 64, "")
    assert (made.most_steps_a_call(compiled=9), made.fixed_steps_a_call(compiled=9)) == (3, 1)
    made = options(wire_dtype="bfloat16", transport="tensorflow").of_loops("")
    assert (made.wire_dtype, made.transport) == ("bfloat16", "tensorflow")


def test_options_are_by_name_and_do_not_change():
    with pytest.raises(TypeError):
        TrainerOptions(*DEFAULTS.values())
    with pytest.raises(AttributeError):
        options().accumulate_steps = 2


def test_checkpoints_are_made_where_a_place_is_given(devices, tmp_path):
    import keras

    import tfdist
    from tfdist.collectives.process_group import ProcessGroup

    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    group = ProcessGroup(tfdist.one_device_strategy(devices[0]))
    assert options().checkpoints(model, group) is None
    by_epoch = options(checkpoint_dir=tmp_path).checkpoints(model, group)
    assert by_epoch.by_epoch
    assert by_epoch.until_due(3) is None
    by_steps = options(checkpoint_dir=tmp_path, checkpoint_steps=5).checkpoints(model, group)
    assert not by_steps.by_epoch
    assert by_steps.until_due(3) == 2
    assert [by_steps.is_due(total) for total in (4, 5)] == [False, True]
    by_time = options(checkpoint_dir=tmp_path, checkpoint_seconds=1e-9).checkpoints(model, group)
    assert by_time.is_due(1)

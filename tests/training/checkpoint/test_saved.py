"""A position survives being written down, and counts its steps in batches of another size."""

from __future__ import annotations

import dataclasses
import json

import pytest

from tfdist.training.checkpoint.saved import Position


def test_it_begins_with_nothing_done_and_survives_json():
    assert dataclasses.astuple(Position()) == (0, 0, 0, 0, 0, 0, 0, False, None)
    position = Position(1, 2, 3, 4, 5, 6, 7, True, 8)
    manifest = json.loads(json.dumps(dataclasses.asdict(position)))
    assert Position(**manifest) == position
    names = ("fit", "first_epoch", "epoch", "step", "total", "seed", "global_batch", "finished")
    assert tuple(manifest) == (*names, "steps")
    del manifest["steps"]  # Which checkpoints of earlier versions do not hold.
    assert Position(**manifest) == dataclasses.replace(position, steps=None)


@pytest.mark.parametrize(
    ("saved", "now", "steps", "wanted"),
    [
        (8, 8, 5, 5),
        (8, 4, 5, 10),
        (8, 16, 5, 2),  # 40 examples: two whole batches, and half of one that comes again.
        (8, 16, 1, 0),
        (6, 4, 3, 4),
        (0, 4, 3, 3),  # A batch whose size was not known.
    ],
)
def test_steps_of_another_batch_end_at_the_same_example(saved, now, steps, wanted):
    position = Position(step=9, global_batch=saved)
    assert position.after(steps, now) == wanted
    if saved:
        examples = saved * steps
        assert wanted * now <= examples < (wanted + 1) * now


def test_the_next_call_of_fit_counts_on_and_starts_over():
    last = Position(2, 1, 7, 5, 90, 3, 16, True, 9)
    following = last.next_fit(initial_epoch=4, seed=11, global_batch=8)
    assert following == Position(fit=3, first_epoch=4, epoch=4, total=90, seed=11, global_batch=8)

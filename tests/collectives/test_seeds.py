"""Workers without a seed of their own draw the same numbers; one that has a seed keeps it."""

from __future__ import annotations

import ast

import pytest

import tfdist
from tests.collectives.workers import run_workers
from tfdist.collectives.process_group import ProcessGroup
from tfdist.collectives.seeds import agree_on_seed

PROGRAM = """
import json, os
import tensorflow as tf
import tfdist
from tfdist.collectives.process_group import ProcessGroup
from tfdist.collectives.seeds import agree_on_seed
from tensorflow.python.eager import context

worker = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
strategy = tfdist.build_strategy("multi_worker_mirrored")
order = list(tf.data.Dataset.range(20).shuffle(20).as_numpy_iterator())
found = {"order": [int(n) for n in order], "drawn": context.global_seed()}
group = ProcessGroup(strategy)
for name, seeds in (("worker's", (None, 7)), ("chief's", (5, None))):
    context.context()._seed = None
    if seeds[worker] is not None:
        tf.random.set_seed(seeds[worker])
    agree_on_seed(group)
    found[name] = context.global_seed()
print("FOUND", found, flush=True)
"""


@pytest.mark.cluster
def test_two_workers_shuffle_alike(tmp_path):
    found = []
    for code, output in run_workers(tmp_path, PROGRAM):
        assert code == 0, output
        (line,) = [line for line in output.splitlines() if line.startswith("FOUND ")]
        found.append(ast.literal_eval(line.removeprefix("FOUND ")))
    chief, worker = found
    assert sorted(chief["order"]) == list(range(20)) != chief["order"]
    assert chief["order"] == worker["order"]
    assert chief["drawn"] == worker["drawn"] is not None
    assert worker["worker's"] == 7 != chief["worker's"]
    assert (chief["chief's"], worker["chief's"]) == (5, 5)


def test_a_process_on_its_own_is_left_as_it_is(devices):
    from tensorflow.python.eager import context

    before = context.global_seed()
    agree_on_seed(ProcessGroup(tfdist.mirrored_strategy(devices[:2])))
    assert context.global_seed() == before

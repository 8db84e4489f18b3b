"""Each process knows its place, and what one of them gives reaches all of them."""

from __future__ import annotations

import ast

import pytest
import tensorflow as tf

import tfdist
from tests.tasks import run_workers
from tfdist.collectives import process_group
from tfdist.collectives.layout import ReplicaLayout
from tfdist.collectives.process_group import NO_CALL, ProcessGroup


@pytest.mark.parametrize(
    ("build", "replicas"),
    [
        (lambda devices: tfdist.mirrored_strategy(devices[:3]), 3),
        (lambda devices: tfdist.central_storage_strategy(devices[:2]), 2),
        (lambda devices: tfdist.one_device_strategy(devices[1]), 1),
        (lambda devices: tf.distribute.get_strategy(), 1),
    ],
    ids=["mirrored", "central_storage", "one_device", "default"],
)
def test_a_process_on_its_own_holds_all_replicas(devices, build, replicas):
    group = ProcessGroup(build(devices))
    assert group.layout == ReplicaLayout(0, 1, replicas, replicas)
    assert group.is_chief
    assert not group.has_peers
    assert group.task == "this process"


def test_replicas_that_do_not_step_together_count_as_one_with_peers(devices):
    group = ProcessGroup(tfdist.mirrored_strategy(devices[:2]), is_synchronous=False)
    assert group.layout == ReplicaLayout(0, 1, 1, 1)
    assert group.is_chief
    assert group.has_peers


def test_a_process_on_its_own_agrees_with_itself(devices):
    group = ProcessGroup(tfdist.mirrored_strategy(devices[:2]))
    assert group.exchange(-5) == [-5]
    assert group.broadcast(b"abc") == b"abc"
    group.prepare_barrier()
    group.barrier()


@pytest.mark.parametrize("call", [NO_CALL, "fit", "evaluate", "predict"])
def test_the_name_of_a_call_travels_as_a_number(call):
    number = process_group._encode(call)
    assert 0 < number < 2**63
    assert process_group._decode(number) == call


PROGRAM = """
import numpy as np
import tfdist
from tfdist.collectives import process_group

process_group._BROADCAST_BYTES = 32  # Several pieces, the last of an odd length.
strategy = tfdist.build_strategy("multi_worker_mirrored")
group = process_group.ProcessGroup(strategy)
me = group.layout.worker
data = np.random.default_rng(0).bytes(75)
found = {
    "layout": (me, group.layout.workers, group.layout.local_replicas, group.layout.replicas),
    "chief": group.is_chief,
    "peers": group.has_peers,
    "task": group.task,
    "exchanged": [group.exchange(2**40 + me), group.exchange(-me)],
    "broadcast": group.broadcast(data if me == 0 else b"something else") == data,
    "nothing": group.broadcast(b"" if me == 0 else b"x"),
}
group.prepare_barrier()
group.barrier()
print("FOUND", found, flush=True)
"""


@pytest.mark.cluster
def test_two_processes_tell_each_other(tmp_path):
    for worker, (code, output) in enumerate(run_workers(tmp_path, PROGRAM)):
        assert code == 0, output
        (line,) = [line for line in output.splitlines() if line.startswith("FOUND")]
        assert ast.literal_eval(line.removeprefix("FOUND ")) == {
            "layout": (worker, 2, 1, 2),
            "chief": worker == 0,
            "peers": True,
            "task": f"worker/{worker}",
            "exchanged": [[2**40, 2**40 + 1], [0, -1]],
            "broadcast": True,
            "nothing": b"",
        }


SEEDS = """
import json, os
import tensorflow as tf
import tfdist
from tfdist.collectives.process_group import ProcessGroup
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
    group.agree_on_seed()
    found[name] = context.global_seed()
print("FOUND", found, flush=True)
"""


@pytest.mark.cluster
def test_two_workers_shuffle_alike(tmp_path):
    found = []
    for code, output in run_workers(tmp_path, SEEDS):
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
    ProcessGroup(tfdist.mirrored_strategy(devices[:2])).agree_on_seed()
    assert context.global_seed() == before

"""Workers end together: the first waits for the last, and sees one that is lost meanwhile."""

from __future__ import annotations

import pytest

import tfdist
from tests.tasks import run_workers
from tfdist.collectives.exit_barrier import add_exit_barrier
from tfdist.collectives.process_group import ProcessGroup
from tfdist.runtime import shutdown

# What a user writes; CHIEF is what the chief does after the training, while worker 1 is done.
PROGRAM = """
import os, time
import tfdist

strategy = tfdist.build_strategy("multi_worker_mirrored")

import keras
import numpy as np

keras.utils.set_random_seed(1)
with strategy.scope():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
x, y = np.ones((8, 3), "float32"), np.ones((8, 1), "float32")
tfdist.Trainer(model).fit(x, y, batch_size=4, verbose=0)
cluster = tfdist.Cluster.from_environment()
print("TRAINED", flush=True)
if cluster.is_chief:
    CHIEF
    print("SAVED", flush=True)
"""


@pytest.mark.cluster
def test_a_worker_that_is_done_waits_for_one_that_still_saves(tmp_path):
    """That it makes another trainer meanwhile changes nothing."""
    saves = "tfdist.Trainer(model); time.sleep(12)"
    ends = run_workers(tmp_path, PROGRAM.replace("CHIEF", saves))
    for code, output in ends:
        assert code == 0, output
        assert "TRAINED" in output
        assert "have crashed" not in output
    assert "SAVED" in ends[0][1]


@pytest.mark.cluster
@pytest.mark.long
def test_a_worker_that_waits_for_one_that_is_lost_ends_to_start_again(tmp_path):
    dies = "time.sleep(3); os._exit(3)"
    (chiefs, first), (code, output) = run_workers(tmp_path, PROGRAM.replace("CHIEF", dies))
    assert chiefs == 3, first
    assert "TRAINED" in output
    assert code == 138, output
    (line,) = [line for line in output.splitlines() if line.startswith("tfdist: worker/1: lost ")]
    assert "worker/0" in line


@pytest.mark.cluster
def test_a_worker_that_fails_waits_for_nobody(tmp_path):
    """Its end is what tells the others."""
    fails = PROGRAM.replace("CHIEF", "raise ValueError('a mistake')")
    (chiefs, first), (code, output) = run_workers(tmp_path, fails)
    assert chiefs == 1, first
    assert "ValueError: a mistake" in first
    assert code == 138, output


def test_a_process_on_its_own_has_nobody_to_wait_for(devices, monkeypatch):
    monkeypatch.setattr(shutdown, "at_exit", lambda *given, **more: pytest.fail(f"{given}"))
    add_exit_barrier(ProcessGroup(tfdist.mirrored_strategy(devices[:2])))

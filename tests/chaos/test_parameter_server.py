"""ParameterServerStrategy: a lost worker is replaced; a lost ps or chief is named and restarted."""

from __future__ import annotations

import json
import random
import re
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.harness import FULL, JOB, Program, Programs, python, size, wait
from tfdist.launcher.ports import free_ports

pytestmark = [pytest.mark.chaos, pytest.mark.cluster]

NAMED_SECONDS = 15.0 if FULL else 60.0  # other processes run beside the short form
EVERY = 20  # batches between two checkpoints


def steps_done(job: Program, since: int = 0) -> int:
    """How far the chief has come, as it last said."""
    found = job.find(r"STEP \d+", since)
    return int(found[-1].partition("STEP ")[2].split()[0]) if found else 0


def test_the_job_outlasts_any_of_its_tasks(programs: Programs, tmp_path: Path) -> None:
    generator = random.Random("parameter server")
    victims = [f"worker/{generator.randrange(2)}" for _ in range(size(1, 20))]
    victims += ["ps/0"] * size(1, 10) + ["chief/0"] * size(1, 10)
    generator.shuffle(victims)
    steps, epochs = (200, 2) if len(victims) <= 3 else (400, 20)
    job = programs.launch(
        f"--chief 1 --ps 1 --workers 2 --max-restarts {len(victims)} --restart-delay 0.1 --grace 3",
        [*python(), JOB],
        STEPS=str(steps),
        EPOCHS=str(epochs),
        PAUSE="0.02",
        DIR=str(tmp_path / "checkpoints"),
        EVERY=str(EVERY),
    )
    lost = 0
    since = 0
    for victim in victims:
        job.until(r"STEP", since)
        reached = steps_done(job, since)
        # Some steps further, so that the fault comes anywhere between two checkpoints.
        goal = reached + generator.randint(10, 60)
        wait(lambda since=since, goal=goal: steps_done(job, since) >= goal, what="steps")
        chief = job.tasks()["chief/0"].pid
        here = len(job.lines)
        killed = job.kill(victim)
        pattern = rf"^tfdist: {victim} (failed first: )?killed by SIGKILL"
        named = job.until(pattern, here, NAMED_SECONDS)
        print(f"{victim}: named after {named.at - killed:.1f} s")
        assert named.at - killed < NAMED_SECONDS
        if victim.startswith("worker/"):
            assert "starting it again" in named
            before = steps_done(job)
            wait(lambda before=before: steps_done(job) > before + 20, what="steps without it")
            wait(lambda victim=victim: victim in job.tasks(), what=f"{victim} again")
            assert job.tasks()["chief/0"].pid == chief, "the chief was restarted"
            since = here
            continue
        lost += 1
        stopped_at = steps_done(job)
        job.until("starting all tasks again", here)
        since = len(job.lines)
        resumed = job.until(r"tfdist: resuming from .* step \d+", since)
        epoch, step = map(int, re.findall(r"epoch (\d+), step (\d+)", resumed)[0])
        redone = stopped_at - ((epoch - 1) * steps + step)
        print(f"{victim}: about {max(redone, 0)} steps are done again")
        assert redone <= EVERY, job.text()
    assert job.end(600) == 0, job.text()
    (end,) = job.find(r"END \d+")
    # Each batch counted once: those that a lost worker had are done again, under its number.
    assert int(end.partition("END ")[2].split()[0]) == steps * epochs
    assert len(job.find(r"starting all tasks again")) == lost


@pytest.mark.long
def test_a_chief_on_its_own_ends_and_names_the_lost_ps(programs: Programs) -> None:
    """Without the launcher, as under Kubernetes: what counts are the exit codes."""
    addresses = [f"127.0.0.1:{port}" for port in free_ports(3)]
    cluster = {"chief": addresses[:1], "worker": addresses[1:2], "ps": addresses[2:]}
    tasks = {}
    for role in cluster:
        config = {"cluster": cluster, "task": {"type": role, "index": 0}}
        env = {"TF_CONFIG": json.dumps(config), "STEPS": "100000", "PAUSE": "0.02"}
        tasks[role] = programs.start([sys.executable, JOB], env)
    tasks["chief"].until("STEP 31 ")
    tasks["ps"].process.kill()
    killed = time.time()
    assert tasks["chief"].end() == 138, tasks["chief"].text()
    print(f"chief: ended {time.time() - killed:.1f} s after the ps was killed")
    assert time.time() - killed < NAMED_SECONDS
    named = tasks["chief"].find(r"PeerError|tfdist: ")[-1]
    assert re.search(r"chief/0: ps/0 was lost", named), tasks["chief"].text()
    # The worker is not told that all is well: it sees that the chief is gone, unless the chief
    # could still tell it why.
    assert tasks["worker"].end() == 138, tasks["worker"].text()
    assert tasks["worker"].find(
        r"chief/0 \(.*\) went away without having finished|the chief has ended: .*ps/0 was lost"
    )
    assert time.time() - killed < 2 * NAMED_SECONDS


@pytest.mark.long
@pytest.mark.parametrize(("delay", "step"), [(60, 41), (0.1, 151), (0.1, 161)])
def test_the_chief_ends_while_a_worker_is_away_or_comes_back(
    programs: Programs, delay: float, step: int
) -> None:
    """TensorFlow's coordinator would wait for ever: Python ends, and with it who holds its lock."""
    job = programs.launch(
        f"--chief 1 --ps 1 --workers 2 --max-restarts 1 --restart-delay {delay} --grace 3",
        [*python(), JOB],
        STEPS="200",
        EPOCHS="1",
        PAUSE="0.02",
    )
    job.until(f"STEP {step} ")
    job.kill("worker/1")
    assert job.end() == 0, job.text()
    assert job.find("worker/1 killed by SIGKILL; starting it again in"), job.text()
    (end,) = job.find(r"END \d+")
    assert int(end.partition("END ")[2].split()[0]) == 200
    print(f"ended {time.time() - end.at:.1f} s after its last step")


@pytest.mark.skipif(not FULL, reason="half a minute; tests/cluster has the same with less")
def test_a_worker_that_others_start_again_joins_the_job(programs: Programs) -> None:
    """Without the launcher, as Kubernetes restarts one pod: nothing says that the others run."""
    addresses = [f"127.0.0.1:{port}" for port in free_ports(4)]
    cluster = {"chief": addresses[:1], "worker": addresses[1:3], "ps": addresses[3:]}

    def start(role: str, index: int) -> Program:
        config = {"cluster": cluster, "task": {"type": role, "index": index}}
        env = {"TF_CONFIG": json.dumps(config), "STEPS": "800", "EPOCHS": "1", "PAUSE": "0.02"}
        return programs.start([sys.executable, JOB], env)

    tasks = {role: start(role, 0) for role in cluster}
    lost = start("worker", 1)
    tasks["chief"].until("STEP 31 ")
    lost.process.kill()
    assert lost.end() == -9
    again = start("worker", 1)
    again.until("worker/1 joins a job that runs")
    assert tasks["chief"].end(300) == 0, tasks["chief"].text()
    # It has really served: one that had not joined would not be told that all is done.
    assert again.end() == 0, again.text()
    assert tasks["worker"].end() == tasks["ps"].end() == 0
    (end,) = tasks["chief"].find(r"END \d+")
    assert int(end.partition("END ")[2].split()[0]) == 800


FROM_WORKER = "GRPC error information from remote target /job:worker/replica:0/task:1"
FROM_PS = "GRPC error information from remote target /job:ps/replica:0/task:2 while calling"


class Answer:
    """What came of a batch, which its worker may not live to hand over."""

    def __init__(self, errors: list[Exception]) -> None:
        self._errors = errors

    def fetch(self) -> str:
        if self._errors:
            raise self._errors.pop(0)
        return "answer"


class Coordinator:
    def __init__(self, error: Exception | None = None) -> None:
        self._error = error

    def done(self) -> bool:
        if self._error is not None:
            raise self._error
        return False


def loop(coordinator: Coordinator) -> Any:
    from tfdist.training.loops.parameter_server import ParameterServerLoop

    made = ParameterServerLoop.__new__(ParameterServerLoop)
    made._coordinator = coordinator
    return made


def test_an_answer_is_waited_for_though_its_worker_is_lost() -> None:
    import tensorflow as tf

    gone = "Unable to find the relevant tensor remote_handle"
    lost: list[Exception] = [
        tf.errors.UnavailableError(None, None, FROM_WORKER),
        tf.errors.InvalidArgumentError(None, None, f"{gone}: {FROM_WORKER}"),
    ]
    assert loop(Coordinator())._answer(Answer(lost)) == "answer"
    hopeless = tf.errors.UnavailableError(None, None, "no worker came back")
    with pytest.raises(tf.errors.UnavailableError, match="no worker came back"):
        loop(Coordinator(hopeless))._answer(
            Answer([tf.errors.UnavailableError(None, None, FROM_WORKER)])
        )


def test_a_lost_ps_is_named_and_a_mistake_of_the_users_is_not_one() -> None:
    import tensorflow as tf

    from tfdist.collectives.peer_errors import peers_error
    from tfdist.errors import PeerError

    lost = tf.errors.UnavailableError(None, None, f"{FROM_WORKER}: {FROM_PS}")
    with pytest.raises(tf.errors.UnavailableError) as caught:
        loop(Coordinator())._answer(Answer([lost]))
    named = peers_error(caught.value, "chief/0")
    assert isinstance(named, PeerError)
    assert str(named).startswith("chief/0: ps/2 was lost")
    mistake = tf.errors.InvalidArgumentError(None, None, FROM_PS)
    with pytest.raises(tf.errors.InvalidArgumentError):
        loop(Coordinator())._answer(Answer([mistake]))
    assert peers_error(mistake, "chief/0") is None

"""Who is blamed for a stall, and how the launcher acts on it; without TensorFlow."""

from __future__ import annotations

import dataclasses
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tfdist.launcher import stacks
from tfdist.launcher.stalls import TaskStatus, culprit, describe, overdue
from tfdist.launcher.steps import StepTimes
from tfdist.runtime.heartbeat import Beat, HeartbeatWriter, read

LIMIT = 10.0
IN_TENSORFLOW = ("/lib/tensorflow/python/eager/execute.py", 53, "quick_execute")
READING = ("/lib/tensorflow/python/ops/gen_dataset_ops.py", 3081, "iterator_get_next")
IN_CALLBACK = ("/home/me/train.py", 7, "on_epoch_end")


def status_of(
    task: str, phase: str = "training", *, fed: float = 0.0, idle: float = 11.0, **more
) -> TaskStatus:
    """A task whose last beat is at time 100."""
    return TaskStatus(task, Beat(phase, 1, 20, 100.0, 0.1, 1, fed), idle, **more)


WAITING = status_of("worker/0", fed=100.1, at=IN_TENSORFLOW)


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (status_of("worker/1", fed=99.9, at=IN_TENSORFLOW), "it waits for its input"),
        (status_of("worker/1", fed=99.9), "it waits for its input"),
        (status_of("worker/1", fed=100.1, at=READING), "it waits for its input"),
        (status_of("worker/1", fed=100.2, at=IN_CALLBACK), "in on_epoch_end (train.py line 7)"),
        (status_of("worker/1", fed=100.2, stopped=9.0), "(SIGSTOP)"),
        (status_of("worker/1", "saving", idle=700.0, at=IN_TENSORFLOW), "saving in epoch 2"),
        (status_of("worker/1", fed=100.05), "it waits for its input"),  # many steps a second
    ],
)
def test_the_one_that_the_others_wait_for_is_named(other: TaskStatus, said: str) -> None:
    for statuses in ([WAITING, other], [other, WAITING]):
        assert overdue(statuses, LIMIT)
        assert culprit(statuses) is other
        text = describe(other, statuses)
        assert said in text and text.endswith("; worker/0 waits for it")


def test_a_collective_between_epochs_is_told_from_a_callback() -> None:
    """There all have had their input, and fast input is no merit."""
    waits = dataclasses.replace(WAITING, beat=Beat("training", 1, 20, 100.0, 0.1, 1, 99.5))
    stuck = status_of("worker/1", fed=99.9, at=IN_CALLBACK)
    assert culprit([waits, stuck]) is stuck


def test_who_waits_in_the_ring_waits_for_a_peer() -> None:
    ring = ("/anywhere/stream.py", 81, "_wait")
    waits = status_of("worker/1", idle=11.5, at=ring)
    waits = dataclasses.replace(waits, beat=dataclasses.replace(waits.beat, waits=True))
    reads = status_of("worker/0", at=READING)
    assert culprit([reads, waits]) is reads
    assert describe(reads, [reads, waits]).endswith("it waits for its input; worker/1 waits for it")


def test_a_task_that_never_came_is_named_by_those_that_wait_for_it() -> None:
    waiting = status_of("worker/0", "building", idle=700.0, at=IN_TENSORFLOW)
    absent = TaskStatus("worker/1", None, 720.0)
    assert overdue([waiting, absent], LIMIT) and culprit([waiting, absent]) is absent
    assert "has not begun to train; worker/0 waits" in describe(absent, [waiting, absent])


@pytest.mark.parametrize(
    "statuses",
    [
        [status_of("worker/0", fed=100.1, idle=9.0), status_of("worker/1", idle=9.5)],
        # The others wait for the chief while it saves, and all of them while they compile.
        [WAITING, status_of("worker/1", "saving", idle=500.0)],
        [
            status_of("worker/0", "tracing", idle=500.0),
            status_of("worker/1", "building", idle=500.0),
        ],
        [TaskStatus("worker/0", None, 10_000.0)],
        [status_of("chief/0", "done", idle=10_000.0), TaskStatus("worker/1", None, 10_000.0)],
        [status_of("ps/0", "serving", idle=10_000.0)],
    ],
)
def test_no_false_alarm(statuses: list[TaskStatus]) -> None:
    assert not overdue(statuses, LIMIT)


def test_a_stopped_task_counts_whatever_it_did() -> None:
    stopped = TaskStatus("worker/1", None, 20.0, stopped=10.5)
    assert overdue([status_of("worker/0", idle=5.0), stopped], LIMIT)
    assert culprit([status_of("worker/0", fed=101.0), stopped]) is stopped


def test_beside_ps_a_stopped_worker_is_named_and_not_the_chief_that_waits_for_it() -> None:
    chief = status_of("chief/0", idle=12.0, at=("/lib/python/threading.py", 1, "wait"))
    served = [status_of(name, "serving", idle=50.0) for name in ("worker/0", "ps/0")]
    stopped = status_of("worker/1", "serving", idle=50.0, stopped=9.0)
    statuses = [chief, *served, stopped]
    assert overdue(statuses, LIMIT) and culprit(statuses) is stopped
    assert describe(stopped, statuses).endswith("; chief/0 waits for it")
    assert culprit([chief, *served]) is chief


def test_step_times_name_the_slowest() -> None:
    times = StepTimes()
    assert times.report() == ""
    for task, seconds, fed in (("worker/0", 0.5, 0.01), ("worker/1", 0.51, 0.3)):
        times.take(task, Beat("tracing"))
        for step in range(5):  # The first one is compiled.
            took = 60.0 if step == 0 else seconds
            times.take(task, Beat("training", 0, step, float(step), took, 1, step + fed))
    times.take("chief/0", Beat("evaluating", 0, 1, 1.0, 9.0))
    assert times.report() == (
        "median step: worker/0 500 ms (input 10 ms), worker/1 510 ms (input 300 ms); "
        "slowest: worker/1"
    )
    for step in range(5):
        times.take("worker/2", Beat("training", 0, step, float(step), 2.0))
    assert times.slowest() == "worker/2" and "worker/2 2.00 s" in times.report()


def test_the_main_thread_is_found_among_stacks() -> None:
    lines = """noise
Thread 0x00007fe753fef6c0 (most recent call first):
  File "/x/input.py", line 89 in examples
Current thread 0x00007fe82100db80 (most recent call first):
  File "/x/lib.py", line 3 in wait
  File "/x/main.py", line 5 in <module>
  File "<frozen runpy>", line 88 in _run_code
more noise""".splitlines()
    assert stacks.main_thread(lines) == ("/x/lib.py", 3, "wait")
    assert stacks.main_thread(lines[:3]) is None and stacks.main_thread([]) is None


def test_who_does_not_print_stacks_is_left_alone(tmp_path: Path) -> None:
    path = str(tmp_path / "beat")
    env = {**os.environ, "TFDIST_HEARTBEAT": path}
    with subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env=env
    ) as task:
        assert not stacks.ask(task.pid, path)
        assert not stacks.ask(task.pid, "/another/task's")
        assert not stacks.is_stopped(task.pid)
        task.send_signal(signal.SIGSTOP)
        end = time.monotonic() + 30
        while not stacks.is_stopped(task.pid):
            assert time.monotonic() < end
        task.send_signal(signal.SIGCONT)
        task.communicate(b"\n", timeout=30)
        assert task.returncode == 0
    assert not stacks.is_stopped(task.pid)


def test_a_task_with_a_heartbeat_prints_its_stacks_and_keeps_it(tmp_path: Path) -> None:
    path = str(tmp_path / "beat")
    code = (
        "from tfdist.runtime.heartbeat import HeartbeatWriter\n"
        "HeartbeatWriter().write('training', 1, 2); input()"
    )
    env = {**os.environ, "TFDIST_HEARTBEAT": path}
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=env,
        text=True,
    ) as task:
        end = time.monotonic() + 60
        while (beat := read(path)) is None:
            assert time.monotonic() < end
        assert (beat.phase, beat.epoch, beat.step, beat.pid) == ("training", 1, 2, task.pid)
        assert stacks.ask(task.pid, path)
        assert task.stderr is not None
        while not (line := task.stderr.readline()).startswith("  File"):
            assert line
        task.communicate("\n", timeout=60)


JOB = """
import os, signal, sys, time
from tfdist.runtime.heartbeat import HeartbeatWriter
task = eval(os.environ["TF_CONFIG"])["task"]
heartbeat = HeartbeatWriter()
# Those that are well wait in TensorFlow, by the name of the file.
exec(compile("def wait(): time.sleep(1000)", "/lib/tensorflow/python/execute.py", "exec"))
again = os.environ["TFDIST_ATTEMPT"] != "1" or "TFDIST_REJOIN" in os.environ
def stuck():
    print("FAULT", flush=True)
    if KIND == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(1000)
for step in range(1000 if not again else 3):
    heartbeat.write("training", 0, step, step_seconds=0.3)
    time.sleep(0.3)
    if step == 3 and task["type"] == "worker" and task["index"] == 1 and not again:
        stuck()
    if step > 3 and not PS:
        wait()
"""


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("flags", "kind", "again"),
    [
        ("--workers 2", "sleep", "starting all tasks again"),
        pytest.param("--workers 2", "stop", "starting all tasks again", marks=pytest.mark.long),
        pytest.param(
            "--chief 1 --ps 1 --workers 2", "stop", "starting it again", marks=pytest.mark.long
        ),
    ],
)
def test_a_stalled_task_is_lost_and_started_again(
    tmp_path: Path, flags: str, kind: str, again: str
) -> None:
    has_ps = "--ps" in flags
    code = JOB.replace("KIND", repr(kind)).replace("PS:", f"{has_ps}:")
    if has_ps:  # Slow but well, until the worker is back.
        code = code.replace("range(1000 if", "range(60 if")
    script = tmp_path / "job.py"
    script.write_text(code)
    limit = 4.0
    words = f"--stall-timeout {limit} --grace 0.5 --max-restarts 1 --restart-delay 0.01 --report"
    done = subprocess.run(
        [sys.executable, "-m", "tfdist", "launch", *flags.split(), *words.split(), "--"]
        + ["python", str(script)],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("FAULT") == 1
    (named,) = re.findall(
        r"^tfdist: (worker/\d) stalled: .* after step 3;? ?(.*)$", done.stderr, re.M
    )
    assert named[0] == "worker/1"
    assert ("(SIGSTOP)" in named[1]) == (kind == "stop")
    if kind == "sleep":
        assert "it is in stuck (job.py line 13)" in named[1]
        assert re.search(r"^worker/1 \| +File .* in stuck$", done.stdout, re.M)
    assert done.stderr.count(again) == 1
    assert re.search(r"^tfdist: median step: .*300 ms", done.stderr, re.M)
    assert os.listdir(tmp_path) == ["job.py"], "heartbeats were left"


COMPLAINT = """
import os, signal, sys, time
from tfdist.runtime.heartbeat import HeartbeatWriter
note, index = sys.argv[1], eval(os.environ["TF_CONFIG"])["task"]["index"]
if index != 1:
    while not os.path.exists(note):
        time.sleep(0.1)
    # TensorFlow takes 5 to 10 s to give up a peer; all do so at one time.
    time.sleep(max(0, os.path.getmtime(note) + 5 - time.time()))
    os._exit(138)
HeartbeatWriter().write("training", 0, 7)
open(note, "w").close()
os.kill(os.getpid(), signal.SIGSTOP)
"""


@pytest.mark.cluster
def test_a_stopped_task_is_named_once_others_complain_of_it(tmp_path: Path) -> None:
    words = "launch --workers 4 --grace 0.5 -- python -c"
    done = subprocess.run(
        [sys.executable, "-m", "tfdist", *words.split(), COMPLAINT, str(tmp_path / "stopped")],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 138, done.stderr
    assert re.search(
        r"^tfdist: worker/1 failed first: stalled: .* after step 7; .*\(SIGSTOP\)",
        done.stderr,
        re.M,
    ), done.stderr
    assert "worker/0 failed" not in done.stderr
    assert done.stderr.count("tfdist: worker/1 stalled") == 1


@pytest.mark.cluster
def test_step_times_are_reported_when_asked_for(tmp_path: Path) -> None:
    code = (
        "import time; from tfdist.runtime.heartbeat import HeartbeatWriter\n"
        "heartbeat = HeartbeatWriter()\n"
        "for step in range(1000):\n"
        "    heartbeat.write('training', 0, step, step_seconds=0.25); time.sleep(0.25)\n"
        "    if step == 8: print('UP', flush=True)"
    )
    launcher = subprocess.Popen(
        [sys.executable, "-m", "tfdist", "launch", "--workers", "1", "--", "python", "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with launcher:
        assert launcher.stdout is not None and launcher.stderr is not None
        assert launcher.stdout.readline() == "worker/0 | UP\n"
        launcher.send_signal(signal.SIGUSR2)
        lines = [launcher.stderr.readline(), launcher.stderr.readline()]
        launcher.terminate()
        launcher.communicate(timeout=60)
    assert lines[1] == "tfdist: median step: worker/0 250 ms\n"


def test_a_heart_without_a_file_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TFDIST_HEARTBEAT", raising=False)
    heartbeat = HeartbeatWriter()
    heartbeat.write("training")
    assert heartbeat.fed_path == ""

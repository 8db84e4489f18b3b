"""`tfdist.launch` of functions of a script, in real processes; without TensorFlow."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import tfdist
from tfdist.errors import PeerError, TaskError
from tfdist.launcher.call_folder import CallFolder
from tfdist.launcher.exits import Exit
from tfdist.programs.function import _error

SOON = 60.0
PRELUDE = """
import json, os, signal, sys, threading, time
from pathlib import Path
import tfdist
def me():
    return json.loads(os.environ["TF_CONFIG"])["task"]["index"]
def folder():
    return Path(os.environ["FOLDER"])
def wait_for(name):
    while not (folder() / name).exists():
        time.sleep(0.02)
def tell(error):
    print(type(error).__name__, error.exit_code, error, sep="|")
"""


def start(folder: Path, code: str) -> subprocess.Popen[str]:
    script = folder / "script.py"
    script.write_text(PRELUDE + code)
    return subprocess.Popen(
        [sys.executable, str(script)],
        env={**os.environ, "FOLDER": str(folder), "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(folder: Path, code: str, seconds: float = SOON) -> tuple[int, list[str], str]:
    process = start(folder, code)
    try:
        out, err = process.communicate(timeout=seconds)
    finally:
        process.kill()
    return process.returncode, out.splitlines(), err


@pytest.mark.cluster
def test_functions_classes_and_what_they_close_over_come_from_the_script(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("def double(x): return 2 * x\n")
    code, out, err = run(
        tmp_path,
        """
import beside
class Found:
    def __init__(self, value):
        self.value = value
def make(offset):
    def work(factor, power=1):
        print("index", me(), os.environ["A"], "tensorflow" in sys.modules)
        if me() == 1:
            return None
        return Found(beside.double(offset + factor**power)), b"x" * 30_000_000
    return work
found, much = tfdist.launch(make(1), (3,), {"power": 2}, log_dir=folder() / "logs", env={"A": "b"})
print(type(found) is Found, found.value, len(much), "tensorflow" in sys.modules)
""",
    )
    assert code == 0, err
    assert sorted(out) == [
        "True 20 30000000 False",
        "worker/0 | index 0 b False",
        "worker/1 | index 1 b False",
    ]
    assert (tmp_path / "logs" / "worker-1.log").read_text() == "index 1 b False\n"


@pytest.mark.cluster
def test_what_goes_wrong_in_a_task_is_raised_and_named(tmp_path: Path) -> None:
    code, out, err = run(
        tmp_path,
        """
def work(how):
    if me() == 0 and how != "result":
        time.sleep(1000)
    if how == "raise":
        raise FileNotFoundError("no such\\nfile")
    if how == "reject":
        raise tfdist.ConfigError("field: is wrong")
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "exit":
        sys.exit(3)
    return threading.Lock()
for how in ("raise", "reject", "kill", "exit", "result"):
    try:
        tfdist.launch(work, (how,), grace=0.2)
    except tfdist.TfdistError as error:
        tell(error)
        if how == "raise":
            print(error.traceback.replace("\\n", "~"), error.__notes__ != [])
tfdist.launch(work, ("reject",), grace=0.2)
""",
    )
    said = [line for line in out if not line.startswith("worker/")]
    assert said[0] == "TaskError|1|worker/1: FileNotFoundError: no such"
    assert said[1].startswith('Traceback (most recent call last):~  File "')
    assert 'script.py", line' in said[1] and said[1].endswith("no such~file~ True")
    assert said[2] == "ConfigError|2|worker/1: field: is wrong"
    assert said[3] == "PeerError|138|worker/1: killed by SIGKILL"
    assert said[4] == "TaskError|1|worker/1: exit code 3"
    assert said[5].startswith("TfdistError|1|worker/0: launch: the result, <unlocked _thread.lock")
    assert "return something that can be pickled" in said[5] and len(said) == 6
    assert "programs/function.py" not in "\n".join(out)  # The traceback is that of the script.
    # The last one was not caught: one line, and its code.
    assert code == 2 and err.endswith("\ntfdist: worker/1: field: is wrong\n")
    assert "Traceback" not in err.rpartition("starting 2 tasks")[2]


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("number", "code", "said"),
    [
        (signal.SIGINT, 130, "interrupted\n"),
        (signal.SIGTERM, 138, "tfdist: launch: SIGTERM: all tasks have ended, not all of them"),
    ],
)
def test_a_signal_ends_the_tasks_and_then_the_caller(
    tmp_path: Path, number: int, code: int, said: str
) -> None:
    process = start(
        tmp_path,
        """
def work():
    (folder() / f"up{me()}").write_text(str(os.getpid()))
    time.sleep(1000)
try:
    tfdist.launch(work)
except KeyboardInterrupt:
    print("interrupted", file=sys.stderr)
    sys.exit(130)
""",
    )
    try:
        ups = [tmp_path / f"up{index}" for index in range(2)]
        end = time.monotonic() + SOON
        while not all(up.exists() and up.read_text() for up in ups):
            assert time.monotonic() < end
            time.sleep(0.02)
        process.send_signal(number)
        _, err = process.communicate(timeout=SOON)
    finally:
        process.kill()
    assert process.returncode == code
    assert said in err and "Traceback" not in err
    for up in ups:
        assert not Path(f"/proc/{up.read_text()}").exists()


@pytest.mark.cluster
def test_a_notebook_shows_the_lines_in_its_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = io.StringIO()  # A notebook's stream has no descriptor.
    monkeypatch.setattr(sys, "stdout", cell)
    found: list[Any] = []

    def in_a_thread() -> None:  # Where no handlers of signals can be set.
        found.append(tfdist.launch(lambda: print("here") or 7, workers=1))

    thread = threading.Thread(target=in_a_thread)
    thread.start()
    thread.join(SOON)
    assert found == [7]
    assert cell.getvalue() == "worker/0 | here\n"


@pytest.mark.chaos
@pytest.mark.long
def test_it_trains_as_the_same_script_under_the_command(tmp_path: Path) -> None:
    program = """
import hashlib
import keras
import numpy as np
def train(epochs):
    strategy = tfdist.build_strategy("auto", tfdist.Cluster.from_environment())
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.01), "mse")
    rows = np.random.default_rng(0).random((64, 8), dtype="float32")
    tfdist.Trainer(model).fit(rows, rows[:, :1], batch_size=16, epochs=epochs, verbose=0)
    digest = hashlib.sha256(b"".join(np.asarray(w).tobytes() for w in model.weights)).hexdigest()
    return digest, int(model.optimizer.iterations.numpy()), type(strategy).__name__
"""
    in_function = "print(*tfdist.launch(train, (3,)))\nprint(*tfdist.launch(train, (3,), ps=1)[1:])"
    code, out, err = run(tmp_path, program + in_function, 4 * SOON)
    assert code == 0, err
    said = [line for line in out if " | " not in line]
    assert said[0].endswith(" 12 CollectiveAllReduceStrategy")
    assert said[1] == "12 ParameterServerStrategyV2"
    assert not any("0000 00:00" in line for line in out)  # TensorFlow's remarks.
    script = tmp_path / "plain.py"
    script.write_text("import tfdist\n" + program + "print(*train(3))\n")
    command = [sys.executable, "-m", "tfdist", "launch", "--workers", "2", "--", "python", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=4 * SOON)
    assert f"worker/0 | {said[0]}\n" in done.stdout


LOCK = threading.Lock()


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ({"function": 3}, r"launch\(function\): 3 is given; allowed: a function"),
        ({"function": lambda: LOCK, "args": "ab"}, r"launch\(args\): 'ab' is given"),
        ({"args": [LOCK]}, r"launch\(args\): .<unlocked .* cannot be sent to a task \(TypeErr"),
        ({"kwargs": {"a": LOCK}}, r"launch\(kwargs\): .* cannot be sent to a task"),
        ({"kwargs": [1]}, r"launch\(kwargs\): \[1\] is given; allowed: a dict"),
        ({"workers": 0}, r"launch\(workers\): 0 is given; allowed: a whole number of 1"),
        ({"workers": "2"}, r"launch\(workers\): '2' is given"),
        ({"workers": 5000}, "launch: worker: 5000 is too many; one machine runs up to 1000"),
        ({"ps": -1}, r"launch\(ps\): -1 is given"),
        ({"max_restarts": -1}, r"launch\(max_restarts\): -1 is given"),
        ({"grace": "x"}, r"launch\(grace\): 'x' is given"),
        ({"stall_timeout": -1}, r"launch\(stall_timeout\): -1 is given"),
        ({"log_dir": 3}, r"launch\(log_dir\): 3 is given; allowed: the path"),
        ({"log_dir": "/dev/null/x"}, r"--log-dir: '/dev/null/x' cannot be written"),
        ({"env": {"A": 3}}, r"launch\(env\): 'A': 3 is given"),
        ({"env": {"A=B": "3"}}, r"launch\(env\): 'A=B': '3' is given"),
    ],
)
def test_a_bad_argument_is_one_line(arguments: dict[str, Any], line: str) -> None:
    with pytest.raises(tfdist.ConfigError, match=f"^{line}") as caught:
        tfdist.launch(**{"function": len, **arguments})
    assert "\n" not in str(caught.value)


def test_a_function_that_closes_over_a_lock_cannot_be_sent() -> None:
    lock = threading.Lock()
    with pytest.raises(tfdist.ConfigError, match=r"^launch\(function\): work cannot be sent to"):

        def work() -> bool:
            return lock.locked()

        tfdist.launch(work)


def test_a_task_of_a_cluster_starts_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    config = '{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 1}}'
    monkeypatch.setenv("TF_CONFIG", config)
    line = r"^launch: this is worker/1 of a cluster \(TF_CONFIG\), which starts no other; call len "
    with pytest.raises(tfdist.ConfigError, match=line):
        tfdist.launch(len)


def test_a_folder_that_is_not_there_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", "/dev/null")
    with pytest.raises(tfdist.ConfigError, match="^launch: no folder for temporary files"):
        tfdist.launch(len)


def test_the_cause_decides_the_error(tmp_path: Path) -> None:
    calls = CallFolder(tmp_path)
    stalled = _error(Exit("worker/1", 138, note="stalled: no progress for 60 s"), calls)
    assert (
        isinstance(stalled, PeerError) and str(stalled) == "worker/1: stalled: no progress for 60 s"
    )
    calls.send_failure("worker/0", PeerError("worker/1 was lost"))
    lost = _error(Exit("worker/0", 138), calls)
    assert type(lost) is PeerError and str(lost) == "worker/0: worker/1 was lost"
    calls.forget_failure("worker/0")
    ended = _error(Exit("worker/0", 9), calls)
    assert type(ended) is TaskError and ended.traceback == ""

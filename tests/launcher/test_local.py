"""The launcher with real processes; each test also sees that none is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.cluster

SOON = 60.0
PRELUDE = """
import json, os, signal, subprocess, sys, time
from pathlib import Path
me = json.loads(os.environ["TF_CONFIG"])["task"]
name = f"{me['type']}/{me['index']}"
folder = Path(os.environ["FOLDER"])
def mark(text):
    with open(folder / "marks", "a") as file:
        file.write(f"{name} {os.getpid()} {text}\\n")
def runs():
    return sum(line.startswith(name + " ") for line in open(folder / "marks"))
def wait_for(count, text="up"):
    while not (folder / "marks").exists() or (folder / "marks").read_text().count(text) < count:
        time.sleep(0.02)
"""


class Launch:
    """`tfdist launch` as a user runs it, with a marker in its environment to find its tasks."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.marks = folder / "marks"
        self._processes: list[subprocess.Popen[str]] = []

    def start(self, flags: str, code: str) -> subprocess.Popen[str]:
        script = self.folder / "script.py"
        script.write_text(PRELUDE + code)
        command = [sys.executable, "-m", "tfdist", "launch", *flags.split(), "--"]
        process = subprocess.Popen(
            [*command, "python", str(script)],
            env={**os.environ, "FOLDER": str(self.folder)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._processes.append(process)
        return process

    def run(self, flags: str, code: str) -> tuple[int, list[str], str]:
        process = self.start(flags, code)
        out, err = process.communicate(timeout=SOON)
        return process.returncode, out.splitlines(), err

    def until_marked(self, count: int, text: str = "up") -> list[int]:
        """Waits for so many marks; returns the processes that made them."""
        wait(lambda: self.marks.exists() and self.marks.read_text().count(text) >= count)
        return [int(line.split()[1]) for line in self.marks.read_text().splitlines()]

    def left(self) -> list[psutil.Process]:
        """The processes that carry the marker."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get("FOLDER") == str(self.folder):
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def close(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.kill()
            process.communicate()


def wait(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + SOON
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launch]:
    launcher = Launch(tmp_path)
    try:
        yield launcher
    finally:
        launcher.close()
    wait(lambda: not launcher.left())


def test_each_task_gets_its_config_and_its_lines_their_name(launch: Launch) -> None:
    code, out, err = launch.run(
        "--workers 2 --ps 1 --chief 1 --env A=b",
        'print(os.environ["TF_CONFIG"], os.environ["A"]); print("end", end="")',
    )
    assert code == 0, err
    seen = {}
    for line in out:
        name, _, text = line.partition(" | ")
        if text != "end":
            assert text.endswith(" b")
            config = json.loads(text.removesuffix(" b"))
            seen[f"{config['task']['type']}/{config['task']['index']}"] = config["cluster"]
            assert name.strip() == f"{config['task']['type']}/{config['task']['index']}"
    assert set(seen) == {"chief/0", "worker/0", "worker/1", "ps/0"}
    assert len({json.dumps(cluster) for cluster in seen.values()}) == 1
    assert len([line for line in out if line.endswith(" | end")]) == 4


def test_the_first_failure_ends_the_rest_and_is_reported(launch: Launch) -> None:
    code, _, err = launch.run(
        "--workers 3",
        """
mark("up")
wait_for(3)
if name == "worker/1":
    print("a b c"); sys.exit(7)
time.sleep(1000)
""",
    )
    assert code == 7
    assert "tfdist: worker/1 failed first: exit code 7 after " in err
    assert "    a b c\n" in err and "Traceback" not in err


def test_a_killed_task_is_the_cause_and_not_who_complains(launch: Launch) -> None:
    code, _, err = launch.run(
        "--workers 2",
        """
mark("up")
wait_for(2)
if name == "worker/0":
    sys.exit(138)  # It lost its peer, and notices first.
time.sleep(0.3)
os.kill(os.getpid(), signal.SIGKILL)
""",
    )
    assert code == 138
    assert "worker/1 failed first: killed by SIGKILL" in err


def test_a_task_that_is_long_in_ending_is_the_cause_and_not_who_complains(launch: Launch) -> None:
    """As where a mistake has been made and what was logged is still on its way to somewhere."""
    code, _, err = launch.run(
        "--workers 2 --max-restarts 1 --restart-delay 0.01",
        """
mark("up")
wait_for(2)
if name == "worker/0":
    sys.exit(138)
time.sleep(4)
sys.exit(1)
""",
    )
    assert code == 1
    assert "worker/1 failed first: exit code 1" in err and "again" not in err


def test_who_runs_on_while_others_complain_is_named(launch: Launch) -> None:
    code, _, err = launch.run(
        "--workers 2 --evaluator 1 --grace 0.1",
        """
mark("up")
wait_for(3)
if name == "worker/0":
    sys.exit(138)
time.sleep(1000)
""",
    )
    assert code == 138
    assert "tfdist: worker/1 has not ended, although worker/0 has lost a peer\n" in err


def test_a_task_that_ignores_sigterm_is_killed_after_the_grace_period(launch: Launch) -> None:
    code, _, _ = launch.run(
        "--workers 2 --grace 0.5",
        """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
mark("up")
wait_for(2)
if name == "worker/1":
    sys.exit(1)
time.sleep(1000)
""",
    )
    assert code == 1


SLEEPERS = """
subprocess.Popen(["sleep", "1000"])                          # a grandchild,
subprocess.Popen(["sleep", "1000"], start_new_session=True)  # and one that tries to get away
mark("up")
time.sleep(1000)
"""


def test_a_killed_launcher_leaves_no_heartbeats(
    launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = launch.folder / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    process = launch.start(
        "--workers 2",
        """
beat = Path(os.environ["TFDIST_HEARTBEAT"])
for path in (beat, beat.with_name(beat.name + ".fed"), beat.with_name(f".{beat.name}.7.tmp")):
    path.write_text("{}")
mark("up")
time.sleep(1000)
""",
    )
    launch.until_marked(2)
    assert len(list(folder.glob("*/*"))) == 6
    process.kill()
    wait(lambda: not list(folder.iterdir()))


@pytest.mark.parametrize(
    ("number", "expected"), [(signal.SIGINT, 130), (signal.SIGTERM, 138), (signal.SIGKILL, -9)]
)
def test_no_process_outlives_the_launcher(
    launch: Launch, number: signal.Signals, expected: int
) -> None:
    process = launch.start("--workers 2 --grace 5", SLEEPERS)
    launch.until_marked(2)
    assert len(launch.left()) >= 7
    process.send_signal(number)
    process.communicate(timeout=SOON)
    assert process.returncode == expected
    wait(lambda: not launch.left())


def test_no_grandchild_outlives_a_finished_job(launch: Launch) -> None:
    code, _, _ = launch.run("--workers 2", SLEEPERS.replace("time.sleep(1000)", ""))
    assert code == 0
    wait(lambda: not launch.left())


def test_a_second_interrupt_does_not_wait_for_the_grace_period(launch: Launch) -> None:
    process = launch.start(
        "--workers 2 --grace 1000",
        "signal.signal(signal.SIGTERM, lambda *_: mark('asked'))\nmark('up')\n"
        "while True: time.sleep(1000)",
    )
    launch.until_marked(2)
    process.send_signal(signal.SIGINT)
    launch.until_marked(2, "asked")
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=SOON)
    assert process.returncode == 130


def test_tasks_may_save_when_asked_to_end(launch: Launch) -> None:
    process = launch.start(
        "--workers 2",
        """
def save(*_):
    mark("saved")
    sys.exit(143)
signal.signal(signal.SIGTERM, save)
mark("up")
while True: time.sleep(1000)
""",
    )
    launch.until_marked(2)
    process.terminate()
    process.communicate(timeout=SOON)
    assert process.returncode == 143 and launch.marks.read_text().count("saved") == 2


def test_a_job_that_has_not_saved_when_asked_to_end_says_so(launch: Launch) -> None:
    process = launch.start(
        "--workers 2 --grace 0.5",
        """
ends = {0: lambda *_: sys.exit(143), 1: signal.SIG_IGN}
signal.signal(signal.SIGTERM, ends[me["index"]])
mark("up")
while True: time.sleep(1000)
""",
    )
    launch.until_marked(2)
    process.terminate()
    _, err = process.communicate(timeout=SOON)
    assert process.returncode == 138
    last = "tfdist: not saved at SIGTERM: worker/1 killed by SIGKILL (grace 0.5 s)"
    assert err.splitlines()[-1] == last


TALKERS = """
mark("up")
wait_for(1, "go")
for number in range(3000):
    print("x" * 1000)
mark("end")
"""


def go(launch: Launch) -> None:
    with launch.marks.open("a") as marks:
        marks.write("test 0 go\n")


def test_a_reader_that_goes_away_does_not_end_the_job(launch: Launch) -> None:
    process = launch.start("--workers 2", TALKERS + "wait_for(2, 'end')\nsys.exit(5 * me['index'])")
    assert process.stdout is not None
    launch.until_marked(2)
    process.stdout.close()
    process.stdout = None
    go(launch)
    _, err = process.communicate(timeout=SOON)
    assert launch.marks.read_text().count("end") == 2
    assert process.returncode == 5
    assert err.count("tfdist: stdout cannot be written to (Broken pipe); the job continues") == 1


def test_a_reader_that_does_not_read_leaves_the_launcher_awake(launch: Launch) -> None:
    process = launch.start("--workers 2 --grace 1", TALKERS + "time.sleep(1000)")
    launch.until_marked(2)
    go(launch)
    launch.until_marked(2, "end")
    process.terminate()
    assert process.wait(SOON) == 138


@pytest.mark.parametrize("ignored", [False, True])
def test_a_closed_terminal_does_not_end_the_job(launch: Launch, ignored: bool) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN if ignored else signal.SIG_DFL)
    try:
        process = launch.start("--workers 2", TALKERS)  # Inherits it, as from nohup.
    finally:
        signal.signal(signal.SIGHUP, before)
    launch.until_marked(2)
    process.send_signal(signal.SIGHUP)
    time.sleep(1.0)
    go(launch)
    _, err = process.communicate(timeout=SOON)
    assert process.returncode == 0
    assert err.count("tfdist: SIGHUP: the job continues; to end it: kill ") == (not ignored)


@pytest.mark.skipif(os.geteuid() != 0, reason="makes a small disk, which needs root")
def test_a_full_disk_under_the_logs_does_not_end_the_job(launch: Launch) -> None:
    logs = launch.folder / "logs"
    logs.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", logs], check=True)
    try:
        process = launch.start(f"--workers 2 --log-dir {logs}", TALKERS)
        launch.until_marked(2)
        go(launch)
        _, err = process.communicate(timeout=SOON)
    finally:
        subprocess.run(["umount", logs], check=True)
    assert process.returncode == 0
    assert err.count("tfdist: --log-dir cannot be written to (No space left on device)") == 1


def test_the_logs_of_an_earlier_run_stay(launch: Launch) -> None:
    logs = launch.folder / "logs"
    for _ in range(2):
        assert launch.run(f"--workers 1 --log-dir {logs}", "print('here')")[0] == 0
    first, between, second = (logs / "worker-0.log").read_text().splitlines()
    assert (first, second) == ("here", "here")
    assert between.startswith("--- another run, begun ")


def test_a_synchronous_job_restarts_as_a_group(launch: Launch) -> None:
    code, _, err = launch.run(
        "--workers 2 --max-restarts 2 --restart-delay 0.01",
        """
mark("up")
wait_for(2 * runs())
if name == "worker/1" and runs() <= 2:
    os.kill(os.getpid(), signal.SIGKILL)
if runs() <= 2:
    time.sleep(1000)
print("attempt", os.environ["TFDIST_ATTEMPT"], os.environ.get("TFDIST_REJOIN"))
""",
    )
    assert code == 0, err
    assert launch.marks.read_text().count("worker/0") == 3
    assert "(restart 2 of 2)" in err


@pytest.mark.parametrize("code", [1, 2])
def test_what_trying_again_cannot_help_is_not_restarted(launch: Launch, code: int) -> None:
    ended, _, _ = launch.run("--workers 1 --max-restarts 5", f"mark('up'); sys.exit({code})")
    assert ended == code and launch.marks.read_text().count("up") == 1


def test_restarts_come_to_an_end(launch: Launch) -> None:
    code, _, _ = launch.run(
        "--workers 1 --max-restarts 2 --restart-delay 0.01", "mark('up'); sys.exit(138)"
    )
    assert code == 138 and launch.marks.read_text().count("up") == 3


def test_with_ps_a_lost_worker_restarts_alone(launch: Launch) -> None:
    code, out, err = launch.run(
        "--chief 1 --ps 1 --workers 2 --max-restarts 1 --restart-delay 0.01 --grace 0.5",
        """
mark("up")
if name == "chief/0":
    wait_for(5)
    sys.exit(0)
if name == "worker/1":
    if "TFDIST_REJOIN" not in os.environ:
        wait_for(4)
        os.kill(os.getpid(), signal.SIGKILL)
    print("back")
time.sleep(1000)
""",
    )
    assert code == 0, err
    assert "worker/1 | back" in out
    text = launch.marks.read_text()
    assert [text.count(name) for name in ("chief/0", "ps/0", "worker/0", "worker/1")] == [
        1,
        1,
        1,
        2,
    ]


def test_with_ps_a_lost_ps_restarts_the_group(launch: Launch) -> None:
    code, _, err = launch.run(
        "--chief 1 --ps 1 --workers 1 --max-restarts 1 --restart-delay 0.01 --grace 0.5",
        """
mark("up")
wait_for(3 * runs())
if name == "chief/0" and runs() == 2:
    sys.exit(0)
if name == "ps/0" and runs() == 1:
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(1000)
""",
    )
    assert code == 0, err
    assert "ps/0 failed first: killed by SIGKILL" in err
    assert launch.marks.read_text().count("up") == 6


def test_logs_hold_what_each_task_printed(launch: Launch) -> None:
    logs = launch.folder / "logs" / "today"
    code, _, err = launch.run(f"--workers 2 --log-dir {logs}", "print(name, 'says \\xe9')")
    assert code == 0, err
    for index in range(2):
        text = (logs / f"worker-{index}.log").read_text()
        assert text == f"worker/{index} says \xe9\n"


def test_a_task_is_pinned_to_its_cores(launch: Launch) -> None:
    code, out, _ = launch.run(
        "--workers 1 --cpus-per-task 1",
        'print(len(os.sched_getaffinity(0)), os.environ["OMP_NUM_THREADS"])',
    )
    assert code == 0 and out == ["worker/0 | 1 1"]


def test_a_command_that_does_not_exist_starts_nothing(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tfdist", "launch", "--workers", "2", "--", "no-such-program"],
        capture_output=True,
        text=True,
        timeout=SOON,
    )
    assert done.returncode == 2
    assert "no such command: 'no-such-program'" in done.stderr and "Traceback" not in done.stderr

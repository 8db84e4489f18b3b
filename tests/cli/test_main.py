from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tfdist import cli
from tfdist.launcher.ports import free_ports
from tfdist.runtime.heartbeat import HeartbeatWriter

SOON = 60.0
TWO = {"cluster": {"worker": ["a:1", "b:2"]}, "task": {"type": "worker", "index": 1}}


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    code = cli.main(list(argv))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.mark.parametrize(
    ("argv", "problem"),
    [
        ([], "no command given; commands are check, "),
        (["chekc"], "'chekc' is not a command; commands are check, "),
        (["x" * 5000], "is not a command"),
        (["check", "--wait", "x"], "'x' is not a number of seconds"),
        (["check", "--wait", "-1"], "is not a number of seconds"),
        (["check", "more"], "unrecognized arguments: more"),
        (["evaluate"], "the following arguments are required: RUN"),
        (["evaluate", "run", "--batch", "0"], "--batch is 1 or more"),
        (["predict", "run"], "the following arguments are required: FILE"),
        (["predict", "run", "x.png", "--top", "0"], "--top is 1 or more"),
        (["export", "run"], "the following arguments are required: --output"),
        (["pack", "a", "b"], "the following arguments are required: --data-dir"),
        (["pack", "a", "b", "--data-dir", "c", "--shards", "0"], "--shards is 1 or more"),
        (["launch"], "no tasks are given; give --workers N, --spec FILE or --hosts A,B"),
        (["launch", "--workers", "2"], "no command given; add '-- COMMAND'"),
        (["launch", "--workers", "2", "--"], "no command behind '--'"),
        (["launch", "--workers", "2", "--typo", "x"], "launch: '--typo' is not a flag; see"),
        (["launch", "python", "x.py"], "no tasks are given"),
        (["launch", "--workers", "two", "--", "true"], "'two' is not an integer"),
        (["launch", "--workers", "1", "--spec", "x", "--", "true"], "exclude each other"),
        (["launch", "--spec", "/none.json", "--", "true"], "cannot be read"),
        (["launch", "--workers", "1", "--env", "x", "--", "true"], "is not like NAME=VALUE"),
        (["launch", "--ps", "1", "--", "true"], "there is a ps but no worker"),
        (["launch", "--workers", "1", "--log-dir", "/proc/x", "--", "true"], "cannot be written"),
        (["launch", "--workers", "2", "--cpus-per-task", "99", "--", "true"], "--cpus-per-task"),
    ],
)
def test_a_users_mistake_is_one_line_and_2(
    capsys: pytest.CaptureFixture[str], argv: list[str], problem: str
) -> None:
    code, out, err = run(capsys, *argv)
    lines = err.splitlines()
    assert code == 2 and out == ""
    assert len(lines) == 1 and lines[0].startswith("tfdist: ") and problem in lines[0]


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("trian", "'train'"),
        ("bench colectives", "'collectives'"),
        ("render jobst --name a", "'jobset'"),
        ("launch --wrokers 2 -- true", "'--workers'"),
        ("launch --log d -- true", "'--log-dir'"),
        ("render tfjob --nmae x", "'--name'"),
        ("check --wiat=3", "'--wait'"),
        ("plan --rule linaer", "'linear'"),
        ("train --strategy mirored", "'mirrored'"),
        ("train --strategy=Mirrored", "'mirrored'"),
        ("train --epoch 3", "'--epochs'"),
        ("train --noaugmnet", "'--noaugment'"),
    ],
)
def test_what_was_meant_is_said(capsys: pytest.CaptureFixture[str], words: str, meant: str) -> None:
    code, out, err = run(capsys, *words.split())
    assert (code, out) == (2, "")
    assert err.endswith(f"; did you mean {meant}?\n") and err.count("\n") == 1


@pytest.mark.parametrize("words", ["xyzzy", "launch --xyzzy 2 -- true", "train --xyzzy", "plan -"])
def test_nothing_is_guessed_where_nothing_is_like_it(
    capsys: pytest.CaptureFixture[str], words: str
) -> None:
    code, _, err = run(capsys, *words.split())
    assert code == 2 and "did you mean" not in err and err.count("\n") == 1


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--help")
    assert code == 0 and all(f"  {name}" in out for name in cli.COMMANDS)


def test_an_interrupt_is_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(name: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli.importlib, "import_module", interrupt)
    monkeypatch.setattr(sys, "last_value", None, raising=False)
    assert cli.main(["check"]) == 130
    # So that nothing at exit waits for other workers.
    assert isinstance(sys.last_value, KeyboardInterrupt)


def test_check_prints_the_cluster(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TF_CONFIG", json.dumps(TWO))
    assert run(capsys, "check") == (
        0,
        "cluster   2 tasks, from TF_CONFIG\n"
        "  worker/0  a:1  chief\n"
        "  worker/1  b:2  this task\n"
        "this is   worker/1\n"
        "chief     worker/0\n"
        "auto      multi_worker_mirrored: the cluster has 2 workers and no ps\n",
        "",
    )


@pytest.mark.parametrize(
    ("cluster", "role", "auto"),
    [
        ({"worker": ["a:1"]}, "worker", "one_device, or mirrored"),
        ({"worker": ["a:1"], "chief": ["b:1"]}, "worker", "multi_worker_mirrored"),
        ({"worker": ["a:1"], "chief": ["b:1"], "ps": ["c:1"]}, "worker", "parameter_server"),
        ({"worker": ["a:1", "b:1"]}, "evaluator", "one_device, or mirrored"),
    ],
)
def test_check_says_what_auto_builds(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    cluster: dict[str, list[str]],
    role: str,
    auto: str,
) -> None:
    config = {"cluster": cluster, "task": {"type": role, "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))
    code, out, _ = run(capsys, "check")
    assert code == 0 and f"auto      {auto}" in out and f"this is   {role}/0" in out


def test_check_without_a_cluster(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "check", "--wait", "0")
    assert code == 0
    assert "mirrored when this machine has several GPUs" in out and "from local" in out


def test_check_rejects_what_is_malformed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    TWO_OUT = {**TWO, "task": {"type": "worker", "index": 7}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(TWO_OUT))
    assert run(capsys, "check") == (
        2,
        "",
        "tfdist: TF_CONFIG.task.index: 7 is out of range; cluster.worker has 2 tasks (0 to 1)\n",
    )


@pytest.mark.parametrize(
    ("cluster", "problem"),
    [
        ({"ps": ["127.0.0.1:1"], "worker": ["127.0.0.1:2"]}, "the cluster has no chief task"),
        ({"ps": ["127.0.0.1:1"], "chief": ["127.0.0.1:2"]}, "there is a ps but no worker"),
        ({"worker": ["198.51.100.7:1", "127.0.0.1:2"]}, "worker/0 has the address 198.51.100.7:1"),
    ],
)
def test_check_refuses_what_cannot_run(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    cluster: dict[str, list[str]],
    problem: str,
) -> None:
    role = "worker" if "worker" in cluster else "chief"
    config = {"cluster": cluster, "task": {"type": role, "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))
    code, out, err = run(capsys, "check")
    assert (code, out) == (2, "") and problem in err and err.count("\n") == 1


def test_check_waits_for_the_peers_and_names_who_is_absent(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ports = free_ports(2)
    config = {**TWO, "cluster": {"worker": [f"127.0.0.1:{port}" for port in ports]}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))
    code, _, err = run(capsys, "check", "--wait", "0.5")
    assert code == 138
    assert f"worker/0 at 127.0.0.1:{ports[0]} is not there" in err and err.count("\n") == 1


def test_env_shows_versions_and_variables(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TF_NUM_INTRAOP_THREADS", "3")
    code, out, _ = run(capsys, "env")
    assert code == 0
    rows = dict(line.split(None, 1) for line in out.splitlines())
    assert rows["python"].startswith("3.") and rows["TF_NUM_INTRAOP_THREADS"] == "'3'"


def test_check_prints_json_and_nothing_else(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TF_CONFIG", json.dumps(TWO))
    code, out, _ = run(capsys, "check", "--json")
    assert code == 0
    assert json.loads(out) == {
        "source": "TF_CONFIG",
        "tasks": [{"task": "worker/0", "address": "a:1"}, {"task": "worker/1", "address": "b:2"}],
        "this": "worker/1",
        "chief": "worker/0",
        "auto": {
            "strategy": "multi_worker_mirrored",
            "reason": "the cluster has 2 workers and no ps",
        },
        "met": False,
    }


def test_check_prints_the_meeting_as_json(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = {**TWO, "cluster": {"worker": [f"127.0.0.1:{free_ports(1)[0]}"]}}
    config["task"] = {"type": "worker", "index": 0}
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))
    code, out, _ = run(capsys, "check", "--json", "--wait", "20")
    assert code == 0 and json.loads(out)["met"] is True


def test_a_heartbeat_as_json(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TFDIST_HEARTBEAT", str(tmp_path / "beat"))
    assert json.loads(run(capsys, "check", "--alive", "--json")[1]) == {"state": "no heartbeat yet"}
    HeartbeatWriter().write("training", epoch=1, step=7)
    code, out, _ = run(capsys, "check", "--alive", "--json")
    beat = json.loads(out)
    assert code == 0 and 0 <= beat.pop("seconds") < 600
    assert beat == {"state": "alive", "phase": "training", "epoch": 1, "step": 7}


def test_env_prints_json_and_nothing_else(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TFDIST_SECRET", "0123")
    monkeypatch.setenv("TFDIST_WAIT", "17")
    code, out, _ = run(capsys, "env", "--json")
    found = json.loads(out)
    assert code == 0 and "0123" not in out
    assert set(found) == {"python", "platform", "packages", "cores", "gpus", "variables"}
    assert found["packages"]["keras"].startswith("3.")
    assert found["variables"]["TFDIST_WAIT"] == "17"


@pytest.mark.parametrize("argv", [["check"], ["env"], ["launch", "--workers", "0", "--", "x"]])
def test_no_command_here_imports_tensorflow(argv: list[str]) -> None:
    code = (
        "import sys; from tfdist.cli import main; main(sys.argv[1:]); "
        "sys.exit(any(n in sys.modules for n in ('tensorflow', 'keras', 'numpy')))"
    )
    done = subprocess.run([sys.executable, "-c", code, *argv], capture_output=True, timeout=SOON)
    assert done.returncode == 0, done.stderr


def test_python_m_tfdist_is_the_command_too() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tfdist", "check"],
        env={**os.environ, "TF_CONFIG": "nonsense"},
        capture_output=True,
        text=True,
        timeout=SOON,
    )
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("tfdist: TF_CONFIG: 'nonsense' is not JSON")


def test_a_command_needs_no_dashes_in_front() -> None:
    command = [sys.executable, "-m", "tfdist", "launch", "--workers", "1", "echo", "--workers", "9"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SOON)
    assert done.returncode == 0, done.stderr
    assert "| --workers 9\n" in done.stdout


@pytest.mark.cluster
def test_all_tasks_of_a_launched_cluster_meet() -> None:
    command = [sys.executable, "-m", "tfdist", "launch"]
    command += ["--workers", "2", "--ps", "1", "--chief", "1"]
    done = subprocess.run(
        [*command, "tfdist", "check", "--wait", "60"], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("| all 4 tasks met\n") == 4


def test_env_shows_no_secret(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TFDIST_SECRET", "0123")
    monkeypatch.setenv("TFDIST_WAIT", "17")
    code, out, _ = run(capsys, "env")
    assert code == 0 and "0123" not in out
    shown = dict(line.split(maxsplit=1) for line in out.splitlines())
    assert shown["TFDIST_SECRET"] == "set, and not shown"
    assert shown["TFDIST_WAIT"] == "'17'"

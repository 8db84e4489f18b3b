"""Jobs on two machines that are parts of this one, by ssh and without; each leaves no process."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.launcher.two_hosts import SOON, TwoHosts, wait
from tfdist.errors import ConfigError
from tfdist.launcher.hosts import ssh as launcher
from tfdist.launcher.hosts.ssh import Host, read_hosts

PRELUDE = """
import json, os, signal, sys, time
from pathlib import Path
config = json.loads(os.environ["TF_CONFIG"])
name = "{type}/{index}".format(**config["task"])
folder = Path(os.environ["FOLDER"])
attempt = os.environ["TFDIST_ATTEMPT"]
def mark(text):
    with open(folder / "marks", "a") as file:
        file.write(f"{name} {os.getpid()} {text}\\n")
def wait_for(count):
    while (folder / "marks").read_text().count("up") < count:
        time.sleep(0.02)
mark("up")
"""


class Jobs:
    """`tfdist launch` on the first of two machines."""

    def __init__(self, two: TwoHosts, folder: Path) -> None:
        self.two, self.folder = two, folder
        self.marks = folder / "marks"
        self._processes: list[subprocess.Popen[str]] = []

    def start(self, flags: str, code: str, host: int = 0) -> subprocess.Popen[str]:
        """Starts a launcher on one of them."""
        script = self.folder / "script.py"
        script.write_text(PRELUDE + code)
        command = [sys.executable, "-m", "tfdist", "launch", *flags.split()]
        command += ["--ssh", self.two.ssh(), "--env", f"FOLDER={self.folder}"]
        process = subprocess.Popen(
            self.two.command(host, *command, "--", "python", str(script)),
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

    def until_up(self, count: int) -> dict[str, int]:
        """Waits for so many tasks to have started; returns the latest process of each."""
        wait(lambda: self.marks.exists() and self.marks.read_text().count("up") >= count, "tasks")
        lines = (line.split() for line in self.marks.read_text().splitlines())
        return {words[0]: int(words[1]) for words in lines}

    def close(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.kill()
            process.communicate()
        wait(lambda: not self.two.left(), "all processes to end")


@pytest.fixture(scope="module")
def two() -> Iterator[TwoHosts]:
    lab = TwoHosts()
    try:
        lab.start()
        yield lab
    finally:
        lab.close()


@pytest.fixture
def jobs(two: TwoHosts, tmp_path: Path) -> Iterator[Jobs]:
    started = Jobs(two, tmp_path)
    try:
        yield started
    finally:
        started.close()


@pytest.mark.cluster
def test_each_host_has_its_tasks_and_all_have_one_cluster_and_one_secret(jobs: Jobs) -> None:
    a, b = jobs.two.addresses
    process = jobs.start(
        f"--hosts {a},root@{b}:2 --chief 1 --ps 2 --env A=b --log-dir {jobs.folder}/logs",
        """
print(json.dumps([name, config["cluster"], os.environ["TFDIST_SECRET"], os.environ["A"]]))
while not (folder / "go").exists():
    time.sleep(0.02)
""",
    )
    jobs.until_up(6)
    words = [word for p in jobs.two.left() for word in p.cmdline()]
    (jobs.folder / "go").touch()
    out, err = process.communicate(timeout=SOON)
    assert process.returncode == 0, err
    places, clusters, secrets = {}, set(), set()
    for line in out.splitlines():
        if "{" in line:
            host, task, text = (part.strip() for part in line.split("|", 2))
            name, cluster, secret, variable = json.loads(text)
            assert task == name and variable == "b"
            places[name] = host
            clusters.add(json.dumps(cluster))
            secrets.add(secret)
    on_a = dict.fromkeys(("chief/0", "worker/0", "ps/0"), a)
    assert places == on_a | dict.fromkeys(("worker/1", "worker/2", "ps/1"), b)
    (cluster,) = map(json.loads, clusters)
    for name, host in places.items():
        role, _, index = name.partition("/")
        assert cluster[role][int(index)].startswith(f"{host}:")
    (secret,) = secrets
    assert len(secret) == 64
    assert "--managed" in words and not any(secret in word for word in words)
    assert '["worker/1", ' in (jobs.folder / "logs" / f"{b}.log").read_text()


@pytest.mark.cluster
def test_a_task_that_is_killed_ends_the_job_on_both(jobs: Jobs) -> None:
    a, b = jobs.two.addresses
    process = jobs.start(
        f"--hosts {a},{b}",
        """
wait_for(2)
if name == "worker/1":
    time.sleep(1000)
while "worker/1 gone" not in (folder / "marks").read_text():
    time.sleep(0.02)
sys.exit(138)  # It has lost its peer, and is the first to say so.
""",
    )
    pids = jobs.until_up(2)
    with jobs.marks.open("a") as marks:
        marks.write("worker/1 gone\n")
    time.sleep(0.3)
    os.kill(pids["worker/1"], signal.SIGKILL)
    _, err = process.communicate(timeout=SOON)
    assert process.returncode == 138
    assert f"tfdist: {b} failed first: exit code 137 after " in err
    assert "    tfdist: worker/1 failed first: killed by SIGKILL after " in err


@pytest.mark.chaos
@pytest.mark.long
def test_a_lost_task_restarts_both_hosts(jobs: Jobs) -> None:
    a, b = jobs.two.addresses
    code, out, err = jobs.run(
        f"--hosts {a},{b} --max-restarts 1 --restart-delay 0.01",
        """
wait_for(2 * int(attempt))
if attempt == "1":
    if name == "worker/1":
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(1000)
print("attempt", attempt)
""",
    )
    assert code == 0, err
    ends = sorted(line for line in out if "attempt" in line)
    assert ends == [f"{a} | worker/0 | attempt 2", f"{b} | worker/1 | attempt 2"]
    assert "tfdist: starting all tasks again in 0.01 s (restart 1 of 1)" in err


@pytest.mark.cluster
def test_a_host_that_is_off_is_named_and_waited_for(jobs: Jobs) -> None:
    a, b = jobs.two.addresses
    process = jobs.start(
        f"--hosts {a},{b} --max-restarts 1 --restart-delay 0.01 --grace 1",
        """
wait_for(2 * int(attempt))
if attempt == "1":
    time.sleep(1000)
""",
    )
    jobs.until_up(2)
    jobs.two.power_off(1)
    assert process.stderr is not None
    said = []
    for line in process.stderr:
        said.append(line)
        if "cannot be reached" in line:
            break
    jobs.two.power_on(1)
    _, err = process.communicate(timeout=SOON)
    assert process.returncode == 0, said + [err]
    assert said[-1].startswith(f"tfdist: {b} cannot be reached (ssh: ")
    assert said[-1].endswith("; waiting for it, 300 s at most\n")
    assert "(restart 1 of 1)" in "".join(said)


@pytest.mark.cluster
def test_a_host_that_stays_off_ends_the_job(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = jobs.two.addresses
    monkeypatch.setenv("TFDIST_WAIT", "3")
    process = jobs.start(
        f"--hosts {a},{b} --max-restarts 5 --restart-delay 0.01 --grace 1", "time.sleep(1000)"
    )
    jobs.until_up(2)
    jobs.two.power_off(1)
    try:
        _, err = process.communicate(timeout=SOON)
        assert process.returncode == 138
        assert err.count("starting all tasks again") == 1
        assert err.endswith(
            f"tfdist: {b} did not come back within 3 s; start it, or set TFDIST_WAIT\n"
        )
    finally:
        jobs.two.power_on(1)


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (signal.SIGINT, 130),
        pytest.param(signal.SIGTERM, 143, marks=[pytest.mark.chaos, pytest.mark.long]),
        (signal.SIGKILL, -9),
    ],
)
def test_no_process_outlives_the_launcher(jobs: Jobs, number: int, expected: int) -> None:
    a, b = jobs.two.addresses
    process = jobs.start(
        f"--hosts {a},{b}",
        """
def save(*_):
    mark("saved")
    sys.exit(143)
signal.signal(signal.SIGTERM, save)
mark("ready")
while True: time.sleep(1000)
""",
    )
    wait(lambda: jobs.marks.exists() and jobs.marks.read_text().count("ready") == 2, "tasks")
    process.send_signal(number)
    out, _ = process.communicate(timeout=SOON)
    assert process.returncode == expected
    wait(lambda: not jobs.two.left(), "all processes to end")
    assert jobs.marks.read_text().count("saved") == 2
    if number != signal.SIGKILL:  # What the other side says at its end comes through.
        assert f"{b} | tfdist: SIGTERM: ending all tasks" in out


@pytest.mark.chaos
@pytest.mark.long
def test_a_lost_connection_ends_the_job(jobs: Jobs) -> None:
    a, b = jobs.two.addresses
    process = jobs.start(f"--hosts {a},{b}", "time.sleep(1000)")
    jobs.until_up(2)
    (ssh,) = (p for p in jobs.two.processes(0) if p.name() == "ssh" and b in p.cmdline())
    ssh.kill()
    out, err = process.communicate(timeout=SOON)
    assert process.returncode == 138
    assert f"{b} | tfdist: the connection to {b} was lost; its tasks end there" in out
    assert f"tfdist: {b} failed first: exit code 137" in err


@pytest.mark.cluster
def test_a_host_that_cannot_be_reached_is_one_line(jobs: Jobs) -> None:
    a, b = jobs.two.addresses
    for flags, line in (
        (
            ["--ssh", jobs.two.ssh(), "--hosts", f"{a},nobody.invalid"],
            "nobody.invalid cannot be reached (ssh: Could not resolve ",
        ),
        (
            ["--ssh", jobs.two.ssh("stranger"), "--hosts", b],
            f"{b} cannot be reached (root@{b}: Permission denied (publickey)",
        ),
    ):
        command = [sys.executable, "-m", "tfdist", "launch", *flags, "--", "true"]
        done = subprocess.run(
            jobs.two.command(0, *command), capture_output=True, text=True, timeout=SOON
        )
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith(f"tfdist: --hosts: {line}")
        assert done.stderr.endswith(" true` works, and asks for nothing\n")
        assert done.stderr.count("\n") == 1


@pytest.mark.cluster
def test_launchers_that_are_started_by_hand_make_one_cluster(jobs: Jobs) -> None:
    a, b = jobs.two.addresses
    meeting = f"--num-hosts 2 --rendezvous {a}:29400"
    code = "print(json.dumps(config))"
    first = jobs.start(f"--host-rank 0 {meeting} --chief 1 --ps 1", code)
    second = jobs.start(f"--host-rank 1 {meeting} --workers 2", code, host=1)
    seen = {}
    for process in (first, second):
        out, err = process.communicate(timeout=SOON)
        assert process.returncode == 0, err
        for line in out.splitlines():
            seen[line.partition(" | ")[0].strip()] = json.loads(line.partition(" | ")[2])
    assert set(seen) == {"chief/0", "ps/0", "worker/0", "worker/1"}
    clusters = {json.dumps(config["cluster"]) for config in seen.values()}
    (cluster,) = map(json.loads, clusters)
    assert [c.partition(":")[0] for c in cluster["chief"] + cluster["worker"]] == [a, b, b]


@pytest.mark.chaos
@pytest.mark.long
def test_two_hosts_train_as_one_does(jobs: Jobs) -> None:
    a, b = jobs.two.addresses
    job = str(Path(__file__).parents[1] / "chaos" / "tiny_job.py")
    ends = []
    for flags in (["--hosts", f"{a},{b}"], ["--workers", "2"]):
        command = [sys.executable, "-m", "tfdist", "launch", "--ssh", jobs.two.ssh(), *flags]
        done = subprocess.run(
            jobs.two.command(0, *command, "--cpus-per-task", "1", "--", "python", job),
            capture_output=True,
            text=True,
            timeout=5 * SOON,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        ends.append(re.findall(r"\| END (\d+ \w+)", done.stdout))
    print(ends)
    assert len(set(ends[0] + ends[1])) == 1 and len(ends[0]) == len(ends[1]) == 2


@pytest.mark.chaos
@pytest.mark.long
def test_a_wire_that_is_cut_ends_the_job_on_both_sides(jobs: Jobs) -> None:
    a, b = jobs.two.addresses
    process = jobs.start(f"--hosts {a},{b}", "time.sleep(1000)")
    jobs.until_up(2)
    jobs.two.cut()
    try:
        _, err = process.communicate(timeout=2 * SOON)  # ssh asks for 30 s,
        assert process.returncode == 138
        assert f"tfdist: {b} failed first: exit code 137" in err
        end = time.monotonic() + 3 * SOON  # and the launcher there listens for 60 s.
        tasks = ("script.py", "--managed")
        while any(w in " ".join(p.cmdline()) for p in jobs.two.processes(1) for w in tasks):
            assert time.monotonic() < end
            time.sleep(0.5)
    finally:
        jobs.two.mend()


def test_hosts_are_read() -> None:
    assert read_hosts("a, me@b:2,[fd00::1]:4,10.0.0.1") == [
        Host("a", "", 1),
        Host("b", "me", 2),
        Host("[fd00::1]", "", 4),
        Host("10.0.0.1", "", 1),
    ]
    assert [host.login for host in read_hosts("me@[fd00::1],b")] == ["me@fd00::1", "b"]
    assert len(read_hosts("127.0.0.1,127.0.0.2")) == 2


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", "'' is not a host with a number of workers; give names such as a, user@b:2 or "),
        ("a,,b", "'' is not a host"),
        ("a:0", "'a:0' is not a host"),
        ("a:x", "'a:x' is not a host"),
        ("a:99999", "'a:99999' is not a host"),
        ("fd00::1", "'fd00::1' is not a host"),
        ("[fd00::1", "is not a host"),
        ("[zz]", "'[zz]' is not the name of a host"),
        ("-oProxyCommand=x", "'-oProxyCommand=x' is not the name of a host"),
        ("-l@a", "'-l@a' is not a host"),
        ("a b", "'a b' is not the name of a host"),
        ("a;b", "'a;b' is not the name of a host"),
        ("a,b,A:2", "A is named twice; give it once, with all its workers"),
        ("localhost,b", "localhost is another machine to each of the others; give its name there"),
    ],
)
def test_hosts_that_are_none(text: str, line: str) -> None:
    with pytest.raises(ConfigError, match=f"^--hosts: .*{re.escape(line)}"):
        read_hosts(text)


@pytest.mark.parametrize(
    ("script", "line"),
    [
        ("exec sleep 1000", "a did not answer within 0.5 s; see that `sh -c"),
        ("echo broken >&2; exit 255", "a cannot be reached (broken); see that `sh -c"),
        ("exit 255", "a cannot be reached (exit code 255)"),
        (
            "echo no python >&2; exit 127",
            f"a cannot run tfdist (no python); it needs {sys.executable}",
        ),
        ("echo tfdist 0.0.0 5", "a has tfdist 0.0.0, and this machine "),
        ("echo", "a cannot run tfdist (exit code 0)"),
    ],
)
def test_what_a_host_may_answer(monkeypatch: pytest.MonkeyPatch, script: str, line: str) -> None:
    monkeypatch.setattr(launcher, "_ANSWER_SECONDS", 0.5 if "sleep" in script else SOON)
    with pytest.raises(ConfigError) as caught:
        launcher._greet([Host("a", "", 1)], ["sh", "-c", script])
    assert str(caught.value).startswith(f"--hosts: {line}") and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        ("--hosts a --workers 2 -- true", "launch: --hosts and --workers exclude each other"),
        ("--hosts a --rendezvous b:1 -- true", "launch: --hosts and --rendezvous exclude"),
        ("--hosts a --spec x -- true", "launch: --hosts and --spec exclude each other"),
        ("--hosts a", "launch: no command given"),
        ("--hosts a --ssh= -- true", "--ssh: no such command: ''; install OpenSSH"),
        ("--hosts a --ssh no-such -- true", "--ssh: no such command: 'no-such'"),
        ("--hosts a --ssh ' -- true", '--ssh: "\'" cannot be read (No closing quotation)'),
        ("--host-rank 0 --workers 1 -- true", "launch: --host-rank needs --num-hosts; give "),
        ("--host-rank 0 --num-hosts 1 --rendezvous a:1 -- true", "launch: no tasks are given for"),
        (
            "--host-rank 2 --num-hosts 2 --rendezvous a:1 --workers 1 -- true",
            "--host-rank: 2 is given; allowed: 0 to 1",
        ),
        (
            "--host-rank 0 --num-hosts 0 --rendezvous a:1 --workers 1 -- true",
            "--host-rank: 0 is given; allowed: none, as --num-hosts is 0",
        ),
        (
            "--host-rank 0 --num-hosts 1 --rendezvous a --workers 1 -- true",
            "--rendezvous: 'a' has no port",
        ),
        (
            "--managed --host-rank 0 --num-hosts 1 --rendezvous a:1 --workers 1 -- true",
            "--managed: standard input holds no variables",
        ),
    ],
)
def test_flags_that_do_not_fit_are_one_line(
    flags: str, line: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from tfdist.cli import main

    with open(os.devnull) as nothing:
        monkeypatch.setattr(sys, "stdin", nothing)
        assert main(["launch", *flags.split()]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"tfdist: {line}") and said.count("\n") == 1

"""The task that failed first is the one that is named, whatever the others say about it."""

from __future__ import annotations

import random
import re
import signal

import pytest

from tests.chaos.harness import JOB, Programs, python, size

pytestmark = [pytest.mark.chaos, pytest.mark.cluster]

# What goes wrong first, and what the report must say of it.
FIRST = {
    "exit 1": ("sys.exit(1)", "exit code 1"),
    "exit 7": ("sys.exit(7)", "exit code 7"),
    "exit 2": ("sys.exit(2)", "exit code 2"),
    "exception": ("raise ValueError('of its own')", "exit code 1"),
    "memory": ("raise MemoryError", "exit code 1"),
    "assertion": ("assert me == -1, 'broken'", "exit code 1"),
    "hard exit": ("os._exit(3)", "exit code 3"),
    "SIGKILL": ("os.kill(os.getpid(), signal.SIGKILL)", "killed by SIGKILL"),
    "SIGSEGV": ("ctypes.string_at(0)", "killed by SIGSEGV"),
    "SIGABRT": ("os.abort()", "killed by SIGABRT"),
    "SIGTERM": ("os.kill(os.getpid(), signal.SIGTERM)", "killed by SIGTERM"),
    "SIGBUS": ("os.kill(os.getpid(), signal.SIGBUS)", "killed by SIGBUS"),
}

# Each task listens; all are connected to all. A task whose connection breaks complains.
SCRIPT = """
import ctypes, json, os, random, select, signal, socket, sys, time
config = json.loads(os.environ["TF_CONFIG"])
me = config["task"]["index"]
peers = config["cluster"]["worker"]
def place(index):
    host, port = peers[index].split(":")
    return host, int(port)
server = socket.create_server(place(me))
calls = []
for index in range(me):
    while True:
        try:
            calls.append(socket.create_connection(place(index)))
            break
        except OSError:
            time.sleep(0.02)
calls += [server.accept()[0] for _ in range(len(peers) - 1 - me)]
for call in calls:
    call.sendall(b"x")
for call in calls:
    assert call.recv(1) == b"x"  # All are there.
if me == VICTIM:
    time.sleep(0.2)
    print("FAULT", flush=True)
    FIRST
select.select(calls, [], [])
time.sleep(DELAY)
COMPLAIN
"""
COMPLAINTS = (
    "sys.exit(138)",
    "print('peer lost'); sys.exit(138)",
    "signal.pause()",  # It waits until it is ended.
    "signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(1000)",
)


@pytest.mark.parametrize("trial", range(size(4, 27)))
def test_the_first_failure_is_named(programs: Programs, trial: int) -> None:
    generator = random.Random(f"causes {trial}")
    count = generator.randint(2, 4)
    victim = generator.randrange(count)
    what, expected = FIRST[list(FIRST)[(trial * 5) % len(FIRST)]]
    code = SCRIPT
    for name, text in {
        "VICTIM": str(victim),
        "FIRST": what,
        "DELAY": str(generator.choice([0.0, 0.0, 0.3])),
        "COMPLAIN": generator.choice(COMPLAINTS),
    }.items():
        code = code.replace(name, text)
    job = programs.launch(f"--workers {count} --grace 1", ["python", "-c", code])
    job.tasks()
    assert job.end() != 0
    assert job.find(rf"^worker/{victim} \| FAULT"), f"no fault\n{job.text()}"
    (report,) = job.find("failed first")
    assert report.startswith(f"tfdist: worker/{victim} failed first: {expected}"), job.text()


@pytest.mark.parametrize("trial", range(size(1, 3)))
def test_the_first_failure_is_named_with_tensorflow(programs: Programs, trial: int) -> None:
    """Here the survivors' complaints are TensorFlow's own."""
    victim = (trial + 1) % 2
    job = programs.launch("--workers 2 --grace 2", [*python(), JOB], PAUSE="0.2", STEPS="1000")
    job.until("STEP 11")
    job.kill(f"worker/{victim}", signal.SIGKILL)
    assert job.end() == 138, job.text()
    (report,) = job.find("failed first")
    assert re.match(rf"tfdist: worker/{victim} failed first: killed by SIGKILL after", report)


def test_workers_that_make_different_calls_are_told_so(programs: Programs) -> None:
    """Starting again would not help: the exit code says so."""
    job = programs.launch("--workers 2", [*python(), JOB], FAULTS="apart", VICTIMS="1", EPOCHS="1")
    job.until("FAULT apart")
    assert job.end() == 1, job.text()
    assert job.find(r"tfdist: worker/\d: the workers do not make the same calls \(")

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.peers import environments, measure, speeds
from benchmarks.peers.contenders import COMPARISONS, Comparison, Contender
from benchmarks.peers.slow_link import LinkSpeed, two_hosts
from tfdist.errors import TfdistError

FOLDER = Path(measure.__file__).parent


def functions(file: str) -> set[str]:
    tree = ast.parse((FOLDER / file).read_text())
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_every_contender_has_a_program():
    for comparison in COMPARISONS:
        assert comparison.model in measure.LENGTHS
        for contender in comparison.contenders:
            file = measure._PROGRAMS.get(contender.environment, "work.py")
            assert contender.program in functions(file), contender


def test_names_are_single():
    assert len({each.name for each in COMPARISONS}) == len(COMPARISONS)
    for comparison in COMPARISONS:
        names = [each.name for each in comparison.contenders]
        assert len(set(names)) == len(names)


@pytest.mark.cluster
@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("tc"), reason="needs root and iproute2")
def test_two_hosts_have_the_stated_link():
    listen = "import socket; s = socket.create_server(('', 7)); c = s.accept()[0]\n"
    receive = "while c.recv(1 << 20): pass\nc.send(b'.')"
    send = (
        "import socket, sys, time; s = socket.socket()\n"
        "while s.connect_ex((sys.argv[1], 7)): s.close(); s = socket.socket(); time.sleep(0.1)\n"
        "t = time.time(); s.sendall(bytes(2_000_000)); s.shutdown(1); s.recv(1)\n"
        "print(time.time() - t)"
    )
    with two_hosts(LinkSpeed("20mbit", "5ms")) as (first, second):
        other = subprocess.Popen([*second.enter, sys.executable, "-c", listen + receive])
        try:
            command = [*first.enter, sys.executable, "-c", send, second.address]
            said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
        finally:
            other.kill()
            other.wait()
    # 16 million bits, some of which pass at once.
    assert float(said.stdout) > 0.6
    left = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout
    assert f"tfdist-{os.getpid()}" not in left


MADE = Comparison(
    "made", "what is compared", "small", "sgd", "rows", (Contender("a", ""), Contender("b", "")), 10
)


def test_the_table_has_medians_and_ratios_of_rounds():
    text = speeds.table(MADE, {"a": [1.0, 2.0, 4.0], "b": [2.0, 3.0, 4.0]})
    first, second = (line.split() for line in text.splitlines()[2:])
    assert first == ["a", "20", "10", "40", "1.00"]
    assert second == ["b", "30", "20", "40", "1.50"]


def test_the_plot_is_a_picture(tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "peers.png"
    speeds.plot({"made": {"a": [1.0, 2.0], "b": [2.0, 3.0]}}, [MADE], path)
    assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.cluster
@pytest.mark.long
def test_keras_and_tfdist_are_timed_in_turn(tmp_path):
    contenders = (Contender("Keras fit", "keras_fit"), Contender("tfdist", "tfdist_fit"))
    comparison = Comparison("small", "", "small", "sgd", "steps", contenders)
    lines = []
    found = measure.measure(comparison, 1, tmp_path, length=measure.Length(1, 3), say=lines.append)
    assert [len(values) for values in found.values()] == [1, 1]
    assert all(value > 0 for values in found.values() for value in values)
    assert [line.split("  ")[1].split(":")[0] for line in lines] == ["Keras fit", "tfdist"]


@pytest.mark.cluster
def test_a_run_that_fails_shows_its_last_lines(tmp_path):
    comparison = Comparison("small", "", "small", "sgd", "steps", (Contender("x", "missing"),))
    with pytest.raises(TfdistError, match="KeyError: 'missing'"):
        measure.measure(comparison, 1, tmp_path, length=measure.Length(1, 1))


def test_tfdist_runs_in_the_environment_that_measures(tmp_path):
    assert environments.python_of("own", tmp_path) == sys.executable


def test_an_interrupt_leaves_what_was_measured(monkeypatch, tmp_path):
    seconds = iter([1.0, 2.0, 4.0])

    def run(*args):
        try:
            return next(seconds)
        except StopIteration:
            raise KeyboardInterrupt from None

    monkeypatch.setattr(measure, "_seconds", run)
    lines: list[str] = []
    found = measure.measure(MADE, 5, tmp_path, length=measure.Length(1, 4), say=lines.append)
    assert found == {"a": [4.0], "b": [2.0, 1.0]}  # The second round goes the other way.
    assert lines[-1] == "interrupted; what was measured so far:"
    first, second = (line.split() for line in speeds.table(MADE, found).splitlines()[2:])
    assert (first[-1], second[-1]) == ("1.00", "0.50")
    with pytest.raises(KeyboardInterrupt):
        measure.measure(MADE, 5, tmp_path, length=measure.Length(1, 4))

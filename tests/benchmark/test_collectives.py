"""What `tfdist bench collectives` counts, checks and writes; short runs with real workers."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from tests import forked
from tests.collectives.ring.conftest import Workers
from tfdist.benchmark import hardware
from tfdist.benchmark.collectives import figures
from tfdist.benchmark.collectives import measure as collectives
from tfdist.benchmark.collectives.cells import (
    OPERATIONS,
    RAW,
    SIZES,
    Cell,
    Row,
    bus_factor,
    cells,
    missing,
)
from tfdist.benchmark.collectives.exercise import Numbers, of_ring, of_socket
from tfdist.benchmark.collectives.sockets import RawSocket
from tfdist.benchmark.processes import Group
from tfdist.cli import main
from tfdist.errors import ConfigError, PeerError, TfdistError
from tfdist.launcher.ports import free_ports
from tfdist.scaling.network import Link, read_link, ring_seconds

ROOT = Path(__file__).parents[2]
ALL_REDUCE = Cell("all_reduce", "ring")


@pytest.mark.parametrize(
    ("operation", "of_two", "of_eight"),
    [
        ("all_reduce", 1.0, 1.75),
        ("all_gather", 0.5, 0.875),
        ("reduce_scatter", 0.5, 0.875),
        ("gather", 0.5, 0.875),
        ("scatter", 0.5, 0.875),
        ("broadcast", 1.0, 1.0),
        ("socket", 1.0, 1.0),
    ],
)
def test_bus_bandwidth_is_that_of_nccl_tests(operation, of_two, of_eight):
    assert bus_factor(operation, 2) == of_two
    assert bus_factor(operation, 8) == of_eight


def test_a_row_has_the_bandwidths():
    row = Row(Cell("all_reduce", "ring", "bfloat16"), 8_000_000, 2e-3, 1e-3, 5, 8)
    assert row.algorithm_bandwidth == pytest.approx(4e9)
    assert row.bus_bandwidth == pytest.approx(7e9)
    assert row.best_wire_bandwidth == pytest.approx(7e9)
    assert Row.from_dict(json.loads(json.dumps(row.to_dict()))) == row


def test_cells_are_what_there_is():
    found = cells()
    assert {cell.operation for cell in found if cell.transport == "ring"} == set(OPERATIONS)
    assert [cell for cell in found if cell.transport == "memory"] == [Cell("all_reduce", "memory")]
    assert {cell.operation for cell in found if cell.wire_type != "float32"} == {"all_reduce"}
    assert missing(found) == [
        "memory has no all_gather, reduce_scatter, broadcast, gather, scatter",
        "tensorflow has no reduce_scatter, gather, scatter",
    ]
    with pytest.raises(ConfigError, match="has none of gather"):
        cells(["gather"], ["tensorflow"])
    assert (SIZES[0], SIZES[-1]) == (1024, 256 << 20)


@pytest.mark.parametrize("workers", [2, 3, 7, 84])
def test_sums_are_exact_in_sixteen_bits(workers):
    numbers = Numbers(workers)
    assert numbers.exact
    total = np.sum([numbers.of(rank, 1000) for rank in range(workers)], axis=0)
    assert np.array_equal(total, numbers.total(1000))
    assert np.array_equal(total, total.astype(ml_dtypes.bfloat16).astype(np.float32))
    assert not np.array_equal(numbers.of(0, 1000), numbers.of(1, 1000))


def test_many_workers_are_not_exact():
    assert not Numbers(200).exact


@pytest.fixture(scope="module")
def rings():
    made = {size: Workers(size) for size in (2, 3)}
    for workers in made.values():
        workers.each(lambda ring: ring.share_memory())
    yield made
    for workers in made.values():
        workers.close()


RING_CELLS = cells(transports=["ring", "memory"])


@pytest.mark.parametrize("cell", RING_CELLS, ids=str)
@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("size", [40, 1000, 400_000])
def test_results_of_the_ring_are_right(rings, cell, count, size):
    def exercise(ring):
        made = of_ring(ring, cell, size)
        right = []
        for _ in range(2):
            made.fill()
            right.append(made.is_right(made.call()))
        return made.size, right

    for found, right in rings[count].each(exercise):
        assert right == [True, True]
        assert found <= size < found + 4 * count


@pytest.mark.parametrize("cell", RING_CELLS, ids=str)
def test_a_wrong_result_is_found(rings, cell):
    def exercise(ring):
        made = of_ring(ring, cell, 100_000)
        made.fill()
        found = made.call()
        for array in found if isinstance(found, list) else [found]:
            array[-1] += 1
        return made.is_right(found)

    wrong = rings[2].each(exercise)
    # A gather has a result on one worker only.
    assert wrong == ([False, True] if cell.operation == "gather" else [False, False])


def test_raw_sockets_send_both_ways():
    ahead, back = socket.socketpair(), socket.socketpair()
    ends = [RawSocket(ahead[0], back[1]), RawSocket(back[0], ahead[1])]

    def act(rank):
        made = of_socket(ends[rank], rank, 2, 3_000_000)
        made.fill()
        return made.is_right(made.call())

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(act, range(2))) == [True, True]
    ends[0].close()
    with pytest.raises(ConnectionError, match="a neighbour closed its connection"):
        ends[1].exchange(np.zeros(0, np.uint8), np.zeros(10, np.uint8))
    ends[1].close()


LINK = Link(50e-6, 2e9)


def rows(workers=2, cell=ALL_REDUCE):
    return [
        Row(cell, size, ring_seconds(size, workers, LINK), size / 1e9, 3, workers)
        for size in SIZES[:4]
    ]


def raw_rows():
    return [Row(RAW, size, size / 4e9, size / 5e9, 3, 2) for size in SIZES[:4]]


def test_the_table_has_a_line_a_cell_and_a_column_a_size():
    text = figures.table([*raw_rows(), *rows()])
    assert "median time, µs" in text and "algorithm bandwidth, GB/s" in text
    heading, raw, ring = text.splitlines()[1:4]
    assert heading.split() == ["1", "KB", "4", "KB", "16", "KB", "64", "KB"]
    assert raw.split()[-4:] == ["0.256", "1.024", "4.096", "16.38"]
    assert ring.split()[:3] == ["all_reduce,", "ring", "100.5"]
    # The fastest calls, at 1 and 5 GB/s.
    assert "100 %" in text and " 20 %" in text
    assert "ring: all-reduce as by latency 50 µs and 2 GB/s, off by 0 % at most" in text
    assert figures.table([]) == "nothing was measured"


def test_plan_reads_the_fitted_link(tmp_path):
    path = tmp_path / "network.json"
    path.write_text(json.dumps(figures.to_dict([*raw_rows(), *rows()], hardware.describe())))
    link = read_link(str(path), "ring")
    assert link.latency == pytest.approx(LINK.latency)
    assert link.bandwidth == pytest.approx(LINK.bandwidth)


def test_the_plot_is_a_picture(tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "collectives.png"
    figures.plot([*raw_rows(), *rows()], "made", path)
    assert path.read_bytes().startswith(b"\x89PNG")


def test_the_hardware_is_described():
    described = hardware.describe()
    assert described["cores"].endswith(f"of {os.cpu_count()}")
    assert set(described) >= {"date", "processor", "memory", "python", "tensorflow", "numpy"}


TWO = {"worker": ["127.0.0.1:1", "127.0.0.1:2"]}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--workers 1", "bench collectives(--workers): 1 is given; allowed: 2 or more"),
        ("--workers x", "bench collectives: argument --workers: 'x' is not an integer"),
        ("--sizes 1T", "bench collectives: argument --sizes: '1T' is not a size like 64K"),
        (
            "--json /none/x",
            "bench collectives: argument --json: '/none/x' cannot be written",
        ),
        (
            "--plot /none/x",
            "bench collectives: argument --plot: '/none/x' cannot be written",
        ),
        ("--sizes 3", "bench collectives: argument --sizes: '3' is not a size like 64K"),
        ("--operations sum", "bench collectives: argument --operations: 'sum' is given"),
        (
            "--operations gather --transports tensorflow",
            "bench collectives: tensorflow with float32, bfloat16, float16 has none of gather",
        ),
    ],
)
def test_mistakes_are_one_line(words, message, capsys):
    assert main(["bench", "collectives", *words.split()]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"tfdist: {message}")
    assert captured.err.count("\n") == 1


def test_a_cluster_has_its_own_number_of_workers(monkeypatch, capsys):
    config = {"cluster": TWO, "task": {"type": "worker", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))
    assert main(["bench", "collectives", "--workers", "2"]) == 2
    assert "--workers): 2 is given in a cluster (from TF_CONFIG) of 2" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code"), [(KeyboardInterrupt(), 130), (PeerError("lost worker/1"), 138)]
)
def test_what_was_measured_is_printed_where_it_breaks_off(
    monkeypatch, capsys, tmp_path, error, code
):
    def measure(workers, chosen, sizes, seconds, take):
        for row in [*raw_rows(), *rows()]:
            take(row)
        raise error

    monkeypatch.setattr(collectives, "measure_locally", measure)
    path = tmp_path / "found.json"
    assert main(["bench", "collectives", "--json", str(path)]) == code
    out = capsys.readouterr().out
    assert "bus bandwidth, GB/s" in out and "processor" in out.splitlines()[0]
    assert len(json.loads(path.read_text())["rows"]) == 8


class Ended:
    def __init__(self, code):
        self.code = code

    def poll(self):
        return self.code


@pytest.mark.parametrize(
    ("codes", "kind", "message"),
    [
        ((138, -9), PeerError, "lost worker/1: ended by SIGKILL"),
        ((-11, 138), PeerError, "lost worker/0: ended by SIGSEGV"),
        ((138, 138), PeerError, "bench collectives: it said 0"),
        ((138, 1), TfdistError, "worker/1 ended with code 1: it said 1"),
        ((2, 138), ConfigError, "^it said 0$"),
    ],
)
def test_the_worker_that_ended_first_is_named(tmp_path, codes, kind, message):
    for index in range(2):
        (tmp_path / f"worker-{index}.log").write_text(f"more\ntfdist: it said {index}\n")
    processes = {f"worker-{index}": Ended(code) for index, code in enumerate(codes)}
    with pytest.raises(kind, match=message):
        raise collectives._failure(Group(tmp_path, tmp_path / "result.json", processes))


SHORT = ["--sizes", "1K", "256K", "--seconds", "0.01", "--wire-types", "float32", "bfloat16"]


def command(*arguments):
    return [sys.executable, "-m", "tfdist", "bench", "collectives", *arguments]


def environment(**more):
    return os.environ | {"PYTHONPATH": str(ROOT)} | more


@pytest.mark.cluster
def test_two_processes_measure_everything(tmp_path):
    path = tmp_path / "found.json"
    done = subprocess.run(
        command(*SHORT, "--json", str(path)),
        capture_output=True,
        text=True,
        env=environment(),
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(path.read_text())
    measured = {(row["operation"], row["transport"], row["wire_type"]) for row in found["rows"]}
    wanted = cells(wire_types=["float32", "bfloat16"])
    assert measured == {(c.operation, c.transport, c.wire_type) for c in (RAW, *wanted)}
    assert len(found["rows"]) == 2 * (1 + len(wanted))
    # On a busy machine the larger array may be the faster one: no link then.
    assert set(found["links"]) <= {"ring", "memory", "tensorflow"}
    assert all(row["seconds"] > 0 and row["calls"] >= 3 for row in found["rows"])


@pytest.mark.cluster
def test_the_tasks_of_a_cluster_measure(tmp_path):
    cluster = {"worker": [f"127.0.0.1:{port}" for port in free_ports(2)]}
    processes = []
    for index in range(2):
        config = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": index}})
        processes.append(
            forked.Popen(
                command("--sizes", "1K", "--seconds", "0.01", "--transports", "ring"),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=environment(TF_CONFIG=config),
            )
        )
    (first, err), (second, _) = [process.communicate(timeout=300) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], err
    assert "2 tasks, from TF_CONFIG" in first and "bus bandwidth" in first
    assert second == ""


def children(pid):
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.cluster
@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGKILL, marks=pytest.mark.long)]
)
def test_it_survives_with_what_it_has(number):
    """Ctrl-C ends it; a worker that is killed is named."""
    process = subprocess.Popen(
        command("--sizes", *["1K"] * 200, "--transports", "ring", "--seconds", "0.05"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    said = []
    reader = threading.Thread(target=lambda: said.extend(process.stdout))
    reader.start()
    until = time.monotonic() + 200
    while len(said) < 20:
        assert process.poll() is None and time.monotonic() < until, process.stderr.read()
        time.sleep(0.05)
    workers = children(process.pid)
    os.kill(process.pid if number == signal.SIGINT else workers[1], number)
    code = process.wait(60)
    reader.join()
    err = process.stderr.read()
    process.stderr.close()
    process.stdout.close()
    assert code == (130 if number == signal.SIGINT else 138), err
    assert "median time, µs\n" in said
    if number == signal.SIGKILL:
        assert err.startswith("tfdist: bench collectives: lost worker/1: ended by SIGKILL")
    assert not any(Path(f"/proc/{pid}").exists() for pid in workers)

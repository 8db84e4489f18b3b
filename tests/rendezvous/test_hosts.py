"""The launchers of several machines agree, as threads here."""

from __future__ import annotations

import socket
import threading
from collections.abc import Sequence

import pytest

from tfdist.errors import ConfigError, PeerError
from tfdist.launcher.ports import free_ports
from tfdist.rendezvous import hosts
from tfdist.rendezvous.hosts import Agreed, Machine, agree

SOON = 30.0
Found = dict[str, Agreed | Exception]


@pytest.fixture
def address() -> str:
    return f"127.0.0.1:{free_ports(1)[0]}"


def together(machines: Sequence[Machine], timeout: float = SOON) -> Found:
    """What comes of each, by its rank, and its place in the list where two have one rank."""
    found: Found = {}

    def run(name: str, machine: Machine) -> None:
        try:
            found[name] = agree(machine, timeout)
        except Exception as error:
            found[name] = error

    threads = []
    for number, machine in enumerate(machines):
        name = f"{number}" if number == machine.rank else f"{number} as {machine.rank}"
        threads.append(threading.Thread(target=run, args=(name, machine), name=name))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * SOON)
        assert not thread.is_alive()
    return found


def test_all_are_given_the_cluster_in_the_order_of_the_hosts(address: str) -> None:
    ports: list[dict[str, list[int]]] = [
        {"worker": [5], "chief": [1], "ps": [9]},
        {"worker": [6, 7]},
        {"ps": [8], "worker": [4]},
    ]
    machines = [Machine(rank, 3, address, ports[rank]) for rank in range(3)]
    found = together(machines)
    jobs = {
        "chief": ["127.0.0.1:1"],
        "worker": ["127.0.0.1:5", "127.0.0.1:6", "127.0.0.1:7", "127.0.0.1:4"],
        "ps": ["127.0.0.1:9", "127.0.0.1:8"],
    }
    first = [{"worker": 0, "chief": 0, "ps": 0}, {"worker": 1}, {"ps": 1, "worker": 3}]
    assert found == {str(rank): Agreed(jobs, first[rank]) for rank in range(3)}
    agreed = found["2"]
    assert isinstance(agreed, Agreed) and list(agreed.jobs) == ["chief", "worker", "ps"]


def test_one_host_agrees_with_itself(address: str) -> None:
    assert together([Machine(0, 1, address, {"worker": [5]})]) == {
        "0": Agreed({"worker": ["127.0.0.1:5"]}, {"worker": 0})
    }


def test_who_does_not_come_is_named_on_all_hosts(address: str) -> None:
    found = together([Machine(rank, 4, address, {"worker": [5]}) for rank in (0, 1)], 1.0)
    line = f"hosts 2, 3 of 4 did not come to {address} within 1 s; start what is missing"
    for name in ("0", "1"):
        error = found[name]
        assert isinstance(error, PeerError) and "\n" not in str(error)
        assert line in str(error)


def test_host_0_is_waited_for(address: str) -> None:
    error = together([Machine(1, 2, address, {"worker": [5]})], 0.6)["0 as 1"]
    assert isinstance(error, PeerError)
    said = f"rendezvous: host 1 gave up after 0.6 s: host 0 at {address} cannot be reached "
    assert str(error) == said + "(Connection refused); start it, or set TFDIST_WAIT"


def test_a_host_that_goes_away_may_come_again(address: str) -> None:
    machines = [Machine(rank, 3, address, {"worker": [5]}) for rank in range(3)]
    found: Found = {}
    first = threading.Thread(target=lambda: found.update(together(machines[:1])))
    first.start()
    with pytest.raises(PeerError, match="has answered, and waits for others"):
        agree(machines[1], 1.0)
    assert all(isinstance(one, Agreed) for one in together(machines[1:]).values())
    first.join(SOON)
    assert isinstance(found["0"], Agreed)


@pytest.mark.parametrize(
    ("other", "line"),
    [
        (Machine(1, 3, "", {}), "--num-hosts: 3 is given here, and 2 on host 0"),
        (Machine(0, 2, "", {}), "--rendezvous: port"),
    ],
)
def test_numbers_that_do_not_fit_are_named_where_they_are_given(
    address: str, other: Machine, line: str
) -> None:
    others = [Machine(other.rank, other.hosts, address, {}), Machine(1, 2, address, {})]
    if other.rank == 0:
        with socket.create_server(("127.0.0.1", int(address.rpartition(":")[2]))):
            found = together(others[:1])
    else:
        found = together([Machine(0, 2, address, {}), *others[:1]], 2.0)
    error = found["0" if other.rank == 0 else "1"]
    assert isinstance(error, ConfigError) and line in str(error) and "\n" not in str(error)


def test_two_hosts_of_one_number(address: str) -> None:
    machines = [Machine(rank, 3, address, {"worker": [5]}) for rank in (0, 1, 1)]
    found = together(machines, 2.0)
    refused = [found[name] for name in ("1", "2 as 1") if isinstance(found[name], ConfigError)]
    assert len(refused) == 1
    line = "--host-rank: host 1 has come already at 127.0.0.1; give each its own number"
    assert line in str(refused[0])


def test_another_secret_is_let_in_nowhere(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts, "job_secret", lambda: threading.current_thread().name.encode())
    found = together([Machine(rank, 2, address, {"worker": [5]}) for rank in range(2)], 2.0)
    assert isinstance(found["1"], ConfigError)
    assert "has another TFDIST_SECRET, or none; give all hosts the same" in str(found["1"])
    assert isinstance(found["0"], PeerError)
    assert "host 1 of 2 did not come" in str(found["0"])
    assert "where 127.0.0.1 came with another TFDIST_SECRET" in str(found["0"])


GREETING = b"tfdist/4 " + b"c" * 32 + b"\n"
NOISE = [
    b"",
    b"\n",
    b"GET / HTTP/1.1\r\n\r\n",
    GREETING,
    GREETING + b"nonsense" * 5,
    GREETING + b"\0\0\0\2" + b"p" * 32 + b"{}",
    GREETING + b"\0\0\0\6" + b"p" * 32 + b"[3, 4]",
    GREETING + b"\xff" * 5000,
    b"tfdist/4 " + b"x" * 5000 + b"\n",
]


def test_noise_keeps_nobody_out(address: str) -> None:
    host, _, port = address.rpartition(":")
    done = threading.Event()

    def shout() -> None:
        while not done.is_set():
            for noise in NOISE:
                try:
                    with socket.create_connection((host, int(port)), timeout=1.0) as caller:
                        caller.sendall(noise)
                except OSError:
                    continue

    shouting = threading.Thread(target=shout)
    shouting.start()
    try:
        found = together([Machine(rank, 3, address, {"worker": [5]}) for rank in range(3)])
    finally:
        done.set()
        shouting.join(SOON)
    assert all(isinstance(one, Agreed) for one in found.values())


def test_another_program_in_the_place_of_host_0(address: str) -> None:
    host, _, port = address.rpartition(":")
    with socket.create_server((host, int(port))) as server:
        server.settimeout(0.2)
        done = threading.Event()

        def answer() -> None:
            while not done.is_set():
                try:
                    caller, _ = server.accept()
                except OSError:
                    continue
                with caller:
                    caller.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")

        answering = threading.Thread(target=answer)
        answering.start()
        try:
            error = together([Machine(1, 2, address, {})], 1.0)["0 as 1"]
        finally:
            done.set()
            answering.join(SOON)
    assert isinstance(error, PeerError) and f"host 0 at {address} " in str(error)

"""Whether an address leads to this machine."""

from __future__ import annotations

import asyncio
import socket

import pytest

from tfdist.cluster import Cluster
from tfdist.errors import ConfigError
from tfdist.launcher.ports import free_ports
from tfdist.rendezvous import own_address
from tfdist.rendezvous.own_address import check_own_address, check_own_port

ELSEWHERE = "198.51.100.7"  # Of a network that is for documentation.


def cluster(host: str, port: int = 0) -> Cluster:
    port = port or free_ports(1)[0]
    return Cluster.from_cluster_spec({"worker": [f"{host}:{port}"]})


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "localhost", "[::1]"])
def test_an_interface_of_this_machine_is_fine(host: str) -> None:
    assert check_own_address(cluster(host))


def test_another_machine_is_refused() -> None:
    with pytest.raises(ConfigError) as error:
        check_own_address(cluster(ELSEWHERE, 2222))
    assert str(error.value) == (
        f"cluster_spec: worker/0 has the address {ELSEWHERE}:2222, which does not lead to this "
        "machine; start worker/0 where it does, or give an address of this machine"
    )


def test_what_is_not_known_is_no_fault() -> None:
    assert not check_own_address(Cluster.local())
    assert not check_own_address(cluster("no-such-host.invalid"))
    tfjob = Cluster.from_cluster_spec({"worker": [f"{ELSEWHERE}:1"]}, task_type="evaluator")
    assert not check_own_address(tfjob)  # An evaluator that has no address.


def test_a_port_in_use_leaves_an_address_of_no_interface_open() -> None:
    with socket.create_server(("0.0.0.0", 0)) as taken:
        assert not check_own_address(cluster(ELSEWHERE, taken.getsockname()[1]))


def test_a_port_that_is_taken_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"port {port}, which cannot be used \\(Address"):
            check_own_port(cluster("127.0.0.1", port))
    check_own_port(cluster("127.0.0.1", port))
    check_own_port(Cluster.local())


def test_an_address_of_no_interface_may_lead_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """As that of a container's host does, which no test here can have."""
    monkeypatch.setattr(own_address, "_is_own", lambda place: False)
    assert check_own_address(cluster("127.0.0.1"))


def test_other_callers_are_not_taken_for_this_process() -> None:
    async def talk() -> list[bool]:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.setblocking(False)
            hearing = asyncio.create_task(own_address._hear(listener, b"own word"))
            done = []
            for word in (b"a peer's", b"own word"):
                reader, writer = await asyncio.open_connection(*listener.getsockname())
                writer.write(word)
                assert await reader.read() == b""  # The other side has heard it.
                writer.close()
                done.append(hearing.done())
            return done

    assert asyncio.run(asyncio.wait_for(talk(), 30)) == [False, True]

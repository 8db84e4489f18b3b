"""Only the neighbours get in, whoever else calls."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tfdist.collectives.ring import connections
from tfdist.collectives.ring.connections import connect, listen
from tfdist.collectives.ring.ring import Ring
from tfdist.errors import ConfigError
from tfdist.rendezvous import sockets
from tfdist.rendezvous.signed_connection import (
    CALLER,
    GREETING_BYTES,
    SignedConnection,
    derive_key,
)

SECRET = b"s" * 32


def join_all(size, secrets=None, seconds=10.0, host="127.0.0.1", before=None):
    """Connects all workers of a ring; returns their connections or errors."""
    listeners = [listen(host) for _ in range(size)]
    ports = [listener.getsockname()[1] for listener in listeners]
    if before is not None:
        before(ports)

    def join(rank):
        secret = SECRET if secrets is None else secrets[rank]
        try:
            place = (host, ports[(rank + 1) % size])
            return connect(rank, size, listeners[rank], place, secret, seconds=seconds)
        except OSError as error:
            return error

    try:
        with ThreadPoolExecutor(size) as pool:
            return list(pool.map(join, range(size)))
    finally:
        for listener in listeners:
            listener.close()


def close(found):
    for one in found:
        if isinstance(one, connections.Connections):
            for connection in one:
                connection.close()


def works(found):
    rings = [Ring(rank, len(found), one) for rank, one in enumerate(found)]
    arrays = [np.ones(3) for _ in rings]
    with ThreadPoolExecutor(len(rings)) as pool:
        list(pool.map(lambda ring: ring.all_reduce(arrays[ring.rank]), rings))
    for ring in rings:
        ring.close()
    return all((array == len(rings)).all() for array in arrays)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_neighbours_connect(host):
    if ":" in host:
        try:
            socket.create_server((host, 0), family=socket.AF_INET6).close()
        except OSError:
            pytest.skip("no IPv6 here")
    assert works(join_all(2, host=host))


def test_whoever_does_not_know_the_secret_stays_out(monkeypatch):
    monkeypatch.setattr(connections, "PROOF_SECONDS", 0.5)
    found = join_all(2, secrets=[SECRET, b"x" * 32], seconds=1.5)
    assert all(isinstance(one, OSError) for one in found)


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"GET / HTTP/1.1\r\n\r\n",
        bytes(73),
        os.urandom(73),
        os.urandom(100_000),
        b"tfdist/3 " + b"c" * 32 + b"\n" + bytes(3) + b"\x0c" + os.urandom(32) + b"[3, 2, 0, 0]",
    ],
    ids=["nothing", "http", "zeros", "noise", "much noise", "a wrong proof"],
)
def test_strangers_do_not_get_in_nor_in_the_way(said):
    calls = []

    def disturb(ports):
        for port in ports:
            call = socket.create_connection(("127.0.0.1", port))
            with contextlib.suppress(OSError):
                call.sendall(said)
            calls.append(call)

    found = join_all(3, before=disturb)
    assert works(found)
    for call in calls:
        call.close()


def test_an_answer_cannot_be_used_again():
    """The challenge is new for each caller."""
    challenges = set()

    def listen_to(ports):
        for _ in range(3):
            with socket.create_connection(("127.0.0.1", ports[0])) as call:
                call.settimeout(5)
                challenges.add(call.recv(GREETING_BYTES))

    with ThreadPoolExecutor(1) as pool:
        calls = []
        close(join_all(2, before=lambda ports: calls.append(pool.submit(listen_to, ports))))
        calls[0].result()
    assert len(challenges) == 3


@pytest.mark.parametrize(
    ("place", "secret", "is_taken"),
    [
        ([3, 2, 0, 0], SECRET, True),
        ([3, 2, 0, 1], SECRET, True),
        ([3, 2, 0, 0], b"t" * 32, False),
        ([4, 2, 0, 0], SECRET, False),
        ([3, 1, 0, 0], SECRET, False),
        ([3, 2, 1, 0], SECRET, False),
        ([3, 2, 0, 2], SECRET, False),
        ([3, 2, 0], SECRET, False),
        ("welcome", SECRET, False),
    ],
)
def test_a_proof_is_of_one_place_only(place, secret, is_taken):
    async def call(port):
        client = await sockets.connect([(socket.AF_INET, ("127.0.0.1", port))])
        with client:
            connection = SignedConnection(client, derive_key("ring", secret), CALLER)
            await connection.greet()
            await connection.send(place)
            try:
                return await connection.receive_proven() == "welcome"
            except ConnectionError:
                return False

    listener, following = listen("127.0.0.1"), listen("127.0.0.1")
    with listener, following, ThreadPoolExecutor(1) as pool:
        neighbour = following.getsockname()
        joining = pool.submit(connect, 0, 3, listener, neighbour, SECRET, seconds=1.5)
        called = asyncio.run(asyncio.wait_for(call(listener.getsockname()[1]), 30))
        with pytest.raises(OSError, match="worker 2 did not call in time"):
            joining.result()
    assert called is is_taken


def test_a_flood_of_strangers_does_not_keep_the_neighbour_out():
    stop = threading.Event()
    threads = []

    def flood(port):
        calls = []
        while not stop.is_set():
            with contextlib.suppress(OSError):
                calls.append(socket.create_connection(("127.0.0.1", port), timeout=1))
            if len(calls) > 150:
                calls.pop(0).close()
            time.sleep(0.0005)
        for call in calls:
            call.close()

    def begin(ports):
        for port in ports:
            threads.append(threading.Thread(target=flood, args=(port,)))
            threads[-1].start()
        time.sleep(0.3)

    try:
        found = join_all(2, seconds=20, before=begin)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert works(found)


def test_who_does_not_come_is_named_in_time():
    listener = listen("127.0.0.1")
    free = listen("127.0.0.1")
    place = free.getsockname()
    free.close()
    began = time.monotonic()
    with pytest.raises(OSError, match=r"worker 1 did not call in time"):
        connect(0, 2, listener, place, SECRET, seconds=1.0)
    listener.close()
    assert time.monotonic() - began < 5


def test_the_port_may_be_fixed(monkeypatch):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        base = probe.getsockname()[1]
    monkeypatch.setenv("TFDIST_RING_PORT", str(base - 1))
    listener = listen("127.0.0.1", 1)
    assert listener.getsockname()[1] == base
    listener.close()


@pytest.mark.parametrize("port", ["-1", "x", "70000", "0"])
def test_a_port_that_is_none_is_refused(monkeypatch, port):
    monkeypatch.setenv("TFDIST_RING_PORT", port)
    with pytest.raises(ConfigError, match=f"TFDIST_RING_PORT: '{port}' is given"):
        listen("127.0.0.1")


def test_the_ring_does_without_tensorflow():
    code = "import sys, tfdist.collectives.ring.ring; assert 'tensorflow' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)

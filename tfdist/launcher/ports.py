"""Finds free ports."""

from __future__ import annotations

import random
import socket
from pathlib import Path

_LOWEST = 10000


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """Returns ports that are free now.

    They lie below the range from which the kernel gives ports to outgoing
    connections, so that no connection takes one before its task starts, not
    even the task's own to a peer that is not there yet. Another process may
    still take one; the task then fails to bind.

    Args:
        count: How many.
        host: The address to bind to; "" for all interfaces.
    """
    below = _first_ephemeral_port()
    candidates = list(range(_LOWEST, below)) if below > _LOWEST + count * 10 else []
    # Its own generator: a program that seeds `random` would make launchers collide.
    random.SystemRandom().shuffle(candidates)
    held: list[socket.socket] = []
    try:
        while len(held) < count:
            holder = socket.socket()
            held.append(holder)
            try:
                holder.bind((host, candidates.pop() if candidates else 0))
            except OSError:
                held.pop().close()
        return [holder.getsockname()[1] for holder in held]
    finally:
        for holder in held:
            holder.close()


def _first_ephemeral_port() -> int:
    try:
        text = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text()
        return int(text.split()[0])
    except (OSError, ValueError, IndexError):
        return 32768

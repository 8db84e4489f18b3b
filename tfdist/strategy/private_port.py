"""Closes TensorFlow's port to other machines where all tasks of a cluster are on this one.

TensorFlow's server listens on all interfaces, whatever address it is given, and does whatever a
client asks, files included. See SECURITY.md.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

from tfdist.cluster import Cluster
from tfdist.cluster.address import is_loopback, split_address
from tfdist.runtime.log import LOGGER

_LOOPBACK = "lo"


def close_to_others(cluster: Cluster) -> bool:
    """Lets only this machine reach TensorFlow's port, where no other one needs it.

    Call it when TensorFlow's server has started. A socket that is bound to an interface takes what
    comes through that interface only (`man 7 socket`, SO_BINDTODEVICE; since Linux 5.7 without
    privileges). Where it cannot be bound, a warning names the interfaces that reach the port.

    Args:
        cluster: The cluster of this task.

    Returns:
        Whether other machines cannot reach the port.
    """
    addresses = [address for members in cluster.jobs.values() for address in members]
    own = cluster.task.address
    if own is None or not all(is_loopback(address) for address in addresses):
        return False
    _, port = split_address(own)
    listening = list(_listening_sockets(port))
    try:
        for one in listening:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, _LOOPBACK.encode() + b"\0")
    except (OSError, AttributeError) as error:
        LOGGER.warning(
            "%s: TensorFlow's port %d is open on %s to anyone who reaches it, and cannot be closed "
            "(%s); see SECURITY.md",
            *(cluster.task, port, ", ".join(_interfaces()), error),
        )
        return False
    finally:
        for one in listening:
            one.close()
    return bool(listening)


def _listening_sockets(port: int) -> Iterator[socket.socket]:
    """Yields this process' sockets that accept callers on a port, as copies to be closed."""
    folder = "/proc/self/fd"
    for name in os.listdir(folder) if os.path.isdir(folder) else ():
        try:
            if not os.readlink(f"{folder}/{name}").startswith("socket:"):
                continue
            copy = socket.socket(fileno=os.dup(int(name)))
        except OSError:
            continue  # Closed since.
        try:
            if (
                copy.family in (socket.AF_INET, socket.AF_INET6)
                and copy.type == socket.SOCK_STREAM
                and copy.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
                and copy.getsockname()[1] == port
            ):
                yield copy
                continue
        except OSError:
            pass
        copy.close()


def _interfaces() -> list[str]:
    """Returns the names of the interfaces that other machines may reach."""
    return [name for _, name in socket.if_nameindex() if name != _LOOPBACK] or ["all interfaces"]

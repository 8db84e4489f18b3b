"""Counts what this process sends over TCP."""

from __future__ import annotations

import os
import socket
import struct

# `tcpi_bytes_acked` of Linux' `struct tcp_info`.
_ACKED = struct.Struct("=Q")
_AT = 120


def bytes_sent() -> int:
    """Returns the bytes that peers have acknowledged, over all open connections."""
    total = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(name))) as copy:
                info = copy.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        except OSError:
            continue  # Closed since, or not of TCP.
        total += _ACKED.unpack_from(info, _AT)[0]
    return total

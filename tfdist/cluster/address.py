"""Reads, checks and compares `host:port` addresses."""

from __future__ import annotations

import ipaddress
import re
from typing import Any

from tfdist.validation import kind, quote, reject

_LABEL = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?", re.ASCII)
_PORT = re.compile(r"[0-9]+", re.ASCII)
_WANTED = "give 'host:port'"
# Below the kernel's ephemeral ports (from 32768), so no outgoing connection takes one.
_FIRST_PORT, MOST_PORTS, _PORTS_EACH = 20000, 12000, 16
_LOOPBACK_NAMES = ("localhost", "localhost.localdomain", "ip6-localhost")


def split_address(address: str) -> tuple[str, int]:
    """Splits a checked address into host, without the brackets of IPv6, and port."""
    host, _, port = address.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port)


def first_port(number: int, count: int) -> int:
    """Returns the first of some ports in a row, which every task derives from the same number.

    Args:
        number: A number of the job, such as its id; other jobs' ports are others, mostly.
        count: How many ports are needed, `MOST_PORTS` at most.
    """
    width = max(_PORTS_EACH, count)
    return _FIRST_PORT + number % (MOST_PORTS // width) * width


def join_address(host: str, port: int) -> str:
    """Returns `host:port`, with brackets around an IPv6 host."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def check_address(value: Any, where: str) -> str:
    """Returns `value` if it is an address that a peer can connect to.

    Args:
        value: The value in the configuration.
        where: The field that holds it, for the message.

    Raises:
        ConfigError: It is not `host:port` with a usable host and port.
    """
    if not isinstance(value, str):
        reject(where, f"{quote(value)} is {kind(value)}, not an address; {_WANTED}")
    if not value:
        reject(where, f"the address is empty; {_WANTED}")
    if "://" in value:
        reject(where, f"{quote(value)} is a URL; {_WANTED}, without a scheme")
    if value.startswith("["):
        host, closed, rest = value[1:].partition("]")
        if not closed:
            reject(where, f"{quote(value)} lacks the closing ]; write IPv6 as '[::1]:2222'")
        if not rest.startswith(":"):
            reject(where, f"{quote(value)} has no port; write IPv6 as '[::1]:2222'")
        port = rest[1:]
        _check_ipv6(host, value, where)
    elif value.count(":") > 1:
        reject(where, f"{quote(value)} is ambiguous; write IPv6 as '[::1]:2222'")
    else:
        host, colon, port = value.partition(":")
        if not colon:
            reject(
                where, f"{quote(value)} has no port; {_WANTED}, such as {quote(value + ':2222')}"
            )
        _check_host(host, value, where)
    _check_port(port, value, where)
    return value


def address_key(address: str) -> tuple[str, int]:
    """Returns a key that is the same for all spellings of one checked address."""
    host, port = split_address(address)
    host = host.lower().rstrip(".")
    if host in _LOOPBACK_NAMES:
        return "127.0.0.1", port
    try:
        return str(ipaddress.ip_address(host)), port
    except ValueError:
        return host, port


def is_loopback(address: str) -> bool:
    """Returns whether a checked address names this machine's loopback interface."""
    host, _ = address_key(address)
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _check_port(port: str, value: str, where: str) -> None:
    if not port:
        reject(where, f"{quote(value)} has no port after the colon; {_WANTED}")
    if not _PORT.fullmatch(port) or len(port) > 5 or not 1 <= int(port) <= 65535:
        reject(where, f"{quote(value)} has a bad port {quote(port)}; ports are 1 to 65535")


def _check_ipv6(host: str, value: str, where: str) -> None:
    try:
        parsed = ipaddress.IPv6Address(host)
    except ValueError:
        reject(where, f"{quote(value)} has no IPv6 address in its brackets; such as '[::1]:2222'")
    if parsed.is_unspecified:
        reject(where, f"{quote(value)} is a wildcard; give an address that peers can reach")


def _check_host(host: str, value: str, where: str) -> None:
    if not host:
        reject(where, f"{quote(value)} has no host before the colon; {_WANTED}")
    labels = host.removesuffix(".").split(".")
    if labels[-1].isdigit():
        try:
            parsed = ipaddress.IPv4Address(host)
        except ValueError:
            reject(where, f"{quote(value)} has a bad IPv4 address {quote(host)}; {_WANTED}")
        if parsed.is_unspecified:
            reject(where, f"{quote(value)} is a wildcard; give an address that peers can reach")
    elif len(host) > 253 or not all(_LABEL.fullmatch(label) for label in labels):
        reject(where, f"{quote(value)} has a bad host name {quote(host)}; {_WANTED}")

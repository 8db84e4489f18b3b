"""Times messages by the α–β model, whose α and β are known or measured.

A message of B bytes takes α + B/β seconds.

α is the latency of a link in seconds, β its bandwidth in bytes a second, of one direction of a link
that carries both at once. For collectives in this model see Thakur, Rabenseifner and Gropp,
"Optimization of Collective Communication Operations in MPICH" (2005), §3 and §4; for the ring,
Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations" (2009).
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tfdist.errors import ConfigError
from tfdist.validation import number, quote, reject

# A file of all sizes has a hundred thousand.
_MOST_CHARACTERS = 1 << 24


@dataclass(frozen=True)
class Link:
    """A link between two workers.

    Attributes:
        latency: α, in seconds.
        bandwidth: β, in bytes a second, one way.
    """

    latency: float
    bandwidth: float


# The rate is that of the standard or the data sheet, and what a program attains is less. The
# latency is of a message from program to program.
LINKS = {
    # IEEE 802.3ae: 10 Gbit/s. TCP through the kernel.
    "10gbe": Link(30e-6, 1.25e9),
    # InfiniBand EDR, 4 lanes of 25 Gbit/s. RDMA.
    "100gb_infiniband": Link(2e-6, 12.5e9),
    # NVLink 3 of an A100: 12 links of 25 GB/s each way. NCCL takes 3.4 µs for a hop of its ring
    # (src/graph/tuning.cc, ring, "Simple").
    "nvlink": Link(3.4e-6, 300e9),
}


def ring_bytes(size: float, workers: int) -> float:
    """Returns the bytes that each worker of a ring sends in an all-reduce of `size` bytes.

    It receives as many. Each of 2(N-1) steps sends an Nth of the array.
    """
    return 2 * (workers - 1) / workers * size


def ring_seconds(size: float, workers: int, link: Link, messages: int = 1) -> float:
    """Returns the time of an all-reduce by a ring: 2(N-1)α + 2(N-1)/N · size/β.

    Args:
        size: The bytes of the array.
        workers: N.
        link: The slowest link between two neighbours.
        messages: Into how many all-reduces the array is divided.

    Example:
        >>> round(1e3 * ring_seconds(102.5e6, 8, LINKS["10gbe"]), 1)
        143.9
    """
    return 2 * (workers - 1) * link.latency * messages + ring_bytes(size, workers) / link.bandwidth


def server_bytes(size: float, workers: int, servers: int) -> float:
    """Returns the bytes that each parameter server sends a step; it receives as many.

    Every worker fetches all weights and returns all gradients, `size` bytes each.
    """
    return workers / servers * size


def server_seconds(size: float, workers: int, servers: int, link: Link) -> float:
    """Returns the time in which all workers fetch weights, and then return gradients.

    The busiest link is a server's, or a worker's own where there are more servers than workers.

    Args:
        size: The bytes of the weights, and of the gradients.
        workers: Workers that step together.
        servers: Parameter servers, with an even part of the weights each.
        link: The link of each task.
    """
    busiest = max(size, server_bytes(size, workers, servers))
    return 2 * (link.latency + busiest / link.bandwidth)


def fit_link(points: Sequence[tuple[float, float]], workers: int) -> Link:
    """Returns the link that explains measured all-reduces of a ring best.

    Least squares of the relative errors, as the times of small and large arrays are several powers
    of ten apart.

    Args:
        points: Pairs of bytes and seconds, of two sizes or more.
        workers: The workers of the ring, two or more.

    Raises:
        ConfigError: The points do not make out a link: fewer than two sizes, or times that do not
            grow with the size.
    """
    hops = 2 * (workers - 1)
    # With a = hops/t and b = bytes sent/t, αa + (1/β)b is to be 1: the normal equations.
    rows = [(hops / t, ring_bytes(size, workers) / t) for size, t in points]
    aa = sum(a * a for a, _ in rows)
    bb = sum(b * b for _, b in rows)
    ab = sum(a * b for a, b in rows)
    a1, b1 = sum(a for a, _ in rows), sum(b for _, b in rows)
    determinant = aa * bb - ab * ab
    if determinant > 1e-12 * aa * bb:
        alpha, inverse = (a1 * bb - b1 * ab) / determinant, (b1 * aa - a1 * ab) / determinant
        if alpha < 0:  # Too small to be seen.
            alpha, inverse = 0.0, b1 / bb
        if inverse > 0 and math.isfinite(inverse):
            return Link(alpha, 1 / inverse)
    raise ConfigError(
        f"network: {len(points)} measured times do not give a latency and a bandwidth; measure "
        "several sizes, from small to large"
    )


def worst_error(points: Sequence[tuple[float, float]], workers: int, link: Link) -> float:
    """Returns the largest relative difference between the ring's time by the model and measured.

    Args:
        points: Pairs of bytes and seconds.
        workers: The workers of the ring.
        link: The link.
    """
    return max(abs(ring_seconds(size, workers, link) / t - 1) for size, t in points)


def read_link(path: str, transport: str) -> Link:
    """Returns the link that was fitted to a transport's all-reduces in float32.

    Args:
        path: A file of `tfdist bench collectives --json`.
        transport: The transport's name.

    Raises:
        ConfigError: The file cannot be read, has another form, or has no such transport.
    """
    where = f"plan(--network): {quote(path)}"
    try:
        with Path(path).open() as file:
            found = json.loads(file.read(_MOST_CHARACTERS))
    except OSError as error:
        raise ConfigError(f"{where} cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError):
        raise ConfigError(f"{where} is not JSON; give a file of bench collectives --json") from None
    links = found.get("links") if isinstance(found, dict) else None
    if not isinstance(links, dict):
        reject(where, "it has no 'links'; give a file of tfdist bench collectives --json")
    link = links.get(transport)
    if not isinstance(link, dict):
        known = ", ".join(links) or "none"
        reject(where, f"it has no transport {quote(transport)}; it has {known}")
    return Link(
        number(f"{where}: latency", link.get("latency"), least=0, most=1e6),
        number(f"{where}: bandwidth", link.get("bandwidth"), above=0, most=1e18),
    )

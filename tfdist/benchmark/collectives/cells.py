"""What can be measured, and the bandwidths that nccl-tests define."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tfdist.collectives.transport_names import FLOAT32, RING, TENSORFLOW, WIRE_BYTES
from tfdist.errors import ConfigError

ALL_REDUCE = "all_reduce"
SOCKET = "socket"
# The ring, in memory that the workers share.
MEMORY = "memory"
OPERATIONS = (ALL_REDUCE, "all_gather", "reduce_scatter", "broadcast", "gather", "scatter")
# What carries them, and the operations that each has.
CARRIERS: dict[str, tuple[str, ...]] = {
    RING: OPERATIONS,
    MEMORY: (ALL_REDUCE,),
    TENSORFLOW: (ALL_REDUCE, "all_gather", "broadcast"),
}
KB = 1024
SIZES = tuple(KB * 4**power for power in range(10))  # 1 KB to 256 MB


@dataclass(frozen=True)
class Cell:
    """An operation, and what carries it.

    Attributes:
        operation: One of `OPERATIONS`, or `SOCKET`.
        transport: A key of `CARRIERS`, or `SOCKET`.
        wire_type: A key of `WIRE_BYTES`; the arrays are always float32.
    """

    operation: str
    transport: str
    wire_type: str = FLOAT32

    def __str__(self) -> str:
        if self.operation == SOCKET:
            return "raw socket, both ways"
        wire = "" if self.wire_type == FLOAT32 else f", {self.wire_type}"
        return f"{self.operation}, {self.transport}{wire}"


RAW = Cell(SOCKET, SOCKET)


def cells(
    operations: Sequence[str] = OPERATIONS,
    transports: Sequence[str] = tuple(CARRIERS),
    wire_types: Sequence[str] = tuple(WIRE_BYTES),
) -> list[Cell]:
    """Returns the cells that exist of the chosen operations, transports and wire types.

    In other types than float32 only gradients are sent, so they exist for all-reduce, and not in
    memory that workers share, where nothing is sent.

    Raises:
        ConfigError: None exists.
    """
    found = [
        Cell(operation, transport, wire)
        for operation in operations
        for transport in transports
        for wire in wire_types
        if operation in CARRIERS[transport]
        and (wire == FLOAT32 or (operation == ALL_REDUCE and transport != MEMORY))
    ]
    if not found:
        raise ConfigError(
            f"bench collectives: {', '.join(transports)} with {', '.join(wire_types)} has none of "
            f"{', '.join(operations)}; allowed: float32, and for all_reduce bfloat16 and float16"
        )
    return found


def missing(chosen: Sequence[Cell]) -> list[str]:
    """Returns the operations that the transports of the chosen cells lack, a line each."""
    lines = []
    for transport in dict.fromkeys(cell.transport for cell in chosen):
        lacks = [each for each in OPERATIONS if each not in CARRIERS[transport]]
        if lacks:
            lines.append(f"{transport} has no {', '.join(lacks)}")
    return lines


def bus_factor(operation: str, workers: int) -> float:
    """Returns the ratio of bus bandwidth to algorithm bandwidth.

    As in nccl-tests (doc/PERFORMANCE.md): bus bandwidth is what the busiest link carries, to be
    compared with the link's bandwidth. Sizes are those of the whole array, on all workers together
    for all_gather, reduce_scatter, gather and scatter.

    Args:
        operation: One of `OPERATIONS`, or `SOCKET`.
        workers: The number of workers.
    """
    part = (workers - 1) / workers
    if operation == ALL_REDUCE:
        return 2 * part
    return 1.0 if operation in ("broadcast", SOCKET) else part


@dataclass(frozen=True)
class Row:
    """What was measured of a cell at one size.

    Attributes:
        cell: The cell.
        size: Bytes of the array.
        seconds: The median of the calls' times, each that of the slowest worker.
        fastest: The shortest of them.
        calls: How many calls.
        workers: The number of workers.
    """

    cell: Cell
    size: int
    seconds: float
    fastest: float
    calls: int
    workers: int

    @property
    def algorithm_bandwidth(self) -> float:
        """Size by time, in bytes a second."""
        return self.size / self.seconds

    @property
    def bus_bandwidth(self) -> float:
        """What the busiest link carries, in bytes a second."""
        return self.algorithm_bandwidth * bus_factor(self.cell.operation, self.workers)

    @property
    def best_wire_bandwidth(self) -> float:
        """The bus bandwidth of the fastest call, of bytes that are sent, in bytes a second."""
        factor = bus_factor(self.cell.operation, self.workers)
        sent = self.size * WIRE_BYTES[self.cell.wire_type] / WIRE_BYTES[FLOAT32]
        return factor * sent / self.fastest

    def to_dict(self) -> dict[str, Any]:
        """Returns the row, ready for JSON."""
        fields = asdict(self)
        return (
            fields.pop("cell")
            | fields
            | {
                "algorithm_bandwidth": self.algorithm_bandwidth,
                "bus_bandwidth": self.bus_bandwidth,
            }
        )

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> Row:
        """Returns the row that `to_dict` returned."""
        cell = Cell(saved["operation"], saved["transport"], saved["wire_type"])
        names = ("size", "seconds", "fastest", "calls", "workers")
        return cls(cell, *(saved[name] for name in names))

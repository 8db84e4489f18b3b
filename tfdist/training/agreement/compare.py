"""Compares the workers' fields; all workers raise the same error where one differs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

from tfdist.collectives.process_group import ProcessGroup
from tfdist.errors import ConfigError, TfdistError

Field = tuple[str, str]

_ABSENT = "no such field"
# The size of a worker's report on the first difference it finds, in bytes.
_REPORT = 4096
_LONGEST = 110  # characters of a value in a message

_ADVICE = (
    ("versions.", "install the same version on all machines"),
    ("data.shuffle", "give every worker's shuffle(...) the same seed"),
    (
        "data.first_batch",
        "let all read the same batches in the same order: seed every shuffle and random number "
        "alike, and read the data as often on each worker; or give a function of InputContext",
    ),
    ("data", "give all workers the same data, or a function of InputContext"),
    ("validation", "give all workers the same validation data, or a function of InputContext"),
    ("fit.", "call fit with the same arguments on all workers"),
    ("Trainer.", "make the Trainer with the same arguments on all workers"),
    (
        "weights.",
        "load or set weights on all workers, in a callback too, not on one of them only",
    ),
    (
        "state.",
        "load it or set it on all workers, and give callbacks that change it (such as "
        "LearningRateScheduler) to all, not to one of them only",
    ),
    ("", "make and compile the model and its optimizer alike on all workers"),
)


def require_same(
    group: ProcessGroup,
    fields: Sequence[Field],
    *,
    error: type[TfdistError] = ConfigError,
    where: str = "",
) -> None:
    """Requires that all workers have the same fields; all must call it at the same point.

    Where they have, it costs the exchange of one number.

    Args:
        group: The workers.
        fields: The names and values, as text, of this worker.
        error: The type of the error.
        where: The beginning of the message, such as the epoch.

    Raises:
        TfdistError: An `error`, the same on every worker. It names the first field that differs,
            in the chief's order, and the values of the chief and of a worker that differs.
    """
    if group.layout.workers == 1:
        return
    text = json.dumps(list(fields)).encode()
    digests = group.exchange(_digest(text))
    if len(set(digests)) == 1:
        return
    chiefs = [(name, value) for name, value in json.loads(group.broadcast(text))]
    found = first_difference(chiefs, fields)
    report = b""
    if found is not None:
        place, field, there, here = found
        parts = [place, field[:200], _short(there), _short(here), group.task]
        report = json.dumps(parts).encode()[:_REPORT]
    reports = [json.loads(data) for data in group.gather(report, _REPORT) if data]
    _, field, there, here, task = min(reports, key=lambda parts: int(parts[0]))
    advice = next(text for start, text in _ADVICE if field.startswith(start))
    raise error(
        f"{where}{field}: the chief has {there}, {task} has {here}; allowed: the same on all "
        f"workers; {advice}"
    )


def first_difference(
    chiefs: Sequence[Field], own: Sequence[Field]
) -> tuple[int, str, str, str] | None:
    """Returns the first field in which two descriptions differ.

    Returns:
        Its place in the chief's order, its name, the chief's value and this worker's; None
        where all are the same.
    """
    mine = dict(own)
    for place, (name, value) in enumerate(chiefs):
        if mine.get(name, _ABSENT) != value:
            return place, name, value, mine.get(name, _ABSENT)
    known = dict(chiefs)
    for name, value in own:
        if name not in known:
            return len(chiefs), name, _ABSENT, value
    if list(chiefs) != list(own):
        return len(chiefs) + 1, "model", "its parts in one order", "them in another"
    return None


def _digest(text: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> 1


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."

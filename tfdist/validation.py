"""Checks arguments, with one-line errors: where, what was given, what is allowed."""

from __future__ import annotations

import difflib
import math
import operator
import reprlib
from collections.abc import Collection, Iterable
from typing import Any, NoReturn

from tfdist.errors import ConfigError

# A third of a year. System calls overflow with much more.
MOST_SECONDS = 10_000_000

# The largest whole number, so that arithmetic with it ends: 10^15.
LARGEST = 1_000_000_000_000_000
_QUOTE_CHARS = 60

_repr = reprlib.Repr()
_repr.maxstring = _repr.maxother = _repr.maxlong = _QUOTE_CHARS
_repr.maxlist = _repr.maxtuple = _repr.maxdict = 3
_repr.maxlevel = 2


def quote(value: Any) -> str:
    """Returns `value` as a short literal that never spans lines."""
    try:
        text = _repr.repr(value)
    except Exception:  # A value whose own repr fails still has to be reported.
        text = f"<{type(value).__name__}>"
    text = printable(text)
    return text if len(text) <= _QUOTE_CHARS else f"{text[: _QUOTE_CHARS - 3]}..."


def printable(text: str) -> str:
    """Returns the text as one line, with ? for what would not show as a character."""
    return "".join(c if c.isprintable() else "?" for c in text)


def kind(value: Any) -> str:
    """Returns the JSON name of the value's type, with an article."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, int | float):
        return "a number"
    if isinstance(value, str):
        return "a string"
    if isinstance(value, list | tuple):
        return "a list"
    if isinstance(value, dict):
        return "an object"
    return f"a {type(value).__name__}"


def plural(count: int, noun: str) -> str:
    """Returns `1 task`, `2 tasks`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def reject(where: str, problem: str) -> NoReturn:
    """Raises the error for the field `where`.

    Raises:
        ConfigError: Always.
    """
    raise ConfigError(f"{where}: {problem}")


def whole_number(where: str, value: Any, *, least: int = 1, most: int = LARGEST) -> int:
    """Returns `value` as an integer.

    Args:
        where: The argument, such as `scale(num_replicas)`.
        value: What was given.
        least: The smallest number allowed.
        most: The largest number allowed.

    Raises:
        ConfigError: It is not a whole number, or out of the limits.
    """
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None or number < least:
        reject(where, f"{quote(value)} is given; allowed: a whole number of {least} or more")
    if number > most:
        reject(where, f"{quote(value)} is given; allowed: a whole number up to {most}")
    return number


def number(
    where: str,
    value: Any,
    *,
    above: float | None = None,
    least: float | None = None,
    most: float | None = None,
    below: float | None = None,
) -> float:
    """Returns `value` as a finite float within limits.

    Args:
        where: The argument, such as `scale(base_learning_rate)`.
        value: What was given.
        above: The exclusive lower limit.
        least: The inclusive lower limit.
        most: The inclusive upper limit.
        below: The exclusive upper limit.

    Raises:
        ConfigError: It is not a number, not finite, or out of range.
    """
    given = {"above": above, "at least": least, "at most": most, "below": below}
    limits = [f"{word} {limit:g}" for word, limit in given.items() if limit is not None]
    try:
        found = math.nan if isinstance(value, (bool, str)) else float(value)
    except (TypeError, ValueError, OverflowError):
        found = math.nan
    inside = (
        math.isfinite(found)
        and (above is None or found > above)
        and (least is None or found >= least)
        and (most is None or found <= most)
        and (below is None or found < below)
    )
    if not inside:
        allowed = " ".join(["a finite number", " and ".join(limits)]).strip()
        reject(where, f"{quote(value)} is given; allowed: {allowed}")
    return found


def seconds(text: str) -> float:
    """Reads a duration, of 0 to 10,000,000 seconds.

    Raises:
        ConfigError: It is not one.
    """
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= MOST_SECONDS:
        raise ConfigError(f"{quote(text)} is not a number of seconds, 0 to {MOST_SECONDS}")
    return value


def one_of(where: str, value: Any, allowed: Collection[str]) -> str:
    """Returns `value` if it is one of the allowed words.

    Raises:
        ConfigError: It is not one of them.
    """
    if not isinstance(value, str) or value not in allowed:
        reject(where, not_one_of(value, allowed))
    return value


def not_one_of(value: Any, allowed: Collection[str]) -> str:
    """Returns the message about a value that is not one of the allowed words."""
    hint = did_you_mean(value, allowed) if isinstance(value, str) else ""
    return f"{quote(value)} is given; allowed: {', '.join(allowed)}{hint}"


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """Returns `; did you mean 'train'?` for the word that is most like `given`; "" for none."""
    bare = {name.strip("-").lower(): name for name in known}  # The dashes of flags are all alike.
    word = given.strip("-").lower()
    close = difflib.get_close_matches(word, bare, n=1)
    if not close and word:  # Shortened: --log for --log-dir.
        close = [name for name in bare if name.startswith(word)]
    return f"; did you mean {bare[close[0]]!r}?" if len(close) == 1 else ""

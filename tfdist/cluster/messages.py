"""One-line errors about a configuration: where, what was given, what is allowed."""

from __future__ import annotations

import reprlib
from typing import Any, NoReturn

from tfdist.errors import ConfigError

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
    text = "".join(c if c.isprintable() else "?" for c in text)
    return text if len(text) <= _QUOTE_CHARS else f"{text[: _QUOTE_CHARS - 3]}..."


def kind(value: Any) -> str:
    """Returns what JSON calls a value of this type."""
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
        ConfigError: always.
    """
    raise ConfigError(f"{where}: {problem}")

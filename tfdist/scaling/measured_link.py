"""Reads the α and β that `tfdist bench collectives --json` measured."""

from __future__ import annotations

import json
from pathlib import Path

from tfdist.errors import ConfigError
from tfdist.scaling.network import Link
from tfdist.validation import number, quote, reject

# A file of all sizes has a hundred thousand.
_MOST_CHARACTERS = 1 << 24


def read_link(path: str, transport: str) -> Link:
    """Returns the link that was fitted to a transport's all-reduces in float32.

    Args:
        path: A file of `tfdist bench collectives --json`.
        transport: The transport's name.

    Raises:
        ConfigError: The file cannot be read, is another one, or has no such transport.
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

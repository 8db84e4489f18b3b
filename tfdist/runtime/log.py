"""Sets up the logger `tfdist`, which writes to standard error unless the user configures it.

To silence it: `logging.getLogger("tfdist").setLevel("WARNING")`. To send its records elsewhere,
add handlers before tfdist's first message, or set its `handlers` afterwards; with
`propagate = True` they reach the root logger too.
"""

from __future__ import annotations

import logging
import sys
from typing import Any

LOGGER = logging.getLogger("tfdist")


class _StandardError(logging.StreamHandler[Any]):
    """Writes to the current `sys.stderr`, not to the one there was at the import."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> Any:
        """The current standard error."""
        return sys.stderr


def _configure() -> None:
    """Gives the logger its handler and level, unless the user has done so."""
    if LOGGER.handlers:
        return
    handler = _StandardError()
    handler.setFormatter(logging.Formatter("tfdist: %(message)s"))
    LOGGER.addHandler(handler)
    # absl and pytest have handlers at the root, which would write the lines a second time.
    LOGGER.propagate = False
    if LOGGER.level == logging.NOTSET:
        LOGGER.setLevel(logging.INFO)


_configure()

"""Shows values that consist of named rows as tables in notebooks."""

from __future__ import annotations

import html
from collections.abc import Sequence


class Rows:
    """A value that is displayed as a table of its rows."""

    def _rows(self) -> Sequence[tuple[str, str]]:
        """Returns names and texts."""
        raise NotImplementedError

    def _repr_html_(self) -> str:
        """Returns a table; IPython calls it."""
        cells = (
            f"<tr><th>{html.escape(name)}</th><td>{html.escape(text)}</td></tr>"
            for name, text in self._rows()
        )
        return f"<table>{''.join(cells)}</table>"

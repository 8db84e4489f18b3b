"""What the benchmarks' commands have in common: lines that come at once, tables, models by name."""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence

from tfdist.cli.arguments import Parser
from tfdist.validation import quote

say = functools.partial(print, flush=True)


def show(title: str, cells: Sequence[Sequence[str]], plain: str) -> None:
    """Prints a table: with lines and colours on a terminal.

    Args:
        title: What it is of.
        cells: The heads of its columns, then its rows.
        plain: The table as text, for whatever is not a terminal.
    """
    if not sys.stdout.isatty():
        say(f"\n{plain}")
        return
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    # Eleven columns in the 80 of a terminal.
    made = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=0)
    for head in cells[0]:
        made.add_column(head.replace(" ", "\n"), justify="right", vertical="bottom", no_wrap=True)
    for row in cells[1:]:
        made.add_row(*row)
    Console().print(made)


def check_model(parser: Parser, name: str) -> None:
    """Checks that a model is a bundled one or `module:function`.

    Raises:
        ConfigError: It is neither.
    """
    from tfdist.benchmark.trial import BUNDLED

    if name not in BUNDLED and ":" not in name:
        parser.error(f"--model {quote(name)}: allowed: {', '.join(BUNDLED)}, module:function")

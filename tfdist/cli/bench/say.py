"""What the benchmarks' commands have in common: lines that come at once, and models by name."""

from __future__ import annotations

import functools

from tfdist.cli.arguments import Parser
from tfdist.validation import quote

say = functools.partial(print, flush=True)


def check_model(parser: Parser, name: str) -> None:
    """Checks that a model is a bundled one or `module:function`.

    Raises:
        ConfigError: It is neither.
    """
    from tfdist.benchmark.trial import BUNDLED

    if name not in BUNDLED and ":" not in name:
        parser.error(f"--model {quote(name)}: allowed: {', '.join(BUNDLED)}, module:function")

"""Makes figures with matplotlib, which is in the extra `plots` and loaded when one is drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tfdist.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def new_figure(width: float, height: float, where: str = "plot") -> Figure:
    """Returns an empty figure whose parts make room for each other.

    Args:
        width: In inches.
        height: In inches.
        where: What is drawn, for the message.

    Raises:
        ConfigError: Matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigError(f"{where}: needs matplotlib; pip install 'tfdist[plots]'") from None
    return Figure(figsize=(width, height), layout="constrained")

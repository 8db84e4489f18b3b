"""Draws the two pictures of docs/architecture.md: `python -m docs.hooks.pictures`.

The layers come from `tests/test_layers.py`, which holds them: the picture is that of the code.
"""

from __future__ import annotations

from html import escape
from pathlib import Path

from tests.test_layers import LAYERS, LINE

DOCS = Path(__file__).parents[1]
_WIDTH, _ROW, _GAP, _LETTER = 900, 34, 10, 8.2

# The walk of a batch: what each station is given and hands on.
WALK = (
    ("training/input", "what fit was given, as batches", "element: data, rows"),
    ("step/slicing", "this replica's rows", "Slice"),
    ("step/replica", "Keras' own step on them", "ReplicaOutput: gradients, metrics"),
    ("step/reduction", "the sum over all replicas", "Reduced"),
    ("update", "the optimizer", "the weights"),
)


def layers() -> str:
    """The folders, each above what it imports."""
    rows = [sorted(row) for row in reversed(LAYERS)]
    parts: list[str] = []
    y = _GAP
    for number, row in enumerate(rows):
        if len(rows) - number == LINE:
            line = f'<line x1="{_GAP}" x2="{_WIDTH - _GAP}" y1="{y}" y2="{y}" stroke="#c0392b" '
            parts.append(f'{line}stroke-dasharray="6 4"/>')
            y += 16
            below = "nothing below this line imports TensorFlow"
            parts.append(_text(_WIDTH / 2, y, below, "#c0392b"))
            y += _GAP
        widths = [len(name) * _LETTER + 24 for name in row]
        x = (_WIDTH - sum(widths) - _GAP * (len(row) - 1)) / 2
        for name, width in zip(row, widths, strict=True):
            parts.append(_box(x, y, width, name))
            x += width + _GAP
        y += _ROW + _GAP
    return _svg(parts, y)


def walk() -> str:
    """A batch's way through the files of a step."""
    parts: list[str] = []
    y: float = _GAP
    for number, (file, does, gives) in enumerate(WALK):
        parts.append(_box(40, y, 200, file))
        parts.append(_text(260, y + 22, does, "#333", "start"))
        if number + 1 < len(WALK):
            parts.append(_arrow(140, y + _ROW, y + _ROW + 40))
        parts.append(_text(160, y + _ROW + 25, gives, "#2c5aa0", "start"))
        y += _ROW + 40
    top = _GAP + 3 * (_ROW + 40)
    parts.append(_box(580, top, 220, "collectives: a Transport"))
    parts.append(_text(690, top + _ROW + 20, "ring, NCCL or gRPC", "#333"))
    middle = top + _ROW / 2
    parts.append(
        f'<line x1="480" y1="{middle:.0f}" x2="578" y2="{middle:.0f}" stroke="#888" '
        'marker-end="url(#arrow)"/>'
    )
    return _svg(parts, y)


def _box(x: float, y: float, width: float, text: str) -> str:
    frame = f'<rect x="{x:.0f}" y="{y:.0f}" width="{width:.0f}" height="{_ROW}" rx="5" '
    return f'{frame}fill="#e8eefc" stroke="#5b7bd5"/>' + _text(x + width / 2, y + 22, text, "#111")


def _text(x: float, y: float, text: str, colour: str, anchor: str = "middle") -> str:
    place = f'<text x="{x:.0f}" y="{y:.0f}" fill="{colour}" text-anchor="{anchor}">'
    return f"{place}{escape(text)}</text>"


def _arrow(x: float, y: float, end: float) -> str:
    line = f'<line x1="{x}" y1="{y}" x2="{x}" y2="{end - 2}" stroke="#888" '
    return f'{line}marker-end="url(#arrow)"/>'


def _svg(parts: list[str], height: float) -> str:
    marker = '<marker id="arrow" markerWidth="8" markerHeight="8" refX="7" refY="4" orient="auto">'
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height:.0f}" '
        'font-family="monospace" font-size="13">',
        f'<defs>{marker}<path d="M0,0 L8,4 L0,8 z" fill="#888"/></marker></defs>',
        '<rect width="100%" height="100%" fill="white"/>',
    )
    return "\n".join([*head, *parts, "</svg>"]) + "\n"


PICTURES = {"layers.svg": layers, "walk.svg": walk}

if __name__ == "__main__":
    for name, draw in PICTURES.items():
        (DOCS / name).write_text(draw())

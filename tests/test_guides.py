"""The Python of the guides in docs/guides runs."""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.harness import FULL

GUIDES = Path(__file__).parents[1] / "docs" / "guides"
BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


# One that trains; the others, about ten seconds each, in `make chaos`.
SHORT = ("callbacks",)
LONG = [
    pytest.mark.chaos,
    pytest.mark.skipif(not FULL, reason="ten seconds; with TFDIST_CHAOS=full"),
]


def blocks(guide: Path) -> list[str]:
    """The pieces of Python in a guide, but for those that start processes."""
    return [b for b in BLOCK.findall(guide.read_text()) if "tfdist.launch(" not in b]


def guides() -> list[Any]:
    """The guides with Python in them."""
    return [
        pytest.param(guide, id=guide.stem, marks=() if guide.stem in SHORT else LONG)
        for guide in sorted(GUIDES.glob("*.md"))
        if blocks(guide)
    ]


@pytest.mark.parametrize("guide", guides())
def test_its_python_runs(guide, devices, tmp_path, monkeypatch):
    import tfdist

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TFDIST_DATA_DIR", str(tmp_path))
    # This process has been split, into more devices than guides ask for.
    monkeypatch.setattr(tfdist, "virtual_devices", lambda count: devices[:count])
    names: dict[str, object] = {}
    for block in blocks(guide):
        exec(compile(block, guide.name, "exec"), names)
    for name, value in names.items():
        if name.startswith("test_") and callable(value):
            value()

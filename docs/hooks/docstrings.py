"""Reads the docstrings' sections `Example:`, and the code behind `::`, as what they are."""

from __future__ import annotations

import re
from typing import Any

import griffe


class Examples(griffe.Extension):
    """Gives mkdocstrings the one spelling of Google's style that it takes for code: `Examples:`."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Changes the docstring of each object as it is read."""
        if obj.docstring is not None:
            text = re.sub(r"^( *)Example:$", r"\1Examples:", obj.docstring.value, flags=re.M)
            obj.docstring.value = re.sub(r"::$", ":", text, flags=re.M)

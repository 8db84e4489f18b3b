"""Keras' own tests that are left out, each with its reason. Names may end with a star."""

from __future__ import annotations

import fnmatch

# Plain Keras fails these here too.
NOT_INSTALLED = "it needs jax, torch, grain or scipy, which are not installed"

TRAINER = {f"*_{name}*": NOT_INSTALLED for name in ("jax", "torch", "grain", "scipy")}
CALLBACKS = {"orbax_checkpoint: *": "it needs orbax, which is not installed"}
MIRRORED: dict[str, str] = {}


def reason(name: str, *tables: dict[str, str]) -> str:
    """Why the test of that name is left out; "" where it is not."""
    for table in tables:
        for pattern, why in table.items():
            if fnmatch.fnmatchcase(name, pattern):
                return why
    return ""

"""Keras' own tests that are left out, as "about: test", each with its reason.

A star stands for anything. Where KERAS_SUITE=plain, nothing is left out.
"""

from __future__ import annotations

from tests.training.keras_suite.collecting import is_among

# Plain Keras fails these here too.
EVERYWHERE = {
    **{
        f"trainer: *_{name}*": "it needs jax, torch, grain or scipy, which are not installed"
        for name in ("jax", "torch", "grain", "scipy")
    },
    "orbax_checkpoint: *": "it needs orbax, which is not installed",
}
MIRRORED = {
    "trainer: *_jit": "XLA cannot compile collectives; its twin without XLA runs",
}


def reason(test: str, *tables: dict[str, str]) -> str:
    """Why the test, given as "about: test", is left out; "" where it is not."""
    for table in tables:
        for pattern, why in table.items():
            if is_among(test, (pattern,)):
                return why
    return ""

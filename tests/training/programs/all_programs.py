"""All programs: each module below enters its own into the table."""

from tests.training.programs import (  # noqa: F401
    generative,
    latent,
    recipes,
    similarity,
    structured,
    teachers,
    text,
    vision,
)
from tests.training.programs.program import PROGRAMS

__all__ = ["PROGRAMS"]

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

# Its error comes in mid-step, after which workers count each other as lost: nothing can follow it.
PROGRAMS["metric_learning"] = PROGRAMS.pop("metric_learning")

__all__ = ["PROGRAMS"]

"""All features: each module below enters its own into the table."""

from tests.training.conformance import (  # noqa: F401
    callbacks,
    data,
    losses,
    models,
    optimizers,
    overlapping,
    replicas,
)
from tests.training.conformance.setting import FEATURES

__all__ = ["FEATURES"]

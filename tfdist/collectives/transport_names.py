"""The transports by the names that users give."""

from __future__ import annotations

AUTO, TENSORFLOW, RING = "auto", "tensorflow", "ring"
TRANSPORTS = (AUTO, TENSORFLOW, RING)

# What "auto" stands for, if it is set.
VARIABLE = "TFDIST_TRANSPORT"

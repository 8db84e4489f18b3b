"""The transports by the names that users give."""

from __future__ import annotations

AUTO, TENSORFLOW, RING = "auto", "tensorflow", "ring"
TRANSPORTS = (AUTO, TENSORFLOW, RING)

# Names the transport to use for "auto".
VARIABLE = "TFDIST_TRANSPORT"

# The types that gradients may be sent in; see `wire_types`, which has TensorFlow's.
WIRE_NAMES = ("auto", "float32", "bfloat16", "float16")

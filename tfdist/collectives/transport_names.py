"""What is known of the transports without TensorFlow: their names, and how they send gradients."""

from __future__ import annotations

AUTO, TENSORFLOW, RING = "auto", "tensorflow", "ring"
TRANSPORTS = (AUTO, TENSORFLOW, RING)

# Names the transport to use for "auto".
VARIABLE = "TFDIST_TRANSPORT"

FLOAT32 = "float32"
# The types that float32 gradients may be sent in, and the bytes of one value.
WIRE_BYTES = {FLOAT32: 4, "bfloat16": 2, "float16": 2}
WIRE_TYPES = (AUTO, *WIRE_BYTES)
# Gradients that the ring sums together over connections: enough for the speed of the wire.
BUCKET_BYTES = 16 << 20


def narrow_type(wire_type: str) -> str | None:
    """Returns the type that gradients are rounded to before they are sent.

    Args:
        wire_type: One of `WIRE_TYPES`.

    Returns:
        bfloat16 or float16; None for "float32" and "auto", which round nothing.
    """
    return wire_type if wire_type in WIRE_BYTES and wire_type != FLOAT32 else None

"""The UCI handwritten digits as a TFDS dataset named `digits`."""

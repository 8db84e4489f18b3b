"""Inspects Keras models, and rejects what a strategy cannot train."""

"""Meets the other tasks of a cluster before TensorFlow starts."""

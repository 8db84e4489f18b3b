"""Computes batch sizes and learning rates for training on many replicas."""

"""Sums, gathers and broadcasts tensors over replicas and workers."""

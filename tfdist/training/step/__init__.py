"""Computes one step: slice, compute, reduce."""

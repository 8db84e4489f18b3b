"""Compares a step of slices with that of the whole batch, on a few rows, before the first one."""

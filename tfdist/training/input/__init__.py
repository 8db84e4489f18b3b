"""Converts users' data into elements for a loop, epoch by epoch and batch by batch."""

"""Draws what training runs have recorded."""

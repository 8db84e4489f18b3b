"""Draws what training runs have written about themselves."""

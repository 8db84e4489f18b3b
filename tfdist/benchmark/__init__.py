"""Measures what tfdist claims; each benchmark is a command."""

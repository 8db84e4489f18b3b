"""Measurements of what tfdist claims, each a command."""

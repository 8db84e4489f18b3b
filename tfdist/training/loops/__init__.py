"""Runs the steps in loops: synchronous, and through parameter servers."""

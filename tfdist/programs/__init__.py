"""Runs the programs behind the commands."""

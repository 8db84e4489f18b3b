"""Runs a job on several machines, each of which has its own launcher."""

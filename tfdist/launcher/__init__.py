"""Starts the tasks of a cluster on this machine, and supervises them."""

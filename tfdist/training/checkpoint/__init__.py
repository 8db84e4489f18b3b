"""Saves a training run, and resumes it."""

"""Tries the user's own code before or while a step is traced, to warn of or reject it."""

"""Examines whether a cluster can train: one line for each thing that training needs."""

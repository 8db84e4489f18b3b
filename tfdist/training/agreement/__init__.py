"""Compares arguments, model and data of all workers, field by field, before they train."""

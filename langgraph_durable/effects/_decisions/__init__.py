"""Decisions on effects, taken by hand."""

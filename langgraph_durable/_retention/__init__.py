"""Pruning, deleting, copying, compacting and measuring threads."""

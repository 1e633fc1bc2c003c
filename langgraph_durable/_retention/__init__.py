"""Pruning, deleting, copying and compacting threads, and what they take on disk."""

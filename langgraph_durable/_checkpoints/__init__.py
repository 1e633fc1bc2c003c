"""Checkpoints and pending writes: how they are encoded, stored, read and listed."""

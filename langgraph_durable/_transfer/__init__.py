"""Threads that move between savers: import, the fallback saver, export, and verification."""

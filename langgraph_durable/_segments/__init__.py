"""Segments: long values split into content-addressed pieces, each stored once per thread."""

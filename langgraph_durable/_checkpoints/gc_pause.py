"""Python's collector of garbage, which rests while many objects are made at once that are none."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager

_pausing: set[object] = set()
"""Those who have paused it just now."""


def _resume_in_child() -> None:
    """Let it run in a process that was forked while a thread, which is not there, had paused it."""
    if _pausing:
        _pausing.clear()
        gc.enable()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_resume_in_child)


@contextmanager
def gc_paused() -> Iterator[None]:
    """Keep the collector from running in this process, while something is decoded that waits for nothing.

    It would look through all objects again each time that there are a quarter more: of a listing of 240 checkpoints
    that took four fifths of the time.
    """
    if not gc.isenabled():
        yield
        return
    pause = object()
    try:
        _pausing.add(pause)
        gc.disable()
        yield
    finally:
        gc.enable()
        _pausing.discard(pause)

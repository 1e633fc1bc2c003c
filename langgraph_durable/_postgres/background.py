"""Tasks that run on after their caller has left."""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

F = TypeVar("F", bound="asyncio.Future[Any]")

_running: set[asyncio.Future[Any]] = set()


def keep_alive(task: F) -> F:
    """Keep a task until it ends. An event loop has only weak references to it."""
    _running.add(task)
    task.add_done_callback(_running.discard)
    return task

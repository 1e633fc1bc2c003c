"""Copying a thread, on the server."""

from __future__ import annotations

from langgraph_durable._metrics import measured
from langgraph_durable._postgres.database import Database
from langgraph_durable._postgres.locks import LOCK_THREAD, LOCK_THREADS_SHARED
from langgraph_durable._postgres.statement import Call, load
from langgraph_durable._validation import require_thread_id
from langgraph_durable.errors import InvalidConfigError, ThreadExistsError

COPY_THREAD = load(__package__, "copy_thread")


@measured("copy_thread")
async def copy_thread(db: Database, source: str, target: str) -> None:
    """Copy a thread, as of one moment; an unknown source copies nothing.

    Raises:
        InvalidConfigError: An id is invalid, or source and target are the same.
        ThreadExistsError: The target has checkpoints.

    Round trips: 1. Transaction: its own.
    """
    source, target = require_thread_id(source), require_thread_id(target)
    if source == target:
        raise InvalidConfigError(f"thread {source!r} cannot be copied onto itself: choose another target")
    locks: list[Call] = [(LOCK_THREADS_SHARED, ([source],)), (LOCK_THREAD, (target,))]
    if source > target:  # one order for all copies, so two of them cannot deadlock
        locks.reverse()
    rows = await db.pipeline(*locks, (COPY_THREAD, {"source": source, "target": target}))
    if rows[0][0]:
        raise ThreadExistsError(
            f"thread {target!r} has checkpoints, so {source!r} was not copied to it: choose another target, or "
            "delete it first (delete_thread)"
        )

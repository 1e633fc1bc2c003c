"""TODO."""

from __future__ import annotations

from langgraph_durable._postgres.database import Database
from langgraph_durable._postgres.locks import LOCK_THREAD, LOCK_THREADS_SHARED
from langgraph_durable._postgres.session import Call
from langgraph_durable._retention import statements as sql
from langgraph_durable.errors import ThreadExistsError


async def copy_thread(db: Database, source: str, target: str) -> None:
    """Copy a thread on the server, as of one moment; an unknown source copies nothing.

    Raises:
        ThreadExistsError: The target has checkpoints.

    Round trips: 1. Transaction: its own.
    """
    locks: list[Call] = [(LOCK_THREADS_SHARED, ([source],)), (LOCK_THREAD, (target,))]
    if source > target:  # always in one order, so that two copies cannot wait for each other
        locks.reverse()
    rows = await db.pipeline(*locks, (sql.COPY_THREAD, {"source": source, "target": target}))
    if rows[0][0]:
        raise ThreadExistsError(
            f"thread {target!r} has checkpoints, and {source!r} was not copied onto it: choose another target, or "
            "delete_thread it first"
        )

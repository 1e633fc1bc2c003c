"""TODO."""

from __future__ import annotations

from datetime import timedelta

from langgraph_durable._checkpoints.ulids import derive_ulid
from langgraph_durable._postgres.database import Database
from langgraph_durable._postgres.locks import LOCK_THREAD
from langgraph_durable._postgres.session import Session
from langgraph_durable._retention import statements as sql
from langgraph_durable._retention.plan import Key
from langgraph_durable._retention.prune import _columns, _DryRun
from langgraph_durable.reports import Removed

_ORPHAN_AGE = timedelta(days=1)
_TOMBSTONE_AGE = timedelta(days=30)


# --- sweep ---


async def count_threads(db: Database) -> int:
    """Count the threads that have checkpoints."""
    [(count,)] = await db.fetch(sql.COUNT_THREADS)
    return int(count)


async def next_threads(db: Database, after: str, count: int) -> list[str]:
    """Return the next threads in the order of their ids."""
    rows = await db.fetch(sql.NEXT_THREADS, {"after": after, "count": count})
    return [thread_id for (thread_id,) in rows]


async def delete_orphans(db: Database, *, dry_run: bool) -> int:
    """Delete the writes, a day old or more, whose checkpoint never came, and tombstones a month old.

    Returns:
        How many writes.
    """
    [(now,)] = await db.fetch(sql.NOW)
    young = int((now - _ORPHAN_AGE).timestamp() * 1000)
    by_thread: dict[str, set[Key]] = {}
    for thread_id, ns, id_ in await db.fetch(sql.LIST_ORPHAN_WRITES):
        ulid = derive_ulid(id_)
        if ulid is not None and ulid.int >> 80 < young:
            by_thread.setdefault(thread_id, set()).add((ns, id_))
    swept = 0
    for thread_id, keys in by_thread.items():
        swept += await _remove_writes(db, thread_id, keys, dry_run=dry_run)
    if not dry_run:
        await db.fetch(sql.FORGET_OLD_TOMBSTONES, (_TOMBSTONE_AGE,))
    return swept


async def _remove_writes(db: Database, thread_id: str, keys: set[Key], *, dry_run: bool) -> int:
    none = _columns((), "kept_ns", "kept_id", "kept_channel")

    async def work(session: Session) -> Removed:
        thread = {"thread": thread_id}
        _, nodes = await session.pipeline((LOCK_THREAD, (thread_id,)), (sql.LIST_NODES, thread))
        orphaned = keys - {(ns, id_) for ns, id_, *_ in nodes}  # those whose checkpoint came since stay
        rows = await session.fetch(sql.DELETE_WRITES, thread | _columns(orphaned, "ns", "id") | none)
        removed = Removed({"writes": int(rows[0][0])}, {"writes": int(rows[0][1])})
        if dry_run:
            raise _DryRun(removed)
        return removed

    try:
        removed = await db.run(work, transaction=True)
    except _DryRun as counted:
        removed = counted.removed
    return removed.rows["writes"]

"""TODO."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from langgraph_durable._checkpoints.ulids import format_ulid
from langgraph_durable._postgres.database import Database
from langgraph_durable._postgres.locks import LOCK_THREAD
from langgraph_durable._postgres.session import Call, Row, Session
from langgraph_durable._retention import statements as sql
from langgraph_durable._retention.prune import _DryRun
from langgraph_durable.errors import EffectUnresolvedError
from langgraph_durable.reports import DeleteReceipt, Removed


async def erase_thread(db: Database, thread_id: str, ulid: uuid.UUID, *, force: bool) -> DeleteReceipt:
    """Delete a thread, leaving a tombstone under `ulid` if there was one to delete.

    Raises:
        EffectUnresolvedError: It has effects that may have happened, and `force` is not given; nothing was deleted.

    Round trips: 1. Transaction: its own.
    """
    rows = await db.pipeline(*_erasure(thread_id, ulid, force=force))
    return DeleteReceipt(thread_id, format_ulid(ulid), rows[0][3], _erased(thread_id, rows))


async def erase(
    db: Database, thread_id: str, ulid: uuid.UUID, *, force: bool = False, dry_run: bool
) -> Removed:
    """Delete a thread, or count what that would delete, by rolling it back."""
    if not dry_run:
        return (await erase_thread(db, thread_id, ulid, force=force)).removed

    async def work(session: Session) -> Removed:
        rows = (await session.pipeline(*_erasure(thread_id, ulid, force=force)))[-1]
        raise _DryRun(_erased(thread_id, rows))

    try:
        return await db.run(work, transaction=True)
    except _DryRun as counted:
        return counted.removed


def _erasure(thread_id: str, ulid: uuid.UUID, *, force: bool) -> list[Call]:
    parameters = {"thread": thread_id, "ulid": ulid, "force": force}
    return [(LOCK_THREAD, (thread_id,)), (sql.ERASE_THREAD, parameters)]


def _erased(thread_id: str, rows: Sequence[Row]) -> Removed:
    if unresolved := rows[0][4]:
        raise EffectUnresolvedError(
            f"thread {thread_id!r} has {unresolved} effects that may have happened, and was not deleted: decide on "
            "them (EffectLog.pending, EffectLog.resolve), or delete with force=True"
        )
    gone = [row for row in rows if row[1]]
    return Removed({row[0]: row[1] for row in gone}, {row[0]: int(row[2]) for row in gone})

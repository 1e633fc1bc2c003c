"""Deleting whole threads, and the checkpoints of runs."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from ulid import ULID

from langgraph_durable._checkpoints.codec import Codec
from langgraph_durable._checkpoints.ulids import format_ulid
from langgraph_durable._metrics import measured
from langgraph_durable._postgres.database import Database, Session
from langgraph_durable._postgres.locks import LOCK_THREAD
from langgraph_durable._postgres.statement import Call, Row, load
from langgraph_durable._retention.removal import keep_other_runs, remove_from_threads, run_removal
from langgraph_durable._validation import require_ids, require_thread_id
from langgraph_durable.errors import EffectUnresolvedError, InvalidConfigError
from langgraph_durable.reports import DeleteReceipt, Removed

DELETE_THREAD = load(__package__, "delete_thread")
LIST_THREADS_OF_RUNS = load(__package__, "list_threads_of_runs")


@measured("delete_thread")
async def delete_thread(
    db: Database, thread_id: str, *, force: bool, leaves_tombstone: bool = False
) -> DeleteReceipt:
    """Delete a thread; see DurableSaver.delete_thread.

    If the thread had checkpoints, or with `leaves_tombstone`, it leaves a tombstone with the receipt's ULID.

    Raises:
        EffectUnresolvedError: The thread has unresolved effects, and `force` is false; nothing was deleted.

    Round trips: 1. Transaction: its own.
    """
    return await _delete(db, require_thread_id(thread_id), force=force, always=leaves_tombstone)


async def remove_thread(db: Database, thread_id: str, *, dry_run: bool) -> Removed:
    """Delete a thread, or, in a dry run, roll the deletion back to count its rows."""
    if not dry_run:
        return (await _delete(db, thread_id, force=False)).removed

    async def work(session: Session) -> Removed:
        return _removed(thread_id, (await session.pipeline(*_calls(thread_id, _new_ulid(), force=False)))[-1])

    return await run_removal(db, work, dry_run=True)


@measured("delete_for_runs")
async def delete_for_runs(db: Database, codec: Codec, run_ids: Sequence[str]) -> None:
    """Delete the checkpoints of runs; see DurableSaver.delete_for_runs."""
    wanted = require_ids(run_ids, "run_ids")
    if codec.index_keys is not None and "run_id" not in codec.index_keys:
        raise InvalidConfigError(
            "delete_for_runs cannot find the runs: this saver's indexed_metadata lacks run_id. Make the saver with "
            "indexed_metadata that includes it"
        )
    rows = await db.fetch(LIST_THREADS_OF_RUNS, (wanted,)) if wanted else []
    threads = [thread_id for (thread_id,) in rows]
    await remove_from_threads(db, codec, threads, keep_other_runs(wanted), dry_run=False)


async def _delete(db: Database, thread_id: str, *, force: bool, always: bool = False) -> DeleteReceipt:
    ulid = _new_ulid()
    rows = await db.pipeline(*_calls(thread_id, ulid, force=force, always=always))
    return DeleteReceipt(thread_id, format_ulid(ulid), rows[0][3], _removed(thread_id, rows))


def _calls(thread_id: str, ulid: uuid.UUID, *, force: bool, always: bool = False) -> list[Call]:
    parameters = {"thread": thread_id, "ulid": ulid, "force": force, "always": always}
    return [(LOCK_THREAD, (thread_id,)), (DELETE_THREAD, parameters)]


def _removed(thread_id: str, rows: Sequence[Row]) -> Removed:
    if unresolved := rows[0][4]:
        raise EffectUnresolvedError(
            f"thread {thread_id!r} has {unresolved} unresolved effects, which may have happened, and was not deleted. "
            f"List them with saver.effects.pending({thread_id!r}) or `langgraph-durable effects list`, decide on each "
            "with saver.effects.resolve or `langgraph-durable effects resolve`, or delete with force=True"
        )
    removed = [row for row in rows if row[1]]
    return Removed({row[0]: row[1] for row in removed}, {row[0]: int(row[2]) for row in removed})


def _new_ulid() -> uuid.UUID:
    return uuid.UUID(bytes=ULID().bytes)

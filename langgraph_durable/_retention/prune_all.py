"""Pruning every thread, and cleaning up rows that no thread will need again."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from langgraph_durable._checkpoints.codec import Codec
from langgraph_durable._checkpoints.ulids import derive_ulid
from langgraph_durable._metrics import measured
from langgraph_durable._postgres.database import Database, Session
from langgraph_durable._postgres.locks import LOCK_THREAD
from langgraph_durable._postgres.statement import load
from langgraph_durable._retention.effects import count_orphaned_effects, expire_effects
from langgraph_durable._retention.plan import Key
from langgraph_durable._retention.policy import Policy
from langgraph_durable._retention.removal import (
    DELETE_WRITES,
    LIST_NODES,
    NOW,
    columns,
    keep_newest,
    remove_from_threads,
    run_removal,
)
from langgraph_durable._validation import require_text
from langgraph_durable.errors import PruneFailedError
from langgraph_durable.reports import PruneAllReport, PruneProgress, PruneReport, Removed

COUNT_THREADS = load(__package__, "count_threads")
LIST_THREADS = load(__package__, "list_threads")
LIST_ORPHAN_WRITES = load(__package__, "list_orphan_writes")
DELETE_TOMBSTONES = load(__package__, "delete_tombstones")

_PAGE = 50
"""Threads between two calls of `progress`."""
_ORPHAN_AGE = timedelta(days=1)
_TOMBSTONE_AGE = timedelta(days=30)


@measured("prune_all")
async def prune_all(
    db: Database,
    codec: Codec,
    policy: Policy,
    *,
    dry_run: bool,
    after: str,
    progress: Callable[[PruneProgress], object] | None,
    effects_older_than: timedelta | None,
) -> PruneAllReport:
    """Prune every thread; see DurableSaver.prune_all.

    Raises:
        PruneFailedError: Some threads could not be pruned; everything else was done.
    """
    choose = keep_newest(policy.keep_last, policy.older_than)
    require_text(after, "after")
    total = await _count_threads(db) if progress is not None else 0
    seen, pruned, removed = 0, 0, Removed({}, {})
    failures: dict[str, Exception] = {}
    while page := await _next_threads(db, after):
        try:
            report = await remove_from_threads(db, codec, page, choose, dry_run=dry_run)
        except PruneFailedError as exc:
            report = exc.report
            failures |= exc.failures
        after = page[-1]
        seen, pruned = seen + len(page), pruned + len(report.threads)
        removed = Removed.sum([removed, report.total])
        if progress is not None:
            progress(PruneProgress(after, seen, total, removed))
    orphans = await _remove_orphans(db, dry_run=dry_run)
    expired = 0
    if effects_older_than is not None:
        expired = await expire_effects(db, effects_older_than, dry_run=dry_run)
    if failures:
        raise PruneFailedError(PruneReport({}, dry_run), failures) from next(iter(failures.values()))
    return PruneAllReport(seen, pruned, removed, orphans, dry_run, expired, await count_orphaned_effects(db))


async def _count_threads(db: Database) -> int:
    [(count,)] = await db.fetch(COUNT_THREADS)
    return int(count)


async def _next_threads(db: Database, after: str) -> list[str]:
    rows = await db.fetch(LIST_THREADS, {"after": after, "count": _PAGE})
    return [thread_id for (thread_id,) in rows]


async def _remove_orphans(db: Database, *, dry_run: bool) -> int:
    """Delete old writes whose checkpoint was never stored, and old tombstones; return the number of writes."""
    [(now,)] = await db.fetch(NOW)
    oldest_kept = int((now - _ORPHAN_AGE).timestamp() * 1000)
    by_thread: dict[str, set[Key]] = {}
    for thread_id, ns, id_ in await db.fetch(LIST_ORPHAN_WRITES):
        ulid = derive_ulid(id_)
        if ulid is not None and ulid.int >> 80 < oldest_kept:
            by_thread.setdefault(thread_id, set()).add((ns, id_))
    removed = 0
    for thread_id, keys in by_thread.items():
        removed += await _remove_writes(db, thread_id, keys, dry_run=dry_run)
    if not dry_run:
        await db.fetch(DELETE_TOMBSTONES, (_TOMBSTONE_AGE,))
    return removed


async def _remove_writes(db: Database, thread_id: str, keys: set[Key], *, dry_run: bool) -> int:
    none = columns((), "kept_ns", "kept_id", "kept_channel")

    async def work(session: Session) -> Removed:
        thread = {"thread": thread_id}
        _, nodes = await session.pipeline((LOCK_THREAD, (thread_id,)), (LIST_NODES, thread))
        orphaned = keys - {(ns, id_) for ns, id_, *_ in nodes}  # their checkpoint may have arrived meanwhile
        rows = await session.fetch(DELETE_WRITES, thread | columns(orphaned, "ns", "id") | none)
        return Removed({"writes": int(rows[0][0])}, {"writes": int(rows[0][1])})

    return (await run_removal(db, work, dry_run=dry_run)).rows["writes"]

"""What the saver's retention methods do: check arguments, then work through the threads one by one."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any

import psycopg
from ulid import ULID

from langgraph_durable._checkpoints.codec import Codec
from langgraph_durable._checkpoints.rows import Fold
from langgraph_durable._metrics import measured
from langgraph_durable._postgres.database import Database
from langgraph_durable._retention import copy as _copy
from langgraph_durable._retention import erase as _erase
from langgraph_durable._retention import prune as _prune
from langgraph_durable._retention import prune_all as _prune_all
from langgraph_durable._retention.compact import GetState, fold_checkpoint, graph_has
from langgraph_durable._retention.effects import count_orphans, expire_effects
from langgraph_durable._retention.plan import newest_survive
from langgraph_durable._retention.policy import Policy
from langgraph_durable._retention.stats import storage_stats as _storage_stats
from langgraph_durable._validation import require_ids, require_text, require_thread_id
from langgraph_durable.errors import (
    CheckpointCorruptedError,
    CompactionRefusedError,
    EffectUnresolvedError,
    InvalidConfigError,
    PruneFailedError,
    UnserializableValueError,
)
from langgraph_durable.reports import (
    DeleteReceipt,
    PruneAllReport,
    PruneProgress,
    PruneReport,
    Removed,
    StorageStats,
)

_BATCH = 50
_OF_ONE_THREAD = (
    CheckpointCorruptedError,
    CompactionRefusedError,
    EffectUnresolvedError,
    UnserializableValueError,
)
"""Errors that keep one thread from being pruned and say nothing of the others."""


@measured("delete_thread")
async def delete_thread(db: Database, thread_id: str, *, force: bool) -> DeleteReceipt:
    """Delete a thread; see DurableSaver.delete_thread."""
    return await _erase.erase_thread(db, require_thread_id(thread_id), _new_ulid(), force=force)


@measured("delete_for_runs")
async def delete_for_runs(db: Database, codec: Codec, run_ids: Sequence[str]) -> None:
    """Delete the checkpoints of runs; see DurableSaver.delete_for_runs."""
    wanted = require_ids(run_ids, "run_ids")
    if codec.index_keys is not None and "run_id" not in codec.index_keys:
        raise InvalidConfigError(
            "delete_for_runs cannot tell the runs: this saver's indexed_metadata leave out run_id. Make it with "
            "indexed_metadata that have it"
        )
    threads = await _prune.threads_of_runs(db, wanted) if wanted else []
    await _remove_from(db, codec, threads, _prune.keep_other_runs(wanted), dry_run=False)


@measured("prune")
async def prune(
    db: Database, codec: Codec, thread_ids: Sequence[str], policy: Policy, *, dry_run: bool
) -> PruneReport:
    """Delete old checkpoints of threads; see DurableSaver.prune."""
    wanted = require_ids(thread_ids, "thread_ids")
    if policy.keep_last > 0:
        choose = _prune.keep_newest(policy.keep_last, policy.older_than)
        return await _remove_from(db, codec, wanted, choose, dry_run=dry_run)
    return await _from_each(
        wanted,
        lambda thread_id: _erase.erase(db, thread_id, _new_ulid(), dry_run=dry_run),
        dry_run=dry_run,
    )


@measured("compact")
async def compact(
    db: Database, codec: Codec, graph: Any, get_state: GetState, thread_ids: Sequence[str]
) -> PruneReport:
    """Fold the delta channels of threads, then prune them; see DurableSaver.compact."""
    wanted = require_ids(thread_ids, "thread_ids")

    async def fold(thread_id: str) -> list[Fold]:
        nodes = await _prune.list_nodes(db, thread_id)
        survivors = newest_survive(nodes, 1, None)
        latest = [n for n in nodes if n.key in survivors and n.delta_channels]
        folded = [n for n in latest if graph_has(graph, n.checkpoint_ns)]
        folds = [await fold_checkpoint(db, codec, thread_id, node, get_state) for node in folded]
        return [made for made in folds if made is not None]

    return await _remove_from(db, codec, wanted, _prune.keep_newest(1, None), dry_run=False, fold=fold)


@measured("copy_thread")
async def copy_thread(db: Database, source: str, target: str) -> None:
    """Copy a thread; see DurableSaver.copy_thread."""
    source, target = require_thread_id(source), require_thread_id(target)
    if source == target:
        raise InvalidConfigError(f"thread {source!r} cannot be copied onto itself: choose another target")
    await _copy.copy_thread(db, source, target)


@measured("storage_stats")
async def storage_stats(db: Database, thread_id: str | None) -> StorageStats:
    """Count rows and bytes; see DurableSaver.storage_stats."""
    return await _storage_stats(db, require_thread_id(thread_id) if thread_id is not None else None)


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
        PruneFailedError: Some threads could not be pruned; all else was done.
    """
    choose = _prune.keep_newest(policy.keep_last, policy.older_than)
    require_text(after, "after")
    total = await _prune_all.count_threads(db) if progress is not None else 0
    seen, pruned, removed = 0, 0, Removed({}, {})
    failures: dict[str, Exception] = {}
    while batch := await _prune_all.next_threads(db, after, _BATCH):
        try:
            report = await _remove_from(db, codec, batch, choose, dry_run=dry_run)
        except PruneFailedError as exc:
            report = exc.report
            failures |= exc.failures
        after = batch[-1]
        seen, pruned = seen + len(batch), pruned + len(report.threads)
        removed = Removed.sum([removed, report.total])
        if progress is not None:
            progress(PruneProgress(after, seen, total, removed))
    orphans = await _prune_all.delete_orphans(db, dry_run=dry_run)
    expired = 0
    if effects_older_than is not None:
        expired = await expire_effects(db, effects_older_than, dry_run=dry_run)
    if failures:
        raise PruneFailedError(PruneReport({}, dry_run), failures) from next(iter(failures.values()))
    return PruneAllReport(seen, pruned, removed, orphans, dry_run, expired, await count_orphans(db))


async def _remove_from(
    db: Database,
    codec: Codec,
    thread_ids: Iterable[str],
    choose: _prune.Choice,
    *,
    dry_run: bool,
    fold: Callable[[str], Awaitable[list[Fold]]] | None = None,
) -> PruneReport:
    async def remove(thread_id: str) -> Removed:
        folds = await fold(thread_id) if fold is not None else []
        return await _prune.remove_checkpoints(
            db, codec.reader, thread_id, choose, dry_run=dry_run, folds=folds
        )

    return await _from_each(thread_ids, remove, dry_run=dry_run)


async def _from_each(
    thread_ids: Iterable[str], remove: Callable[[str], Awaitable[Removed]], *, dry_run: bool
) -> PruneReport:
    """Remove from each thread by itself: where one fails, the others have lost what they were to lose."""
    threads: dict[str, Removed] = {}
    failures: dict[str, Exception] = {}
    for thread_id in thread_ids:
        try:
            removed = await remove(thread_id)
        except (psycopg.Error, *_OF_ONE_THREAD) as exc:
            failures[thread_id] = exc
            continue
        if removed.total_rows:
            threads[thread_id] = removed
    report = PruneReport(threads, dry_run)
    if failures:
        raise PruneFailedError(report, failures) from next(iter(failures.values()))
    return report


def _new_ulid() -> uuid.UUID:
    return uuid.UUID(bytes=ULID().bytes)

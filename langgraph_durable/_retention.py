"""The operations that remove and copy: each thread in a transaction of its own, under its exclusive lock.

A put takes the lock shared, so what a run saves meanwhile comes wholly before or wholly after. Two prunes of one
thread take turns.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta

from langgraph_durable import _retention_statements as sql
from langgraph_durable._checkpoints import are_texts, assemble_page, pair_versions, segmented_values
from langgraph_durable._columns import fold_row, text_array
from langgraph_durable._database import Database
from langgraph_durable._get_statements import GET_BY_ID
from langgraph_durable._pruning import Key, Node, Plan, newest_survive, plan_removal
from langgraph_durable._rows import Fold
from langgraph_durable._segment_reading import SegmentReader, fill_values
from langgraph_durable._sessions import Call, Row, Session
from langgraph_durable._statements import LOCK_THREAD, LOCK_THREADS_SHARED
from langgraph_durable._times import time_fault
from langgraph_durable._ulids import derive_ulid, show_ulid
from langgraph_durable.errors import CheckpointCorrupted, EffectUnresolved, ThreadExists
from langgraph_durable.reports import EraseReceipt, Removed

Choice = Callable[[Sequence[Node], datetime], set[Key]]
"""Chooses which of a thread's checkpoints survive, now by the server's clock."""

_ORPHAN_AGE = timedelta(days=1)
_TOMBSTONE_AGE = timedelta(days=30)


class _DryRun(Exception):
    """Rolls a transaction back that was only to count."""

    def __init__(self, removed: Removed) -> None:
        self.removed = removed


async def list_nodes(db: Database, thread_id: str) -> list[Node]:
    """Fetch what pruning needs to know of a thread.

    Raises:
        CheckpointCorrupted: A row cannot be read; the message says which.

    Round trips: 1.
    """
    return [_node(thread_id, row) for row in await db.fetch(sql.LIST_NODES, {"thread": thread_id})]


async def remove_checkpoints(
    db: Database,
    reader: SegmentReader,
    thread_id: str,
    choose: Choice,
    *,
    dry_run: bool,
    folds: Sequence[Fold] = (),
) -> Removed:
    """Delete the checkpoints of a thread that are not chosen to survive, and all that nothing needs any more.

    First it stores `folds`, each proved before anything is deleted or committed.

    A dry run does the same and rolls it back, so that its numbers are the true ones.

    Raises:
        CheckpointCorrupted: A row cannot be read; the message says which. Nothing was deleted.

    Round trips: 2, those of the transaction among them, if there are no folds. Transaction: its own.
    """

    async def work(session: Session) -> Removed:
        for fold in folds:
            await _store_fold(session, reader, thread_id, fold)
        _, [(now,)], rows = await session.pipeline(
            (LOCK_THREAD, (thread_id,)), (sql.NOW, None), (sql.LIST_NODES, {"thread": thread_id})
        )
        nodes = [_node(thread_id, row) for row in rows]
        plan = plan_removal(nodes, choose(nodes, now))
        removed = await _carry_out(session, thread_id, plan, replaced=bool(folds), last=not dry_run)
        reader.cache.forget(thread_id)
        if dry_run:
            raise _DryRun(removed)
        return removed

    try:
        return await db.run(work, transaction=True)
    except _DryRun as counted:
        return counted.removed


async def _store_fold(session: Session, reader: SegmentReader, thread_id: str, fold: Fold) -> None:
    *_, rows = await session.pipeline(
        (LOCK_THREAD, (thread_id,)),
        (sql.FOLD_CHANNELS.one, fold_row(thread_id, fold).params()),
        (GET_BY_ID, {"thread": thread_id, "ns": fold.checkpoint_ns, "id": fold.checkpoint_id}),
    )
    page = assemble_page(rows)  # nothing if it was deleted since it was read
    await fill_values(session, reader, segmented_values(page))
    for stored in page:
        fold.prove(stored)


def _node(thread_id: str, row: Row) -> Node:
    (
        ns,
        id_,
        parent,
        channels,
        versions,
        ulid,
        created_at,
        root,
        run_id,
        format_,
        deltas,
        is_fork,
        is_indexed,
    ) = row
    values = pair_versions(channels, versions, thread_id, ns, id_)
    where = f"thread {thread_id!r}, namespace {ns!r}, checkpoint {id_!r}"
    if (fault := time_fault(created_at=created_at)) is not None:
        raise CheckpointCorrupted(f"cannot read {fault}: {where}")
    if not is_indexed:
        raise CheckpointCorrupted(f"metadata_index is no object, so what made it is not known: {where}")
    if not are_texts(deltas or ()):
        raise CheckpointCorrupted(f"delta_channels are no list of texts: {where}")
    return Node(
        ns, id_, parent, values, ulid, created_at, root, run_id, format_, tuple(deltas or ()), bool(is_fork)
    )


async def _carry_out(session: Session, thread_id: str, plan: Plan, *, replaced: bool, last: bool) -> Removed:
    thread = {"thread": thread_id}
    kept = _columns(plan.kept_writes, "kept_ns", "kept_id", "kept_channel")
    seeds = _columns(plan.seeds, "seed_ns", "seed_id", "seed_channel")
    counted: dict[str, Call] = {}
    uncounted: list[Call] = []
    if plan.new_ancestors:
        uncounted.append((sql.LEAVE_ANCESTORS, thread | _columns(plan.new_ancestors, "ns", "id") | seeds))
    if plan.orphans:
        uncounted.append((sql.FORGET_PARENTS, thread | _columns(plan.orphans, "ns", "id")))
    if plan.checkpoints:
        uncounted.append((sql.MARK_PRUNED, thread))
        counted["checkpoints"] = (sql.DELETE_CHECKPOINTS, thread | _columns(plan.checkpoints, "ns", "id"))
    if plan.old_ancestors:
        counted["ancestors"] = (sql.DELETE_ANCESTORS, thread | _columns(plan.old_ancestors, "ns", "id"))
    if plan.stripped:
        counted["writes"] = (sql.DELETE_WRITES, thread | _columns(plan.stripped, "ns", "id") | kept)
    if plan.values:
        columns = _columns(plan.values, "ns", "channel", "version")
        counted["channel_values"] = (sql.DELETE_VALUES, thread | columns)
    if plan.values or replaced:
        counted["segments"] = (sql.DELETE_SEGMENTS, thread)
    if not counted and not uncounted:
        return Removed({}, {})
    answers = (await session.pipeline(*uncounted, *counted.values(), last=last))[len(uncounted) :]
    numbers = {table: answer[0] for table, answer in zip(counted, answers, strict=True) if answer[0][0]}
    return Removed({t: int(n) for t, (n, _) in numbers.items()}, {t: int(b) for t, (_, b) in numbers.items()})


def _columns(rows: Iterable[tuple[str, ...]], *names: str) -> dict[str, str]:
    """Turn rows into parallel arrays, as unnest takes them."""
    ordered = sorted(rows)
    return {name: text_array([row[i] for row in ordered]) for i, name in enumerate(names)}


def keep_newest(keep_last: int, older_than: timedelta | None) -> Choice:
    """Choose by age: the newest of each namespace survive, and what is younger than `older_than`."""

    def choose(nodes: Sequence[Node], now: datetime) -> set[Key]:
        return newest_survive(nodes, keep_last, now - older_than if older_than is not None else None)

    return choose


def keep_other_runs(run_ids: Sequence[str]) -> Choice:
    """Choose every checkpoint that none of these runs made."""
    doomed = set(run_ids)
    return lambda nodes, _: {
        node.key for node in nodes if node.ulid is not None and node.run_id not in doomed
    }


async def threads_of_runs(db: Database, run_ids: Sequence[str]) -> list[str]:
    """Return the threads that runs made checkpoints in."""
    return [thread_id for (thread_id,) in await db.fetch(sql.FIND_THREADS_OF_RUNS, (list(run_ids),))]


async def erase_thread(db: Database, thread_id: str, ulid: uuid.UUID, *, force: bool) -> EraseReceipt:
    """Delete a thread, leaving a tombstone under `ulid` if there was one to delete.

    Raises:
        EffectUnresolved: It has effects that may have happened, and `force` is not given; nothing was deleted.

    Round trips: 1. Transaction: its own.
    """
    rows = await db.pipeline(*_erasure(thread_id, ulid, force=force))
    return EraseReceipt(thread_id, show_ulid(ulid), rows[0][3], _erased(thread_id, rows))


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
        raise EffectUnresolved(
            f"thread {thread_id!r} has {unresolved} effects that may have happened, and was not deleted: decide on "
            "them (EffectLog.pending, EffectLog.resolve), or delete with force=True"
        )
    gone = [row for row in rows if row[1]]
    return Removed({row[0]: row[1] for row in gone}, {row[0]: int(row[2]) for row in gone})


async def copy_thread(db: Database, source: str, target: str) -> None:
    """Copy a thread on the server, as of one moment; an unknown source copies nothing.

    Raises:
        ThreadExists: The target has checkpoints.

    Round trips: 1. Transaction: its own.
    """
    locks: list[Call] = [(LOCK_THREADS_SHARED, ([source],)), (LOCK_THREAD, (target,))]
    if source > target:  # always in one order, so that two copies cannot wait for each other
        locks.reverse()
    rows = await db.pipeline(*locks, (sql.COPY_THREAD, {"source": source, "target": target}))
    if rows[0][0]:
        raise ThreadExists(
            f"thread {target!r} has checkpoints, and {source!r} was not copied onto it: choose another target, or "
            "delete_thread it first"
        )


# --- sweep ---


async def count_threads(db: Database) -> int:
    """Count the threads that have checkpoints."""
    [(count,)] = await db.fetch(sql.COUNT_THREADS)
    return int(count)


async def next_threads(db: Database, after: str, count: int) -> list[str]:
    """Return the next threads in the order of their ids."""
    rows = await db.fetch(sql.NEXT_THREADS, {"after": after, "count": count})
    return [thread_id for (thread_id,) in rows]


async def sweep_orphans(db: Database, *, dry_run: bool) -> int:
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

"""Removing checkpoints of threads, each thread in a transaction under its exclusive lock.

A put takes the lock shared, so each save of a concurrent run comes before or after a removal. Two removals
from one thread run one after the other.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import datetime, timedelta

import psycopg

from langgraph_durable._checkpoints.codec import Codec
from langgraph_durable._checkpoints.put import FOLD_CHANNELS, fold_row
from langgraph_durable._checkpoints.read import (
    GET_CHECKPOINT,
    are_texts,
    assemble_page,
    checkpoint_key,
    pair_versions,
    segmented_values,
)
from langgraph_durable._checkpoints.rows import Fold
from langgraph_durable._postgres.database import Database, Session
from langgraph_durable._postgres.locks import LOCK_THREAD
from langgraph_durable._postgres.statement import Call, Row, load, storing, text_array
from langgraph_durable._postgres.times import time_fault
from langgraph_durable._retention.plan import Key, Node, Plan, choose_newest, plan_removal
from langgraph_durable._segments.reading import SegmentReader, fill_values
from langgraph_durable.errors import (
    CheckpointCorruptedError,
    CompactionRefusedError,
    EffectUnresolvedError,
    PruneFailedError,
    UnserializableValueError,
)
from langgraph_durable.reports import PruneReport, Removed

NOW = load(__package__, "now")
LIST_NODES = load(__package__, "list_nodes")
LEAVE_ANCESTORS = load(__package__, "leave_ancestors")
FORGET_PARENTS = load(__package__, "forget_parents")
MARK_PRUNED = load(__package__, "mark_pruned")
DELETE_CHECKPOINTS = load(__package__, "delete_checkpoints")
DELETE_ANCESTORS = load(__package__, "delete_ancestors")
DELETE_WRITES = load(__package__, "delete_writes")
DELETE_VALUES = load(__package__, "delete_values")
DELETE_SEGMENTS = load(__package__, "delete_segments")

Choice = Callable[[Sequence[Node], datetime], set[Key]]
"""Chooses the checkpoints of a thread that survive, given its nodes and the server's time."""

_THREAD_ERRORS = (
    CheckpointCorruptedError,
    CompactionRefusedError,
    EffectUnresolvedError,
    UnserializableValueError,
)
"""Errors that concern one thread only: the others are pruned nevertheless."""


# --- which checkpoints survive ---


def keep_newest(keep_last: int, older_than: timedelta | None) -> Choice:
    """Choose the newest checkpoints of each namespace, and those younger than `older_than`."""

    def choose(nodes: Sequence[Node], now: datetime) -> set[Key]:
        return choose_newest(nodes, keep_last, now - older_than if older_than is not None else None)

    return choose


def keep_other_runs(run_ids: Sequence[str]) -> Choice:
    """Choose the checkpoints that none of these runs made."""
    removed = set(run_ids)
    return lambda nodes, _: {
        node.key for node in nodes if node.ulid is not None and node.run_id not in removed
    }


# --- several threads ---


async def remove_from_threads(
    db: Database, codec: Codec, thread_ids: Iterable[str], choose: Choice, *, dry_run: bool
) -> PruneReport:
    """Remove the checkpoints that are not chosen from each thread.

    Raises:
        PruneFailedError: Some threads failed; the others lost their checkpoints.
    """

    async def remove(thread_id: str) -> Removed:
        return await remove_checkpoints(db, codec.reader, thread_id, choose, dry_run=dry_run)

    return await remove_each(thread_ids, remove, dry_run=dry_run)


async def remove_each(
    thread_ids: Iterable[str], remove: Callable[[str], Awaitable[Removed]], *, dry_run: bool
) -> PruneReport:
    """Call `remove` for each thread, also after one has failed, and report what was removed.

    Raises:
        PruneFailedError: Some threads failed; it carries the report of the others.
    """
    threads: dict[str, Removed] = {}
    failures: dict[str, Exception] = {}
    for thread_id in thread_ids:
        try:
            removed = await remove(thread_id)
        except (psycopg.Error, *_THREAD_ERRORS) as exc:
            failures[thread_id] = exc
            continue
        if removed.total_rows:
            threads[thread_id] = removed
    report = PruneReport(threads, dry_run)
    if failures:
        raise PruneFailedError(report, failures) from next(iter(failures.values()))
    return report


# --- one thread ---


class _RolledBack(Exception):  # noqa: N818 (control flow: callers never see it)
    """Rolls back the transaction of a dry run."""

    def __init__(self, removed: Removed) -> None:
        self.removed = removed


async def run_removal(
    db: Database, work: Callable[[Session], Awaitable[Removed]], *, dry_run: bool
) -> Removed:
    """Run work in a transaction; a dry run rolls it back, so that its counts are exact."""

    async def run(session: Session) -> Removed:
        removed = await work(session)
        if dry_run:
            raise _RolledBack(removed)
        return removed

    try:
        return await db.run(run, transaction=True)
    except _RolledBack as rolled_back:
        return rolled_back.removed


async def list_nodes(db: Database, thread_id: str) -> list[Node]:
    """Fetch the checkpoints and ancestors of a thread.

    Raises:
        CheckpointCorruptedError: A row cannot be read; the message says which.

    Round trips: 1.
    """
    return [_node(thread_id, row) for row in await db.fetch(LIST_NODES, {"thread": thread_id})]


async def remove_checkpoints(
    db: Database,
    reader: SegmentReader,
    thread_id: str,
    choose: Choice,
    *,
    dry_run: bool,
    folds: Sequence[Fold] = (),
) -> Removed:
    """Delete the checkpoints of a thread that are not chosen, and the rows that only they needed.

    `folds` are stored first, and verified before anything is deleted.

    Raises:
        CheckpointCorruptedError: A row cannot be read; the message says which. Nothing was deleted.

    Round trips: 2 without folds, transaction included. Transaction: its own.
    """

    async def work(session: Session) -> Removed:
        for fold in folds:
            await _store_fold(session, reader, thread_id, fold)
        _, [(now,)], rows = await session.pipeline(
            (LOCK_THREAD, (thread_id,)), (NOW, None), (LIST_NODES, {"thread": thread_id})
        )
        nodes = [_node(thread_id, row) for row in rows]
        plan = plan_removal(nodes, choose(nodes, now))
        removed = await _execute(session, thread_id, plan, replaced=bool(folds), last=not dry_run)
        reader.cache.forget(thread_id)
        return removed

    return await run_removal(db, work, dry_run=dry_run)


async def _store_fold(session: Session, reader: SegmentReader, thread_id: str, fold: Fold) -> None:
    *_, rows = await session.pipeline(
        (LOCK_THREAD, (thread_id,)),
        storing(FOLD_CHANNELS, [fold_row(thread_id, fold)]),
        (GET_CHECKPOINT, checkpoint_key(thread_id, fold.checkpoint_ns, fold.checkpoint_id)),
    )
    page = assemble_page(rows)  # empty if the checkpoint was deleted since it was read
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
        raise CheckpointCorruptedError(f"cannot read {fault}: {where}")
    if not is_indexed:
        raise CheckpointCorruptedError(f"cannot read metadata_index, which is not an object: {where}")
    if not are_texts(deltas or ()):
        raise CheckpointCorruptedError(f"cannot read delta_channels, which is not a list of texts: {where}")
    return Node(
        ns, id_, parent, values, ulid, created_at, root, run_id, format_, tuple(deltas or ()), bool(is_fork)
    )


async def _execute(session: Session, thread_id: str, plan: Plan, *, replaced: bool, last: bool) -> Removed:
    """Carry out a plan in one round trip."""
    thread = {"thread": thread_id}
    kept = columns(plan.kept_writes, "kept_ns", "kept_id", "kept_channel")
    seeds = columns(plan.seeds, "seed_ns", "seed_id", "seed_channel")
    counted: dict[str, Call] = {}
    uncounted: list[Call] = []
    if plan.new_ancestors:
        uncounted.append((LEAVE_ANCESTORS, thread | columns(plan.new_ancestors, "ns", "id") | seeds))
    if plan.orphans:
        uncounted.append((FORGET_PARENTS, thread | columns(plan.orphans, "ns", "id")))
    if plan.checkpoints:
        uncounted.append((MARK_PRUNED, thread))
        counted["checkpoints"] = (DELETE_CHECKPOINTS, thread | columns(plan.checkpoints, "ns", "id"))
    if plan.old_ancestors:
        counted["ancestors"] = (DELETE_ANCESTORS, thread | columns(plan.old_ancestors, "ns", "id"))
    if plan.stripped:
        counted["writes"] = (DELETE_WRITES, thread | columns(plan.stripped, "ns", "id") | kept)
    if plan.values:
        values = columns(plan.values, "ns", "channel", "version")
        counted["channel_values"] = (DELETE_VALUES, thread | values)
    if plan.values or replaced:
        counted["segments"] = (DELETE_SEGMENTS, thread)
    if not counted and not uncounted:
        return Removed({}, {})
    answers = (await session.pipeline(*uncounted, *counted.values(), last=last))[len(uncounted) :]
    numbers = {table: answer[0] for table, answer in zip(counted, answers, strict=True) if answer[0][0]}
    return Removed({t: int(n) for t, (n, _) in numbers.items()}, {t: int(b) for t, (_, b) in numbers.items()})


def columns(rows: Iterable[tuple[str, ...]], *names: str) -> dict[str, str]:
    """Return rows as parallel arrays, the parameters of unnest."""
    ordered = sorted(rows)
    return {name: text_array([row[i] for row in ordered]) for i, name in enumerate(names)}

"""The operations that remove and copy: each thread in a transaction of its own, under its exclusive lock.

A put takes the lock shared, so what a run saves meanwhile comes wholly before or wholly after. Two prunes of one
thread take turns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta

from langgraph_durable._checkpoints.put import FOLD_CHANNELS, fold_row
from langgraph_durable._checkpoints.read import (
    GET_BY_ID,
    are_texts,
    assemble_page,
    pair_versions,
    segmented_values,
)
from langgraph_durable._checkpoints.rows import Fold
from langgraph_durable._postgres.arrays import text_array
from langgraph_durable._postgres.database import Database
from langgraph_durable._postgres.locks import LOCK_THREAD
from langgraph_durable._postgres.session import Call, Row, Session
from langgraph_durable._postgres.times import time_fault
from langgraph_durable._retention import statements as sql
from langgraph_durable._retention.plan import Key, Node, Plan, newest_survive, plan_removal
from langgraph_durable._segments.reading import SegmentReader, fill_values
from langgraph_durable.errors import CheckpointCorruptedError
from langgraph_durable.reports import Removed

Choice = Callable[[Sequence[Node], datetime], set[Key]]
"""Chooses which of a thread's checkpoints survive, now by the server's clock."""


class _DryRun(Exception):
    """Rolls a transaction back that was only to count."""

    def __init__(self, removed: Removed) -> None:
        self.removed = removed


async def list_nodes(db: Database, thread_id: str) -> list[Node]:
    """Fetch what pruning needs to know of a thread.

    Raises:
        CheckpointCorruptedError: A row cannot be read; the message says which.

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
        CheckpointCorruptedError: A row cannot be read; the message says which. Nothing was deleted.

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
        (FOLD_CHANNELS.one, fold_row(thread_id, fold).params()),
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
        raise CheckpointCorruptedError(f"cannot read {fault}: {where}")
    if not is_indexed:
        raise CheckpointCorruptedError(f"metadata_index is no object, so what made it is not known: {where}")
    if not are_texts(deltas or ()):
        raise CheckpointCorruptedError(f"delta_channels are no list of texts: {where}")
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

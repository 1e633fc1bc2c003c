"""Storing checkpoints and pending writes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import ChannelVersions, Checkpoint, CheckpointMetadata
from langgraph.checkpoint.serde.base import SerializerProtocol

from langgraph_durable._checkpoints.codec import (
    Codec,
    config_of,
    encode_checkpoint,
    encode_writes,
    may_overwrite,
)
from langgraph_durable._checkpoints.known import KnownCheckpoints
from langgraph_durable._checkpoints.put_statements import (
    GET_INSIDE,
    PUT_CHECKPOINTS,
    PUT_WRITES_FIRST_WINS,
    PUT_WRITES_LAST_WINS,
)
from langgraph_durable._checkpoints.read import resolve_checkpoint_id
from langgraph_durable._checkpoints.refs import checkpoint_ref, stored_checkpoint_ref
from langgraph_durable._checkpoints.rows import (
    CheckpointRow,
)
from langgraph_durable._checkpoints.sent_rows import checkpoint_row, writes_row
from langgraph_durable._metrics import measured
from langgraph_durable._postgres.database import Database
from langgraph_durable._postgres.drivers import AsyncDatabase
from langgraph_durable._segments.cache import SegmentCache
from langgraph_durable._validation import require_text
from langgraph_durable.errors import (
    DurableError,
    ParentMissingError,
    ParentPrunedError,
    ThreadDeletedError,
)


@measured("put")
async def put_checkpoint(
    db: Database,
    codec: Codec,
    known: KnownCheckpoints,
    config: RunnableConfig,
    checkpoint: Checkpoint,
    metadata: CheckpointMetadata,
    new_versions: ChannelVersions,
) -> RunnableConfig:
    """Store a checkpoint; see DurableSaver.put."""
    ref = checkpoint_ref(config)
    if ref.checkpoint_id is not None:
        parent_id = await resolve_checkpoint_id(db, ref, ref.checkpoint_id)
        if parent_id != ref.checkpoint_id:
            ref = replace(ref, checkpoint_id=parent_id)
    row = encode_checkpoint(codec, ref, config, checkpoint, metadata, new_versions)
    place = row.thread_id, row.checkpoint_ns
    if isinstance(db, AsyncDatabase):
        known.in_flight[place] = asyncio.get_running_loop()
    try:
        await _store_row(db, row, codec.segments)
    finally:
        known.in_flight.pop(place, None)
    known.add(*place, row.checkpoint_id)
    return config_of(row, row.checkpoint_id)


async def _store_row(db: Database, row: CheckpointRow, cache: SegmentCache) -> None:
    """Store a checkpoint and the values it sends; of these only the segments that are not known to be stored.

    Values and segments that it names without sending them must be stored already. If some are not (they were pruned,
    or never put), nothing is stored, and the put repeats with them. So it does with the small values that the parent
    alone has, of channels that this graph does not know.

    Raises:
        ThreadDeletedError: The thread was deleted while the run that puts this was going.
        ParentPrunedError: Its parent was pruned while the run that puts this was going, and is needed.
        ParentMissingError: Its parent is not stored, and is needed.

    Round trips: 1; 2 if values were missing; 1 more if segments were, and 1 if those are named by indexes that were;
    2 more if some values are inside the parent. Transaction: its own, or a group's.
    """
    known = cache.known(row.thread_id)
    while True:
        sent = checkpoint_row(row, known)
        [(_, verdict, missing, lacking)] = await db.write(row.thread_id, PUT_CHECKPOINTS, sent, locks=True)
        if verdict == "fine":
            for value in row.values.values():
                cache.add(value.leaves)
                cache.note(row.thread_id, value.segments)
            return
        if verdict == "values missing":
            row.send_too(missing)
        elif verdict == "segments missing":
            cache.forget(row.thread_id)
            known.difference_update(lacking)
        elif verdict == "values in parent":
            key = {"thread": row.thread_id, "ns": row.checkpoint_ns, "id": row.parent_checkpoint_id}
            inside = await db.fetch(GET_INSIDE, key)
            row.send_kept((inside[0][0], inside[0][1]) if inside and inside[0][0] else None, missing)
        else:
            raise _refusal(verdict, row)


def _refusal(verdict: str, row: CheckpointRow) -> DurableError:
    what = f"its checkpoint {row.checkpoint_id!r} was not stored"
    if verdict == "thread deleted":
        return ThreadDeletedError(
            f"thread {row.thread_id!r} was deleted while a run of it was going; {what}. Start the thread afresh "
            "with an input"
        )
    if verdict == "parent missing":
        return ParentMissingError(
            f"thread {row.thread_id!r}, namespace {row.checkpoint_ns!r}: {what}. Its delta channels "
            f"{sorted(row.delta_channels)} would be replayed from its parent {row.parent_checkpoint_id!r}, which is "
            "not stored, so all that came before would be lost. If a failover lost the parent, run again without a "
            "checkpoint_id: that goes on from the latest checkpoint that is stored. If checkpoints are imported, put "
            "parents before their children"
        )
    return ParentPrunedError(
        f"thread {row.thread_id!r} was pruned while a run was going from its checkpoint "
        f"{row.parent_checkpoint_id!r}, which delta channels would be replayed from; {what}. Run again from a "
        "checkpoint that is left"
    )


@measured("put_writes")
async def put_writes(
    db: Database,
    serde: SerializerProtocol,
    config: RunnableConfig,
    writes: Sequence[tuple[str, Any]],
    task_id: str,
    task_path: str,
) -> None:
    """Store a task's pending writes; see DurableSaver.put_writes.

    Round trips: 1; 1 more if the checkpoint is named by a ULID. Transaction: its own, or a group's.
    """
    ref, checkpoint_id = stored_checkpoint_ref(config)
    rows = encode_writes(serde, ref, writes, require_text(task_id, "task_id"))
    if not rows:
        return
    checkpoint_id = await resolve_checkpoint_id(db, ref, checkpoint_id)
    statement = PUT_WRITES_LAST_WINS if may_overwrite(writes) else PUT_WRITES_FIRST_WINS
    sent = writes_row(ref, checkpoint_id, rows, task_id, require_text(task_path, "task_path"))
    await db.write(ref.thread_id, statement, sent, locks=False)

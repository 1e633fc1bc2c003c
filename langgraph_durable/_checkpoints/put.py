"""Store checkpoints and pending writes.

What a put sends: docs/design/segments.md. How it places a checkpoint: docs/design/ordering.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import Enum
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import ChannelVersions, Checkpoint, CheckpointMetadata
from langgraph.checkpoint.serde.base import SerializerProtocol

from langgraph_durable._checkpoints.codec import Codec
from langgraph_durable._checkpoints.encoding import encode_checkpoint, encode_writes, may_overwrite
from langgraph_durable._checkpoints.known import KnownCheckpoints, KnownWrites, WritesKey
from langgraph_durable._checkpoints.refs import (
    CheckpointRef,
    checkpoint_ref,
    config_of,
    resolve_checkpoint_id,
    stored_checkpoint_ref,
)
from langgraph_durable._checkpoints.rows import CheckpointRow, Fold, WriteRow
from langgraph_durable._metrics import measured
from langgraph_durable._postgres.database import Database
from langgraph_durable._postgres.drivers import AsyncDatabase
from langgraph_durable._postgres.statement import Column, RowsStatement, SentRow, load, load_rows
from langgraph_durable._segments.cache import SegmentCache
from langgraph_durable._segments.values import EncodedValue, plan_segments
from langgraph_durable._validation import require_text
from langgraph_durable.errors import (
    DurableError,
    ParentMissingError,
    ParentPrunedError,
    ThreadDeletedError,
)

# --- statements ---

# Columns that end in _ats and _sizes are filled by SentRow.add_parts.
_VALUE_COLUMNS = {
    "channels": "text[]",
    "versions": "text[]",
    "types": "text[]",
    "hashes_at": "int",
    "needed_at": "int",
    "needed": "int",
    "data_ats": "int[]",
    "data_sizes": "int[]",
    "entries_ats": "int[]",
    "entries_sizes": "int[]",
    "segment_ats": "int[]",
    "segment_sizes": "int[]",
}
WRITE_COLUMNS = {
    "thread": "text",
    "ns": "text",
    "id": "text",
    "task_id": "text",
    "task_path": "text",
    "indexes": "int[]",
    "channels": "text[]",
    "types": "text[]",
    "value_ats": "int[]",
    "value_sizes": "int[]",
}
PUT_CHECKPOINTS = RowsStatement(None, load(__package__, "put_checkpoints"))
GET_INSIDE = load(__package__, "get_inside")
PUT_WRITES_FIRST_WINS = load_rows(__package__, "put_writes_first_wins", WRITE_COLUMNS)
PUT_WRITES_LAST_WINS = load_rows(__package__, "put_writes_last_wins", WRITE_COLUMNS)
FOLD_CHANNELS = load_rows(
    __package__, "fold_channels", {"thread": "text", "ns": "text", "id": "text", **_VALUE_COLUMNS}
)


class Verdict(str, Enum):
    """What PUT_CHECKPOINTS decides about a checkpoint. Only STORED stores it."""

    STORED = "stored"
    VALUES_MISSING = "values missing"
    SEGMENTS_MISSING = "segments missing"
    VALUES_IN_PARENT = "values in parent"
    THREAD_DELETED = "thread deleted"
    PARENT_PRUNED = "parent pruned"
    PARENT_MISSING = "parent missing"


# --- checkpoints ---

_MOST_ATTEMPTS = 20
"""Each attempt sends more than the one before, so more are needed only if others keep deleting."""


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
        await _store(db, row, codec.segments)
    finally:
        known.in_flight.pop(place, None)
    known.add(*place, row.checkpoint_id)
    return config_of(*place, row.checkpoint_id)


async def _store(db: Database, row: CheckpointRow, cache: SegmentCache) -> None:
    """Store a checkpoint with the values it sends, and with the segments that are not known to be stored.

    The values and segments that it names and does not send must be stored already. If some are not (they were pruned,
    or never put), nothing is stored, and the put is repeated with them. It is repeated, too, with small values that
    only the parent has, of channels that this graph does not know.

    Raises:
        ThreadDeletedError: The thread was deleted during the run.
        ParentPrunedError: The parent was pruned during the run, and is needed.
        ParentMissingError: The parent is not stored, and is needed.

    Round trips: 1; 2 if values were missing; 1 more if segments were, and 1 if those are named by indexes that were;
    2 more if some values are inside the parent. Transaction: its own, or a group's.
    """
    known = cache.known(row.thread_id)
    for _ in range(_MOST_ATTEMPTS):
        sent = checkpoint_row(row, known)
        [(_, answer, missing, lacking)] = await db.write(row.thread_id, PUT_CHECKPOINTS, sent)
        verdict = Verdict(answer)
        if verdict is Verdict.STORED:
            for value in row.values.values():
                if value.entries is not None:
                    cache.add(value.leaves)
                    cache.note(row.thread_id, value.segments)
            return
        if verdict is Verdict.VALUES_MISSING:
            row.send_too(missing)
        elif verdict is Verdict.SEGMENTS_MISSING:
            cache.forget(row.thread_id)
            known.difference_update(lacking)
        elif verdict is Verdict.VALUES_IN_PARENT:
            key = {"thread": row.thread_id, "ns": row.checkpoint_ns, "id": row.parent_checkpoint_id}
            inside = await db.fetch(GET_INSIDE, key)
            row.send_inherited((inside[0][0], inside[0][1]) if inside and inside[0][0] else None, missing)
        else:
            raise refusal(verdict, row)
    raise DurableError(
        f"checkpoint {row.checkpoint_id!r} was not stored: other processes kept deleting what it names. "
        f"Thread {row.thread_id!r}, namespace {row.checkpoint_ns!r}. Put it again once they are done."
    )


def refusal(verdict: Verdict, row: CheckpointRow) -> DurableError:
    """Return the error for a checkpoint that cannot be stored."""
    what = f"checkpoint {row.checkpoint_id!r} was not stored"
    where = f"thread {row.thread_id!r}, namespace {row.checkpoint_ns!r}"
    if verdict is Verdict.THREAD_DELETED:
        return ThreadDeletedError(
            f"{what}: its thread was deleted during the run: {where}. Start the thread afresh with an input."
        )
    if verdict is Verdict.PARENT_MISSING:
        return ParentMissingError(
            f"{what}: its parent {row.parent_checkpoint_id!r} is not stored, and without it the delta channels "
            f"{sorted(row.delta_channels)} would lose their past: {where}. If a failover lost the parent, run again "
            "without a checkpoint_id, which continues from the latest stored checkpoint. If checkpoints are imported, "
            "put parents before their children."
        )
    return ParentPrunedError(
        f"{what}: its parent {row.parent_checkpoint_id!r} was pruned during the run, and delta channels are replayed "
        f"from it: {where}. Run again from a checkpoint that is still stored."
    )


# --- writes ---


@measured("put_writes")
async def put_writes(
    db: Database,
    serde: SerializerProtocol,
    known: KnownWrites,
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
    key = WritesKey(ref.thread_id, ref.namespace, checkpoint_id, task_id)
    token = known.begin(key)
    try:
        await _store_writes(db, ref, checkpoint_id, writes, rows, task_id, task_path)
    finally:
        known.end(token)
    known.add(key, writes)


async def _store_writes(
    db: Database,
    ref: CheckpointRef,
    checkpoint_id: str,
    writes: Sequence[tuple[str, Any]],
    rows: Sequence[WriteRow],
    task_id: str,
    task_path: str,
) -> None:
    checkpoint_id = await resolve_checkpoint_id(db, ref, checkpoint_id)
    statement = PUT_WRITES_LAST_WINS if may_overwrite(writes) else PUT_WRITES_FIRST_WINS
    sent = writes_row(ref, checkpoint_id, rows, task_id, require_text(task_path, "task_path"))
    await db.write(ref.thread_id, statement, sent)


# --- rows as they are sent ---


def checkpoint_row(row: CheckpointRow, known: set[bytes]) -> SentRow:
    """Return a checkpoint with the values it sends, without the segments that are known to be stored."""
    sent = SentRow(
        {
            **row.columns,
            "value_channels": list(row.versions),
            "value_versions": list(row.versions.values()),
            "delta_channels": row.delta_channels,
            "unmentioned_channels": list(row.unmentioned),
            "unmentioned_versions": list(row.unmentioned.values()),
        }
    )
    sent.add_bytes(row.checkpoint)
    sent.add_bytes(row.metadata)
    add_values(sent, row.values, row.versions, known)
    return sent


_NO_VALUES: dict[str, Column] = {
    name: () if kind.endswith("[]") else 0 for name, kind in _VALUE_COLUMNS.items()
}
"""What most puts send besides their checkpoint."""


def add_values(
    sent: SentRow, values: Mapping[str, EncodedValue], versions: Mapping[str, str | None], known: set[bytes]
) -> None:
    """Add values to a row, and those of their segments that are not known to be stored."""
    if not values:
        sent.columns |= _NO_VALUES
        return
    segments, needed = plan_segments(values.values(), known)
    sent.columns |= {
        "channels": list(values),
        "versions": [versions[channel] for channel in values],
        "types": [value.kind for value in values.values()],
        "hashes_at": sent.add_bytes(b"".join(segments)),
        "needed_at": sent.add_bytes(b"".join(needed)),
        "needed": len(needed),
    }
    sent.add_parts("data", [value.data for value in values.values()])
    sent.add_parts(
        "entries", [v.entries if v.entries is None else b"".join(v.entries) for v in values.values()]
    )
    sent.add_parts("segment", list(segments.values()))


def fold_row(thread_id: str, fold: Fold) -> SentRow:
    """Return the values of a fold, for FOLD_CHANNELS."""
    sent = SentRow({"thread": thread_id, "ns": fold.checkpoint_ns, "id": fold.checkpoint_id})
    add_values(sent, fold.values, fold.versions, known=set())
    return sent


def writes_row(
    ref: CheckpointRef, checkpoint_id: str, writes: Sequence[WriteRow], task_id: str, task_path: str
) -> SentRow:
    """Return the writes of a task, for PUT_WRITES_FIRST_WINS or PUT_WRITES_LAST_WINS."""
    sent = SentRow(
        {
            "thread": ref.thread_id,
            "ns": ref.namespace,
            "id": checkpoint_id,
            "task_id": task_id,
            "task_path": task_path,
            "indexes": [write.idx for write in writes],
            "channels": [write.channel for write in writes],
            "types": [write.type for write in writes],
        }
    )
    sent.add_parts("value", [write.value for write in writes])
    return sent

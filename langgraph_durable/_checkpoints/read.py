"""The operations on checkpoints and writes, each written once, over any Database."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from types import NoneType

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple

from langgraph_durable._checkpoints import get_statements as sql
from langgraph_durable._checkpoints.codec import Codec, decode_ancestor, decode_checkpoint
from langgraph_durable._checkpoints.known import KnownCheckpoints
from langgraph_durable._checkpoints.refs import CheckpointRef, checkpoint_ref
from langgraph_durable._checkpoints.rows import (
    StoredCheckpoint,
    StoredValue,
    StoredWrite,
)
from langgraph_durable._checkpoints.ulids import format_ulid, parse_ulid
from langgraph_durable._metrics import measured
from langgraph_durable._postgres.database import Database
from langgraph_durable._postgres.session import Params, Row
from langgraph_durable._postgres.statement import Statement
from langgraph_durable._segments.reading import Fetches, SegmentReader, read_segmented
from langgraph_durable._segments.values import SegmentedValue, is_index
from langgraph_durable.errors import (
    CheckpointCorruptedError,
)


@measured("get_tuple")
async def get_tuple(
    db: Database, codec: Codec, known: KnownCheckpoints, config: RunnableConfig
) -> CheckpointTuple | None:
    """Fetch and decode a checkpoint; see DurableSaver.get_tuple."""
    stored = await get_checkpoint(db, checkpoint_ref(config), codec.reader, or_ancestor=True)
    if stored is None:
        return None
    if stored.metadata is None:
        return decode_ancestor(codec.serde, stored)
    known.add(stored.thread_id, stored.checkpoint_ns, stored.checkpoint_id)
    return decode_checkpoint(codec.serde, stored)


@measured("get_ulid")
async def get_ulid(db: Database, config: RunnableConfig) -> str | None:
    """Return the ULID of a checkpoint; see DurableSaver.get_ulid."""
    stored = await get_checkpoint(db, checkpoint_ref(config), None)
    return format_ulid(stored.ulid) if stored is not None else None


async def get_checkpoint(
    db: Database, ref: CheckpointRef, reader: SegmentReader | None, *, or_ancestor: bool = False
) -> StoredCheckpoint | None:
    """Fetch one checkpoint with its values and writes: the named one, or the namespace's latest.

    If the named one was pruned, fetch the ancestor it left, if that is wanted. Without a reader, values that are made
    of segments cannot be decoded.

    Round trips: 1; 1 more if segments are not at hand; 1 more if the checkpoint is named by a ULID.
    """
    if ref.checkpoint_id is None:
        page = await _read_page(db, reader, sql.GET_LATEST, (ref.thread_id, ref.namespace))
    else:
        checkpoint_id = await resolve_checkpoint_id(db, ref, ref.checkpoint_id)
        key = {"thread": ref.thread_id, "ns": ref.namespace, "id": checkpoint_id}
        page = await _read_page(db, reader, sql.GET_BY_ID_OR_ANCESTOR if or_ancestor else sql.GET_BY_ID, key)
    return page[0] if page else None


async def _read_page(
    db: Database, reader: SegmentReader | None, statement: Statement, params: Params
) -> list[StoredCheckpoint]:
    async def read(fetches: Fetches) -> tuple[list[StoredCheckpoint], list[SegmentedValue]]:
        page = assemble_page(await fetches.fetch(statement, params))
        return page, segmented_values(page)

    return await read_segmented(db, reader, read) if reader is not None else (await read(db))[0]


async def resolve_checkpoint_id(db: Database, ref: CheckpointRef, checkpoint_id: str) -> str:
    """Return the runtime's id of a checkpoint that may be named by its ULID; an unknown one as it is.

    Round trips: none for an id that cannot be a ULID, else 1.
    """
    ulid = parse_ulid(checkpoint_id)
    if ulid is None:
        return checkpoint_id
    [(found,)] = await db.fetch(
        sql.FIND_BY_ULID,
        {"thread_id": ref.thread_id, "checkpoint_ns": ref.namespace, "id": checkpoint_id, "ulid": ulid},
    )
    return str(found)


async def find_ulid(db: Database, ref: CheckpointRef, checkpoint_id: str) -> uuid.UUID | None:
    """Return the place of a stored checkpoint in the order of its thread.

    Round trips: 1.
    """
    rows = await db.fetch(
        sql.FIND_ULID,
        {
            "thread_id": ref.thread_id,
            "checkpoint_ns": ref.checkpoint_ns,
            "checkpoint_id": checkpoint_id,
        },
    )
    return rows[0][0] if rows else None


def assemble_page(rows: Sequence[Row]) -> list[StoredCheckpoint]:
    """Put the rows of a reading statement together, newest checkpoint first."""
    page: dict[tuple[str, str, str], StoredCheckpoint] = {}
    values: dict[tuple[str, str, str, str | None], StoredValue] = {}
    indexes: dict[tuple[str, bytes], bytes] = {}
    later: list[Row] = []
    for row in rows:
        kind, thread_id, checkpoint_ns, first, second = row[:5]
        if kind == sql.CHECKPOINT:
            page[thread_id, checkpoint_ns, first] = _stored_checkpoint(row)
        elif kind == sql.VALUE:
            values[thread_id, checkpoint_ns, first, second] = stored_value(thread_id, row[7], row[8], row[15])
        elif kind == sql.INDEX:
            indexes[thread_id, row[10]] = row[8]
        else:
            later.append(row)
    for row in later:
        checkpoint = page[row[1], row[2], row[3]]
        write = StoredWrite(row[4], row[5], row[14], row[6], (row[7], row[8]))
        if row[0] == sql.WRITE:
            checkpoint.writes.append(write)
        else:
            checkpoint.parent_sends.append(write)
    for value in values.values():
        if isinstance(value, SegmentedValue):
            own = ((entry, (value.thread_id, entry)) for entry in value.entries if is_index(entry))
            value.indexes = {entry: indexes[key] for entry, key in own if key in indexes}
    for checkpoint in page.values():
        for channel, version in checkpoint.versions.items():
            key = (checkpoint.thread_id, checkpoint.checkpoint_ns, channel, version)
            if key in values:
                checkpoint.values[channel] = values[key]
    return sorted(page.values(), key=lambda c: (c.ulid.int, c.thread_id, c.checkpoint_ns), reverse=True)


def stored_value(
    thread_id: str, kind: str, data: bytes | None, entries: Sequence[bytes] | None
) -> StoredValue:
    """Return a channel's value as the columns have it; one that says so if they have none."""
    if data is None:
        return SegmentedValue(thread_id, kind, b"", (), fault="its data is NULL")
    if entries is None:
        return (kind, data)
    if not {*map(type, entries)} <= {bytes}:
        return SegmentedValue(thread_id, kind, b"", (), fault="its segments are no list of hashes")
    return SegmentedValue(thread_id, kind, data, entries)


def segmented_values(page: Sequence[StoredCheckpoint]) -> list[SegmentedValue]:
    """Return the values in a page that are made of segments, each once."""
    found = {id(v): v for c in page for v in c.values.values() if isinstance(v, SegmentedValue)}
    return list(found.values())


def _stored_checkpoint(row: Row) -> StoredCheckpoint:
    (
        _,
        thread_id,
        checkpoint_ns,
        checkpoint_id,
        parent,
        _,
        _,
        kind,
        body,
        meta_kind,
        meta,
        ulid,
        names,
        versions,
        _,
        _,
    ) = row
    stored = StoredCheckpoint(
        thread_id=thread_id,
        checkpoint_ns=checkpoint_ns,
        checkpoint_id=checkpoint_id,
        ulid=ulid,
        parent_checkpoint_id=parent,
        checkpoint=(kind, body) if kind is not None else None,
        metadata=(meta_kind, meta) if meta_kind is not None else None,
        versions={},
    )
    try:
        stored.versions = pair_versions(names, versions, thread_id, checkpoint_ns, checkpoint_id)
    except CheckpointCorruptedError as exc:  # raised for whoever decodes it: there may be others on its page
        stored.fault = str(exc)
    return stored


def are_texts(array: Sequence[str]) -> bool:
    """Return whether an array has texts only: what no NOT NULL sees to is that it has no NULL, nor arrays, inside."""
    return {*map(type, array)} <= {str}


def pair_versions(
    names: Sequence[str],
    versions: Sequence[str | None],
    thread_id: str,
    checkpoint_ns: str,
    checkpoint_id: str,
) -> dict[str, str | None]:
    """Return the version of each channel that a checkpoint has a value of; None if that is inside the checkpoint.

    Raises:
        CheckpointCorruptedError: The columns do not pair, or channels are no texts; the message names the checkpoint.
    """
    if len(names) != len(versions) or not (are_texts(names) and {*map(type, versions)} <= {str, NoneType}):
        raise CheckpointCorruptedError(
            f"value_channels and value_versions do not pair: thread {thread_id!r}, "
            f"namespace {checkpoint_ns!r}, checkpoint {checkpoint_id!r}"
        )
    return dict(zip(names, versions, strict=True))

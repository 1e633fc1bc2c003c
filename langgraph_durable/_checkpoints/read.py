"""Read checkpoints: one by its id or ULID, the latest, or a page of a listing."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from types import NoneType
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple

from langgraph_durable._checkpoints.codec import Codec
from langgraph_durable._checkpoints.decoding import decode_ancestor, decode_checkpoint
from langgraph_durable._checkpoints.known import KnownCheckpoints
from langgraph_durable._checkpoints.refs import CheckpointRef, checkpoint_ref, resolve_checkpoint_id
from langgraph_durable._checkpoints.rows import StoredCheckpoint, StoredValue, StoredWrite
from langgraph_durable._checkpoints.ulids import format_ulid
from langgraph_durable._metrics import measured
from langgraph_durable._postgres.database import Database, Session
from langgraph_durable._postgres.statement import Params, Row, Statement, load
from langgraph_durable._segments.reading import fill_values, reread_locked
from langgraph_durable._segments.values import SegmentedValue, is_index
from langgraph_durable.errors import CheckpointCorruptedError

# --- statements ---


def load_page(name: str) -> Statement:
    """Return page.sql with `sql/<name>.sql` as the source of its checkpoints."""
    template, source = load(__package__, "page").text, load(__package__, name).text
    literal: Any = template.replace("{{page}}", source)  # both are files of this package
    return Statement(literal)


GET_CHECKPOINT = load(__package__, "get_checkpoint")

_CHECKPOINT, _VALUE, _WRITE, _SEND, _INDEX = range(5)
"""The kinds of rows that page.sql returns."""


# --- operations ---


@measured("get_tuple")
async def get_tuple(
    db: Database, codec: Codec, known: KnownCheckpoints, config: RunnableConfig
) -> CheckpointTuple | None:
    """Fetch and decode a checkpoint; see DurableSaver.get_tuple."""
    ref = checkpoint_ref(config)
    known.attempts.note(config)
    stored = await get_checkpoint(db, ref, codec, or_ancestor=True)
    if stored is None:
        return None
    if stored.metadata is None:
        return decode_ancestor(codec.serde, stored)
    known.add(stored.thread_id, stored.checkpoint_ns, stored.checkpoint_id)
    found = decode_checkpoint(codec.serde, stored)
    if found.pending_writes:
        checkpoint = stored.thread_id, stored.checkpoint_ns, stored.checkpoint_id
        known.writes.add_read(checkpoint, found.pending_writes)
    return found


@measured("get_ulid")
async def get_ulid(db: Database, config: RunnableConfig) -> str | None:
    """Return the ULID of a checkpoint; see DurableSaver.get_ulid."""
    stored = await get_checkpoint(db, checkpoint_ref(config), None)
    return format_ulid(stored.ulid) if stored is not None else None


async def get_checkpoint(
    db: Database, ref: CheckpointRef, codec: Codec | None, *, or_ancestor: bool = False
) -> StoredCheckpoint | None:
    """Fetch one checkpoint with its values and writes: the named one, or the namespace's latest.

    Args:
        db: Where.
        ref: The thread, the namespace, and perhaps an id or ULID.
        codec: The saver's; without it, segments are not fetched, so segmented values cannot be decoded.
        or_ancestor: Whether to fetch the ancestor that a pruned checkpoint left.

    Round trips: 1; 1 more if segments are not cached; 1 more if the checkpoint is named by a ULID.
    """
    checkpoint_id = ref.checkpoint_id
    if checkpoint_id is not None:
        checkpoint_id = await resolve_checkpoint_id(db, ref, checkpoint_id)
    page = await read_page(
        db, codec, GET_CHECKPOINT, checkpoint_key(ref.thread_id, ref.namespace, checkpoint_id, or_ancestor)
    )
    return page[0] if page else None


def checkpoint_key(
    thread_id: str, checkpoint_ns: str, checkpoint_id: str | None, or_ancestor: bool = False
) -> dict[str, Any]:
    """Return the parameters of GET_CHECKPOINT."""
    return {"thread": thread_id, "ns": checkpoint_ns, "id": checkpoint_id, "or_ancestor": or_ancestor}


# --- pages ---


async def read_page(
    db: Database, codec: Codec | None, statement: Statement, params: Params
) -> list[StoredCheckpoint]:
    """Fetch checkpoints with their values and writes, newest first.

    Args:
        db: Where.
        codec: The saver's; without it, segments are not fetched.
        statement: GET_CHECKPOINT, or one made by `load_page`.
        params: The statement's.

    Round trips: 1; 1 more if segments are not cached, each of which is fetched once for the whole page.
    """
    page = assemble_page(await db.fetch(statement, params))
    if codec is None or not (values := segmented_values(page)):
        return page
    reader = codec.reader
    missing = await fill_values(db, reader, values)
    if not missing:
        return page

    async def reread(session: Session) -> tuple[list[StoredCheckpoint], Collection[SegmentedValue]]:
        page = assemble_page(await session.fetch(statement, params))
        return page, segmented_values(page)

    return await reread_locked(db, reader, missing, reread)


def assemble_page(rows: Sequence[Row]) -> list[StoredCheckpoint]:
    """Return the checkpoints that the rows of a page make up, newest first."""
    page: dict[tuple[str, str, str], StoredCheckpoint] = {}
    values: dict[tuple[str, str, str, str | None], StoredValue] = {}
    indexes: dict[tuple[str, bytes], bytes] = {}
    later: list[Row] = []
    for row in rows:
        kind, thread_id, checkpoint_ns, first, second = row[:5]
        if kind == _CHECKPOINT:
            page[thread_id, checkpoint_ns, first] = _stored_checkpoint(row)
        elif kind == _VALUE:
            values[thread_id, checkpoint_ns, first, second] = stored_value(thread_id, row[7], row[8], row[15])
        elif kind == _INDEX:
            indexes[thread_id, row[10]] = row[8]
        else:
            later.append(row)
    for row in later:
        checkpoint = page[row[1], row[2], row[3]]
        write = StoredWrite(row[4], row[5], row[14], row[6], (row[7], row[8]))
        if row[0] == _WRITE:
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


def segmented_values(page: Sequence[StoredCheckpoint]) -> list[SegmentedValue]:
    """Return the segmented values in a page, each once."""
    found = {id(v): v for c in page for v in c.values.values() if isinstance(v, SegmentedValue)}
    return list(found.values())


# --- rows ---


def stored_value(
    thread_id: str, kind: str, data: bytes | None, entries: Sequence[bytes] | None
) -> StoredValue:
    """Return a channel's value from its columns; if they are damaged, one with a fault."""
    if data is None:
        return SegmentedValue(thread_id, kind, b"", (), fault="its data is NULL")
    if entries is None:
        return (kind, data)
    if not {*map(type, entries)} <= {bytes}:
        return SegmentedValue(thread_id, kind, b"", (), fault="its segments are not a list of hashes")
    return SegmentedValue(thread_id, kind, data, entries)


def _stored_checkpoint(row: Row) -> StoredCheckpoint:
    _, thread_id, checkpoint_ns, checkpoint_id, parent, _, _, kind, body, *rest = row
    metadata_kind, metadata, ulid, names, versions, _, _ = rest
    stored = StoredCheckpoint(
        thread_id=thread_id,
        checkpoint_ns=checkpoint_ns,
        checkpoint_id=checkpoint_id,
        ulid=ulid,
        parent_checkpoint_id=parent,
        checkpoint=(kind, body) if kind is not None else None,
        metadata=(metadata_kind, metadata) if metadata_kind is not None else None,
        versions={},
    )
    try:
        stored.versions = pair_versions(names, versions, thread_id, checkpoint_ns, checkpoint_id)
    except CheckpointCorruptedError as exc:  # raised when it is decoded, since its page may have others
        stored.fault = str(exc)
    return stored


def are_texts(array: Sequence[str]) -> bool:
    """Return whether an array has only texts: NOT NULL columns may still have NULLs and arrays inside."""
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
        CheckpointCorruptedError: The columns do not pair, or channels are not texts; the message names the checkpoint.
    """
    if len(names) != len(versions) or not (are_texts(names) and {*map(type, versions)} <= {str, NoneType}):
        raise CheckpointCorruptedError(
            f"value_channels and value_versions do not pair: thread {thread_id!r}, "
            f"namespace {checkpoint_ns!r}, checkpoint {checkpoint_id!r}"
        )
    return dict(zip(names, versions, strict=True))

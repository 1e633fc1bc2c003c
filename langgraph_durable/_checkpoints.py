"""The operations on checkpoints and writes, each written once, over any Database."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from types import NoneType
from typing import Any

from psycopg.types.json import Jsonb

from langgraph_durable import _get_statements as sql
from langgraph_durable._columns import checkpoint_row, writes_row
from langgraph_durable._config import CheckpointRef, indexable
from langgraph_durable._database import Database
from langgraph_durable._put_statements import (
    GET_INSIDE,
    PUT_CHECKPOINTS,
    PUT_WRITES_FIRST_WINS,
    PUT_WRITES_LAST_WINS,
)
from langgraph_durable._rows import (
    CheckpointRow,
    StoredCheckpoint,
    StoredValue,
    StoredWrite,
    WriteRow,
)
from langgraph_durable._segment_cache import SegmentCache
from langgraph_durable._segment_reading import Fetches, SegmentReader, read_segmented
from langgraph_durable._segments import SegmentedValue, is_index
from langgraph_durable._sessions import Params, Row
from langgraph_durable._statements import Statement
from langgraph_durable._ulids import derive_ulid, parse_ulid
from langgraph_durable.errors import (
    CheckpointCorrupted,
    DurableError,
    InvalidConfig,
    ParentMissing,
    ParentPruned,
    ThreadDeleted,
)

_LAST_ULID = uuid.UUID(int=2**128 - 1)


async def put_checkpoint(db: Database, row: CheckpointRow, cache: SegmentCache) -> None:
    """Store a checkpoint and the values it sends; of these only the segments that are not known to be stored.

    Values and segments that it names without sending them must be stored already. If some are not (they were pruned,
    or never put), nothing is stored, and the put repeats with them. So it does with the small values that the parent
    alone has, of channels that this graph does not know.

    Raises:
        ThreadDeleted: The thread was deleted while the run that puts this was going.
        ParentPruned: Its parent was pruned while the run that puts this was going, and is needed.
        ParentMissing: Its parent is not stored, and is needed.

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
        return ThreadDeleted(
            f"thread {row.thread_id!r} was deleted while a run of it was going; {what}. Start the thread afresh "
            "with an input"
        )
    if verdict == "parent missing":
        return ParentMissing(
            f"thread {row.thread_id!r}, namespace {row.checkpoint_ns!r}: {what}. Its delta channels "
            f"{sorted(row.delta_channels)} would be replayed from its parent {row.parent_checkpoint_id!r}, which is "
            "not stored, so all that came before would be lost. If a failover lost the parent, run again without a "
            "checkpoint_id: that goes on from the latest checkpoint that is stored. If checkpoints are imported, put "
            "parents before their children"
        )
    return ParentPruned(
        f"thread {row.thread_id!r} was pruned while a run was going from its checkpoint "
        f"{row.parent_checkpoint_id!r}, which delta channels would be replayed from; {what}. Run again from a "
        "checkpoint that is left"
    )


async def put_writes(
    db: Database,
    ref: CheckpointRef,
    checkpoint_id: str,
    writes: Sequence[WriteRow],
    task_id: str,
    task_path: str,
    *,
    last_wins: bool,
) -> None:
    """Store the writes of a task, which may come before the checkpoint they hang on.

    Round trips: 1. Transaction: its own, or a group's.
    """
    statement = PUT_WRITES_LAST_WINS if last_wins else PUT_WRITES_FIRST_WINS
    sent = writes_row(ref, checkpoint_id, writes, task_id, task_path)
    await db.write(ref.thread_id, statement, sent, locks=False)


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


class CheckpointWalk:
    """A listing, newest first, a page at a time; between pages it holds neither connection nor snapshot."""

    page_size = 64

    def __init__(
        self, config: CheckpointRef | None, before: CheckpointRef | None, filter_: dict[str, Any]
    ) -> None:
        self._config = config
        self._before = before
        self._filter = filter_
        self._params: dict[str, Any] | None = None
        self._ended = False

    async def next_page(self, db: Database, reader: SegmentReader, size: int) -> list[StoredCheckpoint]:
        """Fetch the next `size` checkpoints; fewer, or none, at the end.

        The filter is decided here only as far as the database can: its answers contain every match.

        Raises:
            InvalidConfig: `before` names a checkpoint that is not stored and whose id tells no time.

        Round trips: 1; 1 more if segments are not at hand, each of which is fetched once for the whole page; on the
        first page 1 more for a `before`, 1 more for an id that is a ULID.
        """
        if self._ended:
            return []
        if self._params is None:
            self._params = await self._first_params(db)
        self._params["size"] = size
        page = await _read_page(db, reader, self._statement(), self._params)
        self._ended = len(page) < size
        if page:
            last = page[-1]
            self._params |= {
                "cursor_ulid": last.ulid,
                "cursor_thread": last.thread_id,
                "cursor_ns": last.checkpoint_ns,
            }
        return page

    def _statement(self) -> Statement:
        config = self._config
        if config is None:
            return sql.LIST_ALL
        if config.checkpoint_ns is None:
            return sql.LIST_ONE_IN_THREAD if config.checkpoint_id else sql.LIST_THREAD
        return sql.LIST_ONE_IN_NAMESPACE if config.checkpoint_id else sql.LIST_NAMESPACE

    async def _first_params(self, db: Database) -> dict[str, Any]:
        decidable = {k: v for k, v in self._filter.items() if indexable(k) and indexable(v)}
        params: dict[str, Any] = {
            "before": _LAST_ULID,
            "cursor_ulid": _LAST_ULID,
            "cursor_thread": "",
            "cursor_ns": "",
            "filter": Jsonb(decidable),
            "filter_keys": list(decidable),
        }
        if (config := self._config) is not None:
            params |= {"thread_id": config.thread_id, "checkpoint_ns": config.checkpoint_ns}
            if config.checkpoint_id is not None:
                params["checkpoint_id"] = await resolve_checkpoint_id(db, config, config.checkpoint_id)
        if self._before is not None:
            params["before"] = await _place_of(db, self._before)
        return params


async def _place_of(db: Database, before: CheckpointRef) -> uuid.UUID:
    assert before.checkpoint_id is not None  # noqa: S101 (before_ref has seen to it)
    stored = await find_ulid(db, before, before.checkpoint_id)
    ulid = stored or derive_ulid(before.checkpoint_id)
    if ulid is None:
        raise InvalidConfig(
            f"before names checkpoint {before.checkpoint_id!r}, which thread {before.thread_id!r} does not have "
            "and whose id tells no time: pass the config of a listed checkpoint"
        )
    return ulid


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
    except CheckpointCorrupted as exc:  # raised for whoever decodes it: there may be others on its page
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
        CheckpointCorrupted: The columns do not pair, or channels are no texts; the message names the checkpoint.
    """
    if len(names) != len(versions) or not (are_texts(names) and {*map(type, versions)} <= {str, NoneType}):
        raise CheckpointCorrupted(
            f"value_channels and value_versions do not pair: thread {thread_id!r}, "
            f"namespace {checkpoint_ns!r}, checkpoint {checkpoint_id!r}"
        )
    return dict(zip(names, versions, strict=True))

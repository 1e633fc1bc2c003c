"""Store one thread of a source: all of it in one transaction, so that it is imported whole or not at all."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime, timezone
from enum import Enum
from itertools import groupby
from typing import Any, cast

from langgraph.checkpoint.base import Checkpoint

from langgraph_durable._checkpoints.codec import Codec, cut_value, encode, pack
from langgraph_durable._checkpoints.encoding import encode_row, is_small
from langgraph_durable._checkpoints.put import (
    PUT_CHECKPOINTS,
    WRITE_COLUMNS,
    Verdict,
    checkpoint_row,
    refusal,
    writes_row,
)
from langgraph_durable._checkpoints.refs import CheckpointRef
from langgraph_durable._checkpoints.rows import CheckpointRow, WriteRow
from langgraph_durable._metrics import measured
from langgraph_durable._postgres.database import Database, Session
from langgraph_durable._postgres.locks import LOCK_THREAD, SET_FOR_BATCH
from langgraph_durable._postgres.statement import Call, SentRow, gather, load, load_rows, text_array
from langgraph_durable._transfer.records import REPEATED, SourceCheckpoint, SourceWrite
from langgraph_durable._validation import require_text
from langgraph_durable.errors import CheckpointCorruptedError

FIND_THREAD = load(__package__, "find_thread")
SET_TIMES = load(__package__, "set_times")
IMPORT_WRITES = load_rows(__package__, "import_writes", WRITE_COLUMNS)

Batches = AsyncIterator[list[SourceCheckpoint]]
"""The checkpoints of a thread, parents before their children."""


class Outcome(Enum):
    """What became of a thread."""

    IMPORTED = "imported"
    EXISTING = "existing"
    DELETED = "deleted"
    """It was deleted here, so it is not brought back."""
    ABSENT = "absent"
    """The source does not have it."""


@dataclass(frozen=True, slots=True)
class ThreadResult:
    """What became of a thread, and what was stored, or would be."""

    outcome: Outcome
    checkpoints: int = 0
    writes: int = 0


@measured("import_thread")
async def import_thread(
    db: Database, codec: Codec, thread_id: str, batches: Callable[[], Batches]
) -> ThreadResult:
    """Import a thread, unless it exists here or was deleted here.

    Its lock is held meanwhile, so that of several processes only one imports it.

    Args:
        db: Where to store it.
        codec: This saver's.
        thread_id: The thread.
        batches: Iterates over the thread's checkpoints; called again if a transient fault interrupts the transaction.

    Raises:
        CheckpointCorruptedError: The source has something that cannot be decoded.
        UnserializableValueError: A value cannot be stored.
        ParentMissingError: A parent that delta channels need is not in the source.

    Transaction: its own.
    """
    settings = {"lock_timeout": "0", **db.planning}

    async def work(session: Session) -> ThreadResult:
        _, _, [(has_rows, deleted)] = await session.pipeline(
            (SET_FOR_BATCH, settings), (LOCK_THREAD, (thread_id,)), (FIND_THREAD, {"thread": thread_id})
        )
        if has_rows or deleted:
            return ThreadResult(Outcome.EXISTING if has_rows else Outcome.DELETED)
        encoder = ThreadEncoder(codec, thread_id)
        async with closing(batches()) as found:
            async for batch in found:
                await _store(session, encoder.encode(batch))
        return encoder.result()

    return await db.run(work, transaction=True)


async def try_thread(codec: Codec, thread_id: str, batches: Batches) -> ThreadResult:
    """Decode and encode a thread as an import would, and store nothing."""
    encoder = ThreadEncoder(codec, thread_id)
    async with closing(batches):
        async for batch in batches:
            encoder.encode(batch)
    return encoder.result()


def closing(batches: Batches) -> aclosing[Any]:
    """Close an iterator that is left early, with the cursor or file behind it."""
    return aclosing(cast("Any", batches))


@dataclass(slots=True)
class _EncodedBatch:
    checkpoints: list[tuple[CheckpointRow, SentRow]]
    writes: list[SentRow]
    times: list[tuple[str, str, str]]
    """Namespace, id, and when the checkpoint was made, if that is known."""


async def _store(session: Session, batch: _EncodedBatch) -> None:
    # One by one: rows of one statement do not see each other, and children need their parents.
    calls: list[Call] = [(PUT_CHECKPOINTS.many, gather([sent])) for _, sent in batch.checkpoints]
    if batch.writes:
        calls.append((IMPORT_WRITES.many, gather(batch.writes)))
    if batch.times:
        columns = dict(
            zip(("namespaces", "ids", "times"), map(text_array, zip(*batch.times, strict=True)), strict=True)
        )
        calls.append((SET_TIMES, {"thread": batch.checkpoints[0][0].thread_id, **columns}))
    answers = await session.pipeline(*calls)
    for (row, _), [(_, answer, _, _)] in zip(batch.checkpoints, answers, strict=False):
        if (verdict := Verdict(answer)) is not Verdict.STORED:
            raise refusal(verdict, row)


class ThreadEncoder:
    """Encodes the checkpoints of one thread, each value and segment once."""

    def __init__(self, codec: Codec, thread_id: str) -> None:
        self._codec = codec
        self._thread_id = thread_id
        self._sent: dict[tuple[str, str, str], Any] = {}
        """(namespace, channel, version) -> the value if it is small, else REPEATED."""
        self._segments: set[bytes] = set()
        self._checkpoints = 0
        self._writes = 0

    def result(self) -> ThreadResult:
        """Return what was encoded so far."""
        outcome = Outcome.IMPORTED if self._checkpoints else Outcome.ABSENT
        return ThreadResult(outcome, self._checkpoints, self._writes)

    def encode(self, batch: Iterable[SourceCheckpoint]) -> _EncodedBatch:
        """Encode checkpoints, whose parents came before them.

        Raises:
            CheckpointCorruptedError: A checkpoint does not have the form of one.
            UnserializableValueError: A value cannot be stored.
        """
        encoded = _EncodedBatch([], [], [])
        for found in batch:
            row = self._checkpoint(found)
            sent = checkpoint_row(row, self._segments)
            for value in row.values.values():
                self._segments.update(value.segments)
            encoded.checkpoints.append((row, sent))
            if (at := created_at(found.checkpoint)) is not None:
                encoded.times.append((found.checkpoint_ns, found.checkpoint_id, at))
            encoded.writes += self._writes_of(found)
            self._checkpoints += 1
            self._writes += len(found.writes)
        return encoded

    def _checkpoint(self, found: SourceCheckpoint) -> CheckpointRow:
        where = found.where(self._thread_id)
        checkpoint, versions, values = _parts(found, where)
        place = found.checkpoint_ns
        keys = {channel: (place, channel, str(version)) for channel, version in versions.items()}
        self._inherit(found.metadata, keys, values)
        missing = [c for c, v in values.items() if v is REPEATED and keys.get(c) not in self._sent]
        if missing:
            raise CheckpointCorruptedError(
                f"the value of channel {missing[0]!r} is not in the source: {where}"
            )
        # Every version is a new one, so that nothing is inherited from the parent but what _inherit has found. Values
        # that were sent, or are sent as they are, need not be serialized.
        new = {
            channel: version
            for channel, version in versions.items()
            if channel not in values or (keys[channel] not in self._sent and channel not in found.raw)
        }
        ref = CheckpointRef(self._thread_id, place, found.parent_id or None)
        row = encode_row(self._codec, ref, cast("Checkpoint", checkpoint), found.metadata, new)
        for channel, raw in found.raw.items():
            if row.versions.get(channel) is not None and keys[channel] not in self._sent:
                row.values[channel] = cut_value(raw, self._codec.segment_key)
        for channel, key in keys.items():
            if channel in values:
                self._sent[key] = values[channel] if is_small(values[channel]) else REPEATED
        return row

    def _inherit(
        self, metadata: Mapping[str, Any], keys: Mapping[str, tuple[str, str, str]], values: dict[str, Any]
    ) -> None:
        """Add the value of a delta channel whose snapshot is still an ancestor's, as `put` does.

        Replayed from the ancestor, it would include what other branches wrote there.
        """
        counters = metadata.get("counters_since_delta_snapshot")
        for channel in counters if isinstance(counters, Mapping) else ():
            if channel not in values and keys.get(channel) in self._sent:
                values[channel] = self._sent[keys[channel]]

    def _writes_of(self, found: SourceCheckpoint) -> list[SentRow]:
        ref = CheckpointRef(self._thread_id, found.checkpoint_ns, None)
        rows = []
        for (task_id, path), group in groupby(found.writes, lambda w: (w.task_id, w.task_path)):
            require_text(task_id, "task_id")
            encoded = [self._write(write) for write in group]
            rows.append(writes_row(ref, found.checkpoint_id, encoded, task_id, path))
        return rows

    def _write(self, write: SourceWrite) -> WriteRow:
        serde = self._codec.serde
        what = f"channel {write.channel!r}, written by task {write.task_id!r} of thread {self._thread_id!r}"
        kind, data = pack(write.raw if write.raw is not None else encode(serde, write.value, what))
        return WriteRow(write.idx, require_text(write.channel, "a channel's name"), kind, data)


def _parts(found: SourceCheckpoint, where: str) -> tuple[dict[str, Any], Mapping[str, Any], dict[str, Any]]:
    """Return a copy of a checkpoint with its versions and a copy of its values, which it contains.

    Raises:
        CheckpointCorruptedError: It does not have the form of a checkpoint.
    """
    checkpoint = found.checkpoint
    versions, values = checkpoint.get("channel_versions"), checkpoint.get("channel_values")
    format_ = checkpoint.get("v", 1)
    if (
        checkpoint.get("id") != found.checkpoint_id
        or not isinstance(versions, Mapping)
        or not isinstance(values, Mapping)
        or not isinstance(found.metadata, Mapping)
        or not isinstance(format_, int)
    ):
        raise CheckpointCorruptedError(f"the source has something else than a checkpoint: {where}")
    own = dict(values)
    return {**checkpoint, "v": format_, "channel_values": own}, versions, own


def created_at(checkpoint: Mapping[str, Any]) -> str | None:
    """Return when a checkpoint was made, by its own record; None if it has none that Postgres can store."""
    try:
        at = datetime.fromisoformat(checkpoint["ts"])
    except (KeyError, TypeError, ValueError):
        return None
    return (at if at.tzinfo is not None else at.replace(tzinfo=timezone.utc)).isoformat()

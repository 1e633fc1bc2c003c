"""Fetch the segments of values, those that the cache lacks by a second query.

A prune between the two queries: docs/design/segments.md.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from langgraph.checkpoint.serde.base import CipherProtocol

from langgraph_durable._postgres.database import Database, Session
from langgraph_durable._postgres.locks import LOCK_THREADS_SHARED
from langgraph_durable._postgres.statement import Params, Row, Statement, load
from langgraph_durable._segments.cache import SegmentCache
from langgraph_durable._segments.values import SegmentedValue, hashes_in, is_index, open_segment

T = TypeVar("T")

GET_SEGMENTS = load(__package__, "get_segments")

_MOST_REREADS = 20


class Fetches(Protocol):
    """A Database or a Session."""

    async def fetch(self, statement: Statement, params: Params = None) -> list[Row]:
        """Run one statement and return its rows."""
        ...


@dataclass(frozen=True, slots=True)
class SegmentReader:
    """A saver's settings for reading segments."""

    cache: SegmentCache
    key: bytes | None
    cipher: CipherProtocol | None

    def open(self, hash_: bytes, data: bytes) -> bytes:
        """Return a stored segment's bytes, decrypted and checked; see `open_segment`."""
        return open_segment(hash_, data, self.key, self.cipher)


async def reread_locked(
    db: Database,
    reader: SegmentReader,
    thread_ids: Collection[str],
    read: Callable[[Session], Awaitable[tuple[T, Collection[SegmentedValue]]]],
) -> T:
    """Read again, under the threads' shared locks: what is missing then is missing.

    For a read whose segments vanished between its two queries, since another process pruned the threads.

    Args:
        db: Where.
        reader: The saver's.
        thread_ids: The threads whose segments are missing.
        read: Reads by one query, and returns the result and the segmented values in it; may be called several times.

    Round trips: `read`'s, 1 more if segments are not cached, and those of the transaction.
    """
    locked = set(thread_ids)

    async def work(session: Session) -> tuple[T, set[str]]:
        await session.fetch(LOCK_THREADS_SHARED, (sorted(locked),))
        found, values = await read(session)
        return found, await fill_values(session, reader, values)

    found, missing = await db.run(work, transaction=True)
    for _ in range(_MOST_REREADS):
        if missing <= locked:
            break
        locked |= missing  # a listing's page may now have other threads
        found, missing = await db.run(work, transaction=True)
    return found


async def fill_values(db: Fetches, reader: SegmentReader, values: Collection[SegmentedValue]) -> set[str]:
    """Give values their segments, from the cache where possible.

    A value whose segments are missing or damaged gets the reason as its fault.

    Returns:
        The threads in which segments are missing.

    Round trips: 1, or none if all segments are cached.
    """
    values = [value for value in values if not value.fault]
    if not values:
        return set()
    indexes = {entry: data for value in values for entry, data in value.indexes.items()}
    faults: dict[bytes, str] = {}
    runs = {entry: hashes_in(data) for entry, data in _open_all(reader, indexes.items(), faults).items()}
    leaves = [_leaves_of(value, runs) for value in values]
    wanted = dict.fromkeys(
        (value.thread_id, leaf)
        for value, its in zip(values, leaves, strict=True)
        for leaf in its
        if not is_index(leaf)
    )
    opened = await _fetch_segments(db, reader, wanted, faults)
    absent = set()
    for value, its in zip(values, leaves, strict=True):
        if (lost := next((leaf for leaf in its if leaf not in opened), None)) is None:
            value.parts = [opened[leaf] for leaf in its]
            reader.cache.note(value.thread_id, {*its, *value.entries})
            continue
        if lost not in faults:
            absent.add(value.thread_id)
        reason = faults.get(lost, "it is not stored")
        value.fault = f"segment {lost.hex()} of thread {value.thread_id!r}: {reason}"
    return absent


async def _fetch_segments(
    db: Fetches, reader: SegmentReader, wanted: Collection[tuple[str, bytes]], faults: dict[bytes, str]
) -> dict[bytes, bytes]:
    """Return the bytes of leaves, by their hashes."""
    opened = reader.cache.find(leaf for _, leaf in wanted)
    if lacking := [key for key in wanted if key[1] not in opened]:
        threads, hashes = zip(*lacking, strict=True)
        rows = await db.fetch(GET_SEGMENTS, (list(threads), list(hashes)))
        fetched = _open_all(reader, [(leaf, data) for _, leaf, data in rows], faults)
        reader.cache.add(fetched)
        opened |= fetched
    return opened


def _open_all(
    reader: SegmentReader, rows: Iterable[tuple[bytes, bytes]], faults: dict[bytes, str]
) -> dict[bytes, bytes]:
    """Return the bytes of stored segments; add the reasons of those that cannot be read to `faults`."""
    opened = {}
    for hash_, data in rows:
        try:
            opened[hash_] = reader.open(hash_, data)
        except Exception as exc:
            faults[hash_] = f"{type(exc).__name__}: {exc}"
    return opened


def _leaves_of(value: SegmentedValue, runs: Mapping[bytes, Sequence[bytes]]) -> list[bytes]:
    """Return the hashes of a value's leaves, in order; for an index that is missing, its own hash."""
    leaves: list[bytes] = []
    for entry in value.entries:
        leaves += runs.get(entry, (entry,))
    return leaves

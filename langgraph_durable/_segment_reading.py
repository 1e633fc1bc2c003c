"""Reading values that are made of segments: what is not at hand is fetched by a second query.

Between the two queries another process may prune, and segments that the first one found named are gone. Then both run
again, in one transaction under the threads' shared locks: what is missing there is missing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from langgraph_durable._database import Database
from langgraph_durable._get_statements import GET_SEGMENTS
from langgraph_durable._segment_cache import SegmentCache
from langgraph_durable._segments import SegmentedValue, hashes_in, is_index
from langgraph_durable._sessions import Params, Row, Session
from langgraph_durable._statements import LOCK_THREADS_SHARED, Statement

T = TypeVar("T")


class Fetches(Protocol):
    """A Database or a Session."""

    async def fetch(self, statement: Statement, params: Params = None) -> list[Row]:
        """Run one statement and return its rows."""
        ...


@dataclass(frozen=True, slots=True)
class SegmentReader:
    """What it takes to read segments."""

    cache: SegmentCache
    open: Callable[[bytes, bytes], bytes]
    """Turns a stored segment's hash and data into its bytes, decrypted and proved; raises if it cannot."""


async def read_segmented(
    db: Database,
    reader: SegmentReader,
    read: Callable[[Fetches], Awaitable[tuple[T, Collection[SegmentedValue]]]],
) -> T:
    """Read something, and give the segmented values in it their segments, each fetched once at most.

    Args:
        db: Where.
        reader: The saver's.
        read: Reads it by one query and returns it with the values that are segmented; may be called several times.

    Round trips: `read`'s, and 1 more if segments are not at hand.
    """
    found, values = await read(db)
    absent = await fill_values(db, reader, values)
    locked: set[str] = set()
    while not absent <= locked:
        locked |= absent
        found, absent = await db.run(_locked_read(reader, read, sorted(locked)), transaction=True)
    return found


def _locked_read(
    reader: SegmentReader,
    read: Callable[[Fetches], Awaitable[tuple[T, Collection[SegmentedValue]]]],
    thread_ids: Sequence[str],
) -> Callable[[Session], Awaitable[tuple[T, set[str]]]]:
    async def work(session: Session) -> tuple[T, set[str]]:
        await session.fetch(LOCK_THREADS_SHARED, (sorted(thread_ids),))
        found, values = await read(session)
        return found, await fill_values(session, reader, values)

    return work


async def fill_values(db: Fetches, reader: SegmentReader, values: Collection[SegmentedValue]) -> set[str]:
    """Give values their segments, from the cache as far as they are in it.

    A value whose segments cannot be had is given the reason, for whoever decodes it.

    Returns:
        The threads in which segments are missing.

    Round trips: 1, or none if all are at hand.
    """
    values = [value for value in values if not value.fault]
    if not values:
        return set()
    indexes = {entry: data for value in values for entry, data in value.indexes.items()}
    faults: dict[bytes, str] = {}
    runs = {entry: hashes_in(data) for entry, data in _open_all(reader, indexes.items(), faults).items()}
    leaves = [_leaves_of(value, runs) for value in values]
    wanted = dict.fromkeys(
        (v.thread_id, leaf)
        for v, its in zip(values, leaves, strict=True)
        for leaf in its
        if not is_index(leaf)
    )
    at_hand = reader.cache.find(leaf for _, leaf in wanted)
    if lacking := [key for key in wanted if key[1] not in at_hand]:
        threads, hashes = zip(*lacking, strict=True)
        rows = await db.fetch(GET_SEGMENTS, (list(threads), list(hashes)))
        fetched = _open_all(reader, [(leaf, data) for _, leaf, data in rows], faults)
        reader.cache.add(fetched)
        at_hand |= fetched
    absent = set()
    for value, its in zip(values, leaves, strict=True):
        if (lost := next((leaf for leaf in its if leaf not in at_hand), None)) is None:
            value.parts = [at_hand[leaf] for leaf in its]
            reader.cache.note(value.thread_id, {*its, *value.entries})
            continue
        if lost not in faults:
            absent.add(value.thread_id)
        reason = faults.get(lost, "it is not stored")
        value.fault = f"segment {lost.hex()} of thread {value.thread_id!r}: {reason}"
    return absent


def _open_all(
    reader: SegmentReader, rows: Iterable[tuple[bytes, bytes]], faults: dict[bytes, str]
) -> dict[bytes, bytes]:
    """Return the bytes of stored segments; why one has none is added to the faults."""
    opened = {}
    for hash_, data in rows:
        try:
            opened[hash_] = reader.open(hash_, data)
        except Exception as exc:
            faults[hash_] = f"{type(exc).__name__}: {exc}"
    return opened


def _leaves_of(value: SegmentedValue, runs: Mapping[bytes, Sequence[bytes]]) -> list[bytes]:
    """Return the hashes of a value's leaves, in order; in place of those of an index that is not there, its own."""
    leaves: list[bytes] = []
    for entry in value.entries:
        leaves += runs.get(entry, (entry,))
    return leaves

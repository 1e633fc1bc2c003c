"""What pruning, deleting and sweeping report, and what a saver has counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime


@dataclass(frozen=True, slots=True)
class Removed:
    """Rows and bytes that were removed, by table.

    Bytes are those of the stored columns, compressed as they are on disk, without indexes and row headers.
    """

    rows: Mapping[str, int]
    bytes: Mapping[str, int]

    @property
    def total_rows(self) -> int:
        """Rows of all tables."""
        return sum(self.rows.values())

    @property
    def total_bytes(self) -> int:
        """Bytes of all tables."""
        return sum(self.bytes.values())

    @classmethod
    def sum(cls, parts: Iterable[Removed]) -> Removed:
        """Add up what was removed in several places."""
        rows: Counter[str] = Counter()
        bytes_: Counter[str] = Counter()
        for part in parts:
            rows.update(part.rows)
            bytes_.update(part.bytes)
        return cls(dict(rows), dict(bytes_))


@dataclass(frozen=True, slots=True)
class PruneReport:
    """What a prune removed, or, of a dry run, would remove."""

    threads: Mapping[str, Removed]
    """Thread id -> what it lost; threads that lost nothing are not in it."""
    dry_run: bool

    @property
    def total(self) -> Removed:
        """What all threads lost together."""
        return Removed.sum(self.threads.values())


@dataclass(frozen=True, slots=True)
class DeleteReceipt:
    """Proof that a thread was erased."""

    thread_id: str
    ulid: str
    """Names this erasure; the tombstone in the database carries it too."""
    deleted_at: datetime
    """By the server's clock."""
    removed: Removed


@dataclass(frozen=True, slots=True)
class TableStorage:
    """What one table takes."""

    rows: int
    bytes: int
    """On disk, with indexes and TOAST; of a single thread, those of its rows, compressed as they are on disk."""


@dataclass(frozen=True, slots=True)
class StorageStats:
    """What checkpoints take, and what they would take if every version of every value were stored whole."""

    thread_id: str | None
    """The thread they are of; None for all."""
    tables: Mapping[str, TableStorage]
    """Table -> what it takes. The effect log's are not among them."""
    logical_bytes: int
    """Bytes of serialized checkpoints, metadata and writes, and of each version of each value, whole, uncompressed."""

    @property
    def total_rows(self) -> int:
        """Rows of all tables."""
        return sum(table.rows for table in self.tables.values())

    @property
    def total_bytes(self) -> int:
        """Bytes of all tables."""
        return sum(table.bytes for table in self.tables.values())

    @property
    def ratio(self) -> float:
        """Bytes taken for each logical one; 1.0 if there are none."""
        return self.total_bytes / self.logical_bytes if self.logical_bytes else 1.0


@dataclass(frozen=True, slots=True)
class PruneAllReport:
    """What a sweep removed, or, of a dry run, would remove."""

    threads_seen: int
    threads_pruned: int
    removed: Removed
    orphan_writes: int
    """Writes removed whose checkpoint never came: of runs that died, or went on after their thread was deleted."""
    dry_run: bool
    effects_expired: int = 0
    """Finished effects that lost their arguments and results; that they took place is kept."""
    effects_orphaned: int = 0
    """Effects that need a decision and whose thread is gone: EffectLog.pending() lists them."""


@dataclass(frozen=True, slots=True)
class PruneProgress:
    """How far a sweep has come: pass `after` to resume it there."""

    after: str
    """The last thread that was swept; threads are swept in the order of their ids."""
    threads_seen: int
    threads_total: int
    removed: Removed = field(default_factory=lambda: Removed({}, {}))


@dataclass(frozen=True, slots=True)
class Latency:
    """Calls of one operation, also those that failed, and the time they took."""

    count: int
    seconds: float
    """All calls' together."""
    longest: float
    """Seconds of the longest."""


@dataclass(frozen=True, slots=True)
class SaverMetrics:
    """What a saver and its clones have counted in this process since it was made."""

    operations: Mapping[str, Latency]
    """By the sync method's name, sync and async together; of what is fetched in pages, each page is a call.

    `erase` is counted as delete_thread, and `get` as get_tuple. Of effects, begin_effect counts calls, replayed or not,
    with what they wait, verify and ask, and record_effect what is recorded of them later.
    """
    batches: int
    """Times that writes which waited at the same time went out together; a write that did not wait is in none."""
    batched_writes: int
    largest_batch: int
    """Writes in the largest."""
    broken_batches: int
    """Batches that failed, so that their writes went alone."""
    waiting_writes: int
    """Writes in the queue just now."""
    waiting_bytes: int
    """Bytes of these, about."""
    retries: int
    """Transient faults after which work was run again."""
    segment_hits: int
    """Segments that reads found in this process."""
    segment_misses: int
    """Segments that reads had to fetch."""
    pool_requests: int
    """Connections that were asked for."""
    pool_waits: int
    """Those that were not free at once."""
    pool_wait_seconds: float

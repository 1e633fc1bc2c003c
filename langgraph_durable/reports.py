"""What retention and transfer methods report, and what `metrics` and `storage_stats` return."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

__all__ = [
    "DeleteReceipt",
    "Difference",
    "ExportReport",
    "ImportReport",
    "Latency",
    "PruneAllReport",
    "PruneProgress",
    "PruneReport",
    "Removed",
    "SaverMetrics",
    "StorageStats",
    "TableStorage",
    "TransferProgress",
    "VerifyReport",
]


@dataclass(frozen=True, slots=True)
class Removed:
    """Rows and bytes removed, by table.

    Bytes are those of the stored columns, compressed as on disk, without indexes and row headers.
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
        """Add up several removals."""
        rows: Counter[str] = Counter()
        bytes_: Counter[str] = Counter()
        for part in parts:
            rows.update(part.rows)
            bytes_.update(part.bytes)
        return cls(dict(rows), dict(bytes_))


@dataclass(frozen=True, slots=True)
class PruneReport:
    """What a prune removed, or, in a dry run, would remove."""

    threads: Mapping[str, Removed]
    """Thread id -> what was removed from it; unchanged threads are left out."""
    dry_run: bool

    @property
    def total(self) -> Removed:
        """What was removed from all threads together."""
        return Removed.sum(self.threads.values())


@dataclass(frozen=True, slots=True)
class DeleteReceipt:
    """Proof that a thread was deleted."""

    thread_id: str
    ulid: str
    """The id of this deletion; the tombstone in the database has the same."""
    deleted_at: datetime
    """By the server's clock."""
    removed: Removed


@dataclass(frozen=True, slots=True)
class TableStorage:
    """The rows and bytes of one table."""

    rows: int
    bytes: int
    """On disk, with indexes and TOAST; for a single thread, the bytes of its rows, compressed as on disk."""


@dataclass(frozen=True, slots=True)
class StorageStats:
    """The space that checkpoints take, and would take if every version of every value were stored whole."""

    thread_id: str | None
    """The thread; None for all threads."""
    tables: Mapping[str, TableStorage]
    """Table -> its rows and bytes. The tables of the effect log are not included."""
    logical_bytes: int
    """Bytes of serialized checkpoints, metadata, writes and every version of every value, whole and uncompressed."""

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
        """Stored bytes per logical byte; 1.0 if nothing is stored."""
        return self.total_bytes / self.logical_bytes if self.logical_bytes else 1.0


@dataclass(frozen=True, slots=True)
class PruneAllReport:
    """What `prune_all` removed, or, in a dry run, would remove."""

    threads_seen: int
    threads_pruned: int
    removed: Removed
    orphan_writes: int
    """Writes removed because their checkpoint was never stored: the run died, or its thread was deleted meanwhile."""
    dry_run: bool
    effects_expired: int = 0
    """Finished effects whose arguments and results were removed; the fact that they ran is kept."""
    effects_orphaned: int = 0
    """Effects that need a decision and whose thread was deleted: saver.effects.pending() lists them."""


@dataclass(frozen=True, slots=True)
class PruneProgress:
    """How far `prune_all` has come: pass `after` to resume it there."""

    after: str
    """The last thread that was pruned; threads are pruned in the order of their ids."""
    threads_seen: int
    threads_total: int
    removed: Removed = field(default_factory=lambda: Removed({}, {}))


@dataclass(frozen=True, slots=True)
class TransferProgress:
    """How far an import, an export or a verification has come."""

    thread_id: str
    """The thread that was done last."""
    threads_done: int
    threads_total: int


@dataclass(frozen=True, slots=True)
class ImportReport:
    """What an import stored, or, in a dry run, would store."""

    threads: int
    """Threads imported."""
    checkpoints: int
    writes: int
    threads_existing: int
    """Threads left unchanged, since they exist here: imported before, or begun here."""
    threads_deleted: int
    """Threads not brought back, since they were deleted here."""
    threads_unknown: int
    """Threads that were asked for, and that the source does not have."""
    failures: Mapping[str, Exception]
    """Thread id -> why it was not imported: the error names what cannot be decoded or stored."""
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class ExportReport:
    """What an export stored in the target."""

    threads: int
    checkpoints: int
    writes: int
    failures: Mapping[str, Exception]
    """Thread id -> why it was not exported, or only in part."""


@dataclass(frozen=True, slots=True)
class Difference:
    """How a checkpoint here differs from the source's."""

    thread_id: str
    checkpoint_ns: str
    checkpoint_id: str
    what: str


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What a comparison of imported threads with their source found."""

    threads: int
    """Threads compared."""
    checkpoints: int
    differences: Sequence[Difference]
    failures: Mapping[str, Exception]
    """Thread id -> why it could not be compared."""
    threads_deleted: int
    """Threads not compared, since they were deleted here."""

    @property
    def is_equal(self) -> bool:
        """Whether everything was compared, and nothing differs."""
        return not self.differences and not self.failures


@dataclass(frozen=True, slots=True)
class Latency:
    """The calls of one operation, failed ones included, and the time they took."""

    count: int
    seconds: float
    """Of all calls together."""
    longest: float
    """Seconds of the longest call."""


@dataclass(frozen=True, slots=True)
class SaverMetrics:
    """What a saver and its clones have counted in this process since the saver was made."""

    operations: Mapping[str, Latency]
    """By the sync method's name, sync and async together; each page of an iterator is one call.

    `get` counts as get_tuple. For effects, begin_effect counts every call, replayed or not, including its waiting,
    verification and questions; record_effect counts what is recorded afterwards.
    """
    batches: int
    """Batches of writes that waited at the same time and were sent together; a write that did not wait is in none."""
    batched_writes: int
    largest_batch: int
    """Writes in the largest batch."""
    broken_batches: int
    """Batches that failed and whose writes were then sent one by one."""
    waiting_writes: int
    """Writes in the queue now."""
    waiting_bytes: int
    """Their approximate size in bytes."""
    retries: int
    """Transient faults after which work was run again."""
    segment_hits: int
    """Segments that reads found in this process's cache."""
    segment_misses: int
    """Segments that reads had to fetch."""
    pool_requests: int
    """Requests for a connection."""
    pool_waits: int
    """Requests that had to wait."""
    pool_wait_seconds: float

"""Import threads from a source, and open the source."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Literal

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.serde.base import SerializerProtocol

from langgraph_durable._checkpoints.codec import Codec
from langgraph_durable._metrics import measured
from langgraph_durable._postgres.database import Database
from langgraph_durable._postgres.statement import load, text_array
from langgraph_durable._transfer.peer import peer_source
from langgraph_durable._transfer.postgres import PostgresReader
from langgraph_durable._transfer.source import BlockingReader, BlockingSource, SaverSource, Source, caller
from langgraph_durable._transfer.sqlite import SqliteReader
from langgraph_durable._transfer.store import Outcome, ThreadResult, import_thread, try_thread
from langgraph_durable._transfer.values import Serializers
from langgraph_durable._validation import require_ids, require_thread_id
from langgraph_durable.errors import (
    CheckpointCorruptedError,
    DurableError,
    InvalidConfigError,
    ParentMissingError,
    ThreadExistsError,
    UnserializableValueError,
)
from langgraph_durable.reports import ImportReport, TransferProgress

FIND_THREADS = load(__package__, "find_threads")

GivenSource = BaseCheckpointSaver[Any] | str
OnExisting = Literal["skip", "refuse"]
Progress = Callable[[TransferProgress], object]

_PAGE = 500
"""Threads that are looked up at a time."""

_SQLITE = "sqlite:"
FAILURES = (CheckpointCorruptedError, UnserializableValueError, ParentMissingError, InvalidConfigError)
"""Errors of one thread. The import goes on with the next."""


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """How to read a source."""

    batch: int = 100
    """Checkpoints to read at a time."""
    schema: str | None = None
    """Of langgraph-checkpoint-postgres's tables; None for the search path."""
    serde: SerializerProtocol | None = None
    """The serializer that tables or a file were written with; None for this saver's."""

    def checked(self) -> SourceOptions:
        """Return the options.

        Raises:
            InvalidConfigError: `batch` is not a positive number.
        """
        if isinstance(self.batch, bool) or not isinstance(self.batch, int) or self.batch < 1:
            raise InvalidConfigError(f"batch must be an int >= 1, got {self.batch!r:.200}")
        return self


@asynccontextmanager
async def opened(
    db: Database, codec: Codec, given: GivenSource, options: SourceOptions, *, by_peer: bool = False
) -> AsyncIterator[Source]:
    """Open a source for reading.

    Args:
        db: This saver's database.
        codec: This saver's.
        given: A saver, or the address of a saver's database.
        options: How to read it.
        by_peer: Whether to read PostgresSaver's tables by PostgresSaver, if it is installed.

    Raises:
        InvalidConfigError: It is neither a saver nor the address of a saver's database.
        ImportFailedError: It cannot be reached.
    """
    if isinstance(given, BaseCheckpointSaver):
        yield SaverSource(given, db, options.batch)
        return
    call = caller(db)
    reader = await call(_open_reader, codec, given, options)
    try:
        source: Source = BlockingSource(reader, call)
        if by_peer and isinstance(reader, PostgresReader):
            serde = options.serde or codec.serde
            peer: Source | None = await call(peer_source, reader, serde, db, options.batch)
            source = peer or source
        yield source
    finally:
        await call(reader.close)


def require_other(given: Any, context: object) -> None:
    """Raise InvalidConfigError if a source, target or fallback is this saver itself."""
    if getattr(given, "durable_context", None) is context:
        raise InvalidConfigError("the other saver is this saver itself, or a clone of it: pass another one")


def _open_reader(codec: Codec, given: Any, options: SourceOptions) -> BlockingReader:
    serializers = Serializers(options.serde or codec.serde, codec.serde)
    if not isinstance(given, str):
        raise InvalidConfigError(
            f"the source must be a BaseCheckpointSaver, a Postgres connection string or sqlite:PATH, got {given!r:.200}"
        )
    if given.startswith(_SQLITE):
        return SqliteReader(given[len(_SQLITE) :], serializers, options.batch)
    return PostgresReader(given, options.schema, serializers, options.batch)


@measured("import_from")
async def import_threads(
    db: Database,
    codec: Codec,
    source: Source,
    thread_ids: Sequence[str] | None,
    on_existing: OnExisting,
    *,
    dry_run: bool,
    progress: Progress | None,
) -> ImportReport:
    """Import threads, each in one transaction; see DurableSaver.import_from."""
    if on_existing not in ("skip", "refuse"):
        raise InvalidConfigError(f'on_existing must be "skip" or "refuse", got {on_existing!r:.200}')
    wanted = require_ids(thread_ids, "thread_ids") if thread_ids is not None else await source.thread_ids()
    known = await find_known(db, wanted)
    existing = [thread_id for thread_id, outcome in known.items() if outcome is Outcome.EXISTING]
    if existing and on_existing == "refuse":
        raise _refused(existing)
    total = _Total()
    for number, thread_id in enumerate(wanted, start=1):
        try:
            result = ThreadResult(known[thread_id]) if thread_id in known else None
            result = result or await _import_one(db, codec, source, thread_id, dry_run=dry_run)
            if result.outcome is Outcome.EXISTING and on_existing == "refuse":  # begun meanwhile
                raise _refused([thread_id])
            total.add(result)
        except FAILURES as exc:
            total.failures[thread_id] = exc
        if progress is not None:
            progress(TransferProgress(thread_id, number, len(wanted)))
    return total.report(dry_run=dry_run)


async def _import_one(
    db: Database, codec: Codec, source: Source, thread_id: str, *, dry_run: bool
) -> ThreadResult:
    batches = await source.read(require_thread_id(thread_id))
    if dry_run:
        return await try_thread(codec, thread_id, batches())
    return await import_thread(db, codec, thread_id, batches)


async def find_known(db: Database, thread_ids: Sequence[str]) -> Mapping[str, Outcome]:
    """Return the threads that exist here or were deleted here. Round trips: 1 for 500 threads."""
    known: dict[str, Outcome] = {}
    for page in _pages(thread_ids):
        for thread_id, has_rows, _ in await db.fetch(FIND_THREADS, {"threads": text_array(page)}):
            known[thread_id] = Outcome.EXISTING if has_rows else Outcome.DELETED
    return known


def _pages(thread_ids: Sequence[str]) -> Iterator[Sequence[str]]:
    storable = [thread_id for thread_id in thread_ids if "\0" not in thread_id]
    for start in range(0, len(storable), _PAGE):
        yield storable[start : start + _PAGE]


def _refused(existing: Sequence[str]) -> DurableError:
    names = ", ".join(repr(thread_id) for thread_id in existing[:3])
    return ThreadExistsError(
        f"{len(existing)} threads exist here already, and threads are never mixed: {names}"
        f"{', ...' if len(existing) > 3 else ''}. Leave them out, delete them here, or import with "
        'on_existing="skip".'
    )


class _Total:
    """Adds up what became of threads."""

    def __init__(self) -> None:
        self._threads: Counter[Outcome] = Counter()
        self._checkpoints = 0
        self._writes = 0
        self.failures: dict[str, Exception] = {}

    def add(self, result: ThreadResult) -> None:
        self._threads[result.outcome] += 1
        self._checkpoints += result.checkpoints
        self._writes += result.writes

    def report(self, *, dry_run: bool) -> ImportReport:
        return ImportReport(
            threads=self._threads[Outcome.IMPORTED],
            checkpoints=self._checkpoints,
            writes=self._writes,
            threads_existing=self._threads[Outcome.EXISTING],
            threads_deleted=self._threads[Outcome.DELETED],
            threads_unknown=self._threads[Outcome.ABSENT],
            failures=self.failures,
            dry_run=dry_run,
        )

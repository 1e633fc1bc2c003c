"""The methods of DurableSaver that move threads between savers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.serde.base import SerializerProtocol

from langgraph_durable._methods import SaverMethods
from langgraph_durable._postgres.database import Database, run_sync
from langgraph_durable._transfer.exporting import export_threads
from langgraph_durable._transfer.importing import (
    GivenSource,
    OnExisting,
    SourceOptions,
    import_threads,
    opened,
    require_other,
)
from langgraph_durable._transfer.verify import verify_threads
from langgraph_durable.reports import ExportReport, ImportReport, TransferProgress, VerifyReport


class TransferMethods(SaverMethods):
    """Sync and async pairs; each pair runs one operation."""

    # --- import ---

    def import_from(  # noqa: PLR0913 (each setting is a keyword that editors complete)
        self,
        source: GivenSource,
        *,
        thread_ids: Sequence[str] | None = None,
        on_existing: OnExisting = "skip",
        batch: int = 100,
        dry_run: bool = False,
        source_schema: str | None = None,
        source_serde: SerializerProtocol | None = None,
        progress: Callable[[TransferProgress], object] | None = None,
    ) -> ImportReport:
        """Import threads from another saver, or from the tables or file of one.

        Checkpoints keep their ids, parents, versions and metadata, in every namespace, with their pending writes, so
        that threads go on where they were. Each thread is imported in one transaction, whole or not at all. An import
        that was interrupted is run again: threads that exist here are left unchanged.

        Args:
            source: A saver, which is read by `list`, a thread at a time in memory. Or a Postgres connection string, the
                database of langgraph-checkpoint-postgres 2.x or 3.x; or `sqlite:PATH`, the file of
                langgraph-checkpoint-sqlite. These are read directly, in batches and as of one moment, without the
                packages that wrote them. Values are stored as they are, also if their classes cannot be imported here.
            thread_ids: The threads to import; all by default.
            on_existing: "skip" leaves threads unchanged that exist here; "refuse" raises before anything is imported.
                Threads that were deleted here are never brought back.
            batch: Checkpoints to read and store at a time.
            dry_run: Read and decode everything, and store nothing.
            source_schema: The schema of the source's tables; by default they are looked for in the search path.
            source_serde: The serializer that the tables or the file were written with; this saver's by default.
            progress: Called after every thread.

        Returns:
            The number of threads imported and left out, and the threads that could not be imported, with the reason.

        Raises:
            TypeError: `thread_ids` is one str.
            InvalidConfigError: An argument is invalid, or the source is not a saver's database.
            ImportFailedError: The source cannot be read.
            ThreadExistsError: A thread exists here, with "refuse".
        """
        options = SourceOptions(batch, source_schema, source_serde).checked()
        return run_sync(
            self._import_from(self._db, source, options, thread_ids, on_existing, dry_run, progress)
        )

    async def aimport_from(  # noqa: PLR0913 (as above)
        self,
        source: GivenSource,
        *,
        thread_ids: Sequence[str] | None = None,
        on_existing: OnExisting = "skip",
        batch: int = 100,
        dry_run: bool = False,
        source_schema: str | None = None,
        source_serde: SerializerProtocol | None = None,
        progress: Callable[[TransferProgress], object] | None = None,
    ) -> ImportReport:
        """Import threads from another saver; see `import_from`."""
        options = SourceOptions(batch, source_schema, source_serde).checked()
        return await self._import_from(self._adb, source, options, thread_ids, on_existing, dry_run, progress)

    async def _import_from(
        self,
        db: Database,
        given: GivenSource,
        options: SourceOptions,
        thread_ids: Sequence[str] | None,
        on_existing: OnExisting,
        dry_run: bool,
        progress: Callable[[TransferProgress], object] | None,
    ) -> ImportReport:
        require_other(given, self._context)
        codec = self._codec
        async with opened(db, codec, given, options) as source:
            return await import_threads(
                db, codec, source, thread_ids, on_existing, dry_run=dry_run, progress=progress
            )

    # --- verification ---

    def verify_import(
        self,
        source: GivenSource,
        *,
        thread_ids: Sequence[str] | None = None,
        batch: int = 100,
        source_schema: str | None = None,
        source_serde: SerializerProtocol | None = None,
        progress: Callable[[TransferProgress], object] | None = None,
    ) -> VerifyReport:
        """Load every checkpoint of the source from both savers, and compare.

        Compare before imported threads are run: a resumed thread has new pending writes. The tables of
        langgraph-checkpoint-postgres are read by its PostgresSaver if that is installed.

        Args:
            source: See `import_from`, also for the arguments below.
            thread_ids: The threads to compare; all by default, except for those that were deleted here.
            batch: Checkpoints to read at a time.
            source_schema: The schema of the source's tables.
            source_serde: The serializer that the tables or the file were written with.
            progress: Called after every thread.

        Raises:
            TypeError: `thread_ids` is one str.
            InvalidConfigError: An argument is invalid, or the source is not a saver's database.
            ImportFailedError: The source cannot be read.
        """
        options = SourceOptions(batch, source_schema, source_serde).checked()
        return run_sync(self._verify_import(self._db, source, options, thread_ids, progress))

    async def averify_import(
        self,
        source: GivenSource,
        *,
        thread_ids: Sequence[str] | None = None,
        batch: int = 100,
        source_schema: str | None = None,
        source_serde: SerializerProtocol | None = None,
        progress: Callable[[TransferProgress], object] | None = None,
    ) -> VerifyReport:
        """Compare imported threads with their source; see `verify_import`."""
        options = SourceOptions(batch, source_schema, source_serde).checked()
        return await self._verify_import(self._adb, source, options, thread_ids, progress)

    async def _verify_import(
        self,
        db: Database,
        given: GivenSource,
        options: SourceOptions,
        thread_ids: Sequence[str] | None,
        progress: Callable[[TransferProgress], object] | None,
    ) -> VerifyReport:
        require_other(given, self._context)
        codec = self._codec
        async with opened(db, codec, given, options, by_peer=True) as source:
            return await verify_threads(db, codec, source, thread_ids, progress=progress)

    # --- export ---

    def export_to(
        self,
        target: BaseCheckpointSaver[Any],
        *,
        thread_ids: Sequence[str] | None = None,
        progress: Callable[[TransferProgress], object] | None = None,
    ) -> ExportReport:
        """Put threads into another saver, parents before their children, by its `put` and `put_writes`.

        Ids, parents, versions, metadata, pending writes and task paths are kept. Effects stay here, since other savers
        have none. A thread that the target has is not deleted there first: checkpoints of equal ids are put again.

        Args:
            target: The other saver.
            thread_ids: The threads to export; all by default.
            progress: Called after every thread.

        Raises:
            TypeError: `thread_ids` is one str.
            InvalidConfigError: An argument is invalid.
        """
        require_other(target, self._context)
        return run_sync(export_threads(self._db, self._codec, target, thread_ids, progress=progress))

    async def aexport_to(
        self,
        target: BaseCheckpointSaver[Any],
        *,
        thread_ids: Sequence[str] | None = None,
        progress: Callable[[TransferProgress], object] | None = None,
    ) -> ExportReport:
        """Put threads into another saver; see `export_to`."""
        require_other(target, self._context)
        return await export_threads(self._adb, self._codec, target, thread_ids, progress=progress)

"""The half of DurableSaver that deletes, prunes, copies and measures threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from langchain_core.runnables import RunnableConfig

from langgraph_durable._methods import SaverMethods
from langgraph_durable._postgres.database import run_sync
from langgraph_durable._retention import operations
from langgraph_durable._retention.policy import require_policy, require_prune_all_policy
from langgraph_durable._validation import require_age
from langgraph_durable.errors import InvalidConfigError
from langgraph_durable.reports import DeleteReceipt, PruneAllReport, PruneProgress, PruneReport, StorageStats


class RetentionMethods(SaverMethods):
    """Sync and async pairs, each a call of one operation."""

    # --- delete ---

    def delete_thread(self, thread_id: str, *, force: bool = False) -> DeleteReceipt:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
        """Delete a thread: its checkpoints, values and writes in every namespace. An unknown one is no error.

        A run of the thread that is still going gets ThreadDeletedError at its next save, instead of bringing half
        of the thread back. A run that starts from an input afterwards starts the thread afresh. Of its effects, that
        they took place is kept, without arguments, results, errors and notes.

        Args:
            thread_id: The thread's id.
            force: Whether also with effects that may have happened and that nobody has decided on.

        Raises:
            EffectUnresolvedError: There are such effects, and `force` is not given; nothing was deleted.
        """
        return run_sync(operations.delete_thread(self._db, thread_id, force=force))

    async def adelete_thread(self, thread_id: str, *, force: bool = False) -> DeleteReceipt:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
        """Delete a thread; see `delete_thread`."""
        return await operations.delete_thread(self._adb, thread_id, force=force)

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints that runs made, in every thread and namespace.

        What surviving checkpoints' delta channels are replayed from stays; see `prune`.

        Raises:
            TypeError: `run_ids` is one str.
            InvalidConfigError: `indexed_metadata` leaves out run_id, so that the database cannot tell runs.
        """
        run_sync(operations.delete_for_runs(self._db, self._codec, run_ids))

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints that runs made; see `delete_for_runs`."""
        await operations.delete_for_runs(self._adb, self._codec, run_ids)

    # --- prune, copy, sweep ---

    # A report, where LangGraph's method returns None: nobody depends on getting nothing.
    def prune(  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        thread_ids: Sequence[str],
        *,
        strategy: str = "keep_latest",
        keep_last: int | None = None,
        older_than: timedelta | None = None,
        dry_run: bool = False,
    ) -> PruneReport:
        """Delete old checkpoints of threads; unknown threads are no error.

        The state of every checkpoint that survives stays as it is: its values, its pending writes, and what its
        delta channels are replayed from. The namespace of a subgraph's call goes with the root checkpoint that
        it started from. Safe beside a running graph. Each thread is pruned in a transaction of its own.

        Args:
            thread_ids: The threads to prune.
            strategy: "keep_latest", or "delete" for everything.
            keep_last: How many checkpoints each namespace keeps; 1 by default.
            older_than: Only checkpoints at least this old are deleted, by the server's clock at their put.
            dry_run: Only count.

        Returns:
            Rows and bytes removed, by thread and table.

        Raises:
            TypeError: `thread_ids` is one str.
            InvalidConfigError: An argument cannot be used.
            PruneFailedError: Some threads could not be pruned; the others were.
        """
        policy = require_policy(strategy, keep_last, older_than)
        return run_sync(operations.prune(self._db, self._codec, thread_ids, policy, dry_run=dry_run))

    async def aprune(  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        thread_ids: Sequence[str],
        *,
        strategy: str = "keep_latest",
        keep_last: int | None = None,
        older_than: timedelta | None = None,
        dry_run: bool = False,
    ) -> PruneReport:
        """Delete old checkpoints of threads; see `prune`."""
        policy = require_policy(strategy, keep_last, older_than)
        return await operations.prune(self._adb, self._codec, thread_ids, policy, dry_run=dry_run)

    def compact(self, graph: Any, thread_ids: Sequence[str]) -> PruneReport:
        """Fold the delta channels of threads into snapshots, then prune each namespace to its latest checkpoint.

        Where `prune` must keep the ancestors that delta channels are replayed from, this keeps only the value.
        That a thread's state is the same before and after is proved before anything is committed.

        Args:
            graph: The compiled graph of the threads, whose checkpointer is this saver.
            thread_ids: The threads to compact; unknown ones are no error.

        Raises:
            TypeError: `thread_ids` is one str.
            InvalidConfigError: The graph has another saver, or none.
            PruneFailedError: Some threads could not be compacted, and are as they were; the others were.
        """

        async def get_state(config: RunnableConfig) -> Any:
            return graph.get_state(config)

        return run_sync(
            operations.compact(self._db, self._codec, self._require_own(graph), get_state, thread_ids)
        )

    async def acompact(self, graph: Any, thread_ids: Sequence[str]) -> PruneReport:
        """Fold the delta channels of threads, then prune them; see `compact`."""

        async def get_state(config: RunnableConfig) -> Any:
            return await graph.aget_state(config)

        return await operations.compact(
            self._adb, self._codec, self._require_own(graph), get_state, thread_ids
        )

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy a thread, on the server: every checkpoint, value and write, in every namespace, as of one moment.

        Its effects are copied with it: the copy is given the outcomes of those that were done, and what may have
        happened waits for a decision there too. An unknown thread copies nothing.

        Raises:
            InvalidConfigError: Source and target are one.
            ThreadExistsError: The target has checkpoints.

        Round trips: 1.
        """
        run_sync(operations.copy_thread(self._db, source_thread_id, target_thread_id))

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy a thread; see `copy_thread`."""
        await operations.copy_thread(self._adb, source_thread_id, target_thread_id)

    def prune_all(
        self,
        *,
        older_than: timedelta | None = None,
        keep_last: int | None = None,
        dry_run: bool = False,
        after: str = "",
        progress: Callable[[PruneProgress], object] | None = None,
        effects_older_than: timedelta | None = None,
    ) -> PruneAllReport:
        """Prune every thread, one small transaction each, and remove writes whose checkpoint never came.

        Args:
            older_than: See `prune`.
            keep_last: See `prune`.
            dry_run: Only count.
            after: Resume after this thread, as `progress` named it.
            progress: Called after every few threads.
            effects_older_than: Drop the arguments and results of effects that ended at least so long ago, and the
                errors and notes in their history; by default none. That they took place is kept, and so is what
                nobody has decided on.

        Raises:
            InvalidConfigError: An argument cannot be used, or neither `older_than` nor `keep_last` is given.
            PruneFailedError: Some threads could not be pruned; all else was done.
        """
        policy = require_prune_all_policy(keep_last, older_than)
        effects = require_age(effects_older_than, "effects_older_than")
        return run_sync(
            operations.prune_all(
                self._db,
                self._codec,
                policy,
                dry_run=dry_run,
                after=after,
                progress=progress,
                effects_older_than=effects,
            )
        )

    async def aprune_all(
        self,
        *,
        older_than: timedelta | None = None,
        keep_last: int | None = None,
        dry_run: bool = False,
        after: str = "",
        progress: Callable[[PruneProgress], object] | None = None,
        effects_older_than: timedelta | None = None,
    ) -> PruneAllReport:
        """Prune every thread; see `prune_all`."""
        policy = require_prune_all_policy(keep_last, older_than)
        effects = require_age(effects_older_than, "effects_older_than")
        return await operations.prune_all(
            self._adb,
            self._codec,
            policy,
            dry_run=dry_run,
            after=after,
            progress=progress,
            effects_older_than=effects,
        )

    # --- statistics ---

    def storage_stats(self, thread_id: str | None = None) -> StorageStats:
        """Return what checkpoints take in the database, and what they would take without segments and compression.

        Args:
            thread_id: The thread to look at; None for all. Of a thread, indexes and free space are not counted.

        Raises:
            InvalidConfigError: `thread_id` cannot be used.

        Round trips: 1, but every row is looked at.
        """
        return run_sync(operations.storage_stats(self._db, thread_id))

    async def astorage_stats(self, thread_id: str | None = None) -> StorageStats:
        """Return what checkpoints take in the database; see `storage_stats`."""
        return await operations.storage_stats(self._adb, thread_id)

    def _require_own(self, graph: Any) -> Any:
        """Return a graph compiled with this saver, or with a clone of it."""
        saver = getattr(graph, "checkpointer", None)
        if getattr(saver, "durable_context", None) is not self.durable_context:
            raise InvalidConfigError(
                "compact needs a graph compiled with this saver, since it folds channels with the graph's own "
                "reducers: builder.compile(checkpointer=saver)"
            )
        return graph

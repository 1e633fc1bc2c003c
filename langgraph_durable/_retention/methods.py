"""The methods of DurableSaver that delete, prune, compact, copy and measure threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from langchain_core.runnables import RunnableConfig

from langgraph_durable._methods import SaverMethods
from langgraph_durable._postgres.database import Database, run_sync
from langgraph_durable._retention.compact import compact
from langgraph_durable._retention.copy import copy_thread
from langgraph_durable._retention.delete import delete_for_runs, delete_thread
from langgraph_durable._retention.policy import Policy, require_policy, require_prune_all_policy
from langgraph_durable._retention.prune import prune
from langgraph_durable._retention.prune_all import prune_all
from langgraph_durable._retention.stats import storage_stats
from langgraph_durable._validation import require_age, require_ids
from langgraph_durable.errors import InvalidConfigError
from langgraph_durable.reports import DeleteReceipt, PruneAllReport, PruneProgress, PruneReport, StorageStats


class RetentionMethods(SaverMethods):
    """Sync and async pairs; each pair runs one operation."""

    # --- delete ---

    # Intentionally returns a report where the base class returns None.
    def delete_thread(self, thread_id: str, *, force: bool = False) -> DeleteReceipt:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
        """Delete a thread: its checkpoints, values and writes in every namespace, also from the fallback saver.

        An unknown thread is not an error. A run of the thread that is still going gets ThreadDeletedError at its next
        save. A run that starts from an input afterwards starts the thread afresh. Effect records are kept for
        deduplication, stripped of arguments, results, errors and notes.

        Args:
            thread_id: The thread's id.
            force: Also delete a thread with unresolved effects: those that may have happened and need a decision.

        Returns:
            A receipt with the rows and bytes removed here.

        Raises:
            EffectUnresolvedError: The thread has unresolved effects, and `force` is false. Nothing was deleted.

        Round trips: 1.
        """
        return run_sync(self._delete_thread(self._db, thread_id, force))

    async def adelete_thread(self, thread_id: str, *, force: bool = False) -> DeleteReceipt:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
        """Delete a thread; see `delete_thread`."""
        return await self._delete_thread(self._adb, thread_id, force)

    async def _delete_thread(self, db: Database, thread_id: str, force: bool) -> DeleteReceipt:
        fallback = self._context.fallback
        # With a tombstone, no process imports the thread before it is deleted from the fallback saver.
        receipt = await delete_thread(db, thread_id, force=force, leaves_tombstone=fallback is not None)
        if fallback is not None:
            await fallback.delete_thread(db, receipt.thread_id)
        return receipt

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints that runs made, in every thread and namespace.

        Rows from which the delta channels of other checkpoints are replayed stay; see `prune`. They are deleted from
        the fallback saver, too, if it implements that.

        Raises:
            TypeError: `run_ids` is one str.
            InvalidConfigError: `indexed_metadata` lacks run_id, so the database cannot find the runs.
        """
        run_sync(self._delete_for_runs(self._db, run_ids))

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints that runs made; see `delete_for_runs`."""
        await self._delete_for_runs(self._adb, run_ids)

    async def _delete_for_runs(self, db: Database, run_ids: Sequence[str]) -> None:
        await delete_for_runs(db, self._codec, run_ids)
        if (fallback := self._context.fallback) is not None:
            await fallback.delete_for_runs(db, require_ids(run_ids, "run_ids"))

    # --- prune, compact, copy ---

    # Intentionally returns a report where the base class returns None.
    def prune(  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        thread_ids: Sequence[str],
        *,
        strategy: str = "keep_latest",
        keep_last: int | None = None,
        older_than: timedelta | None = None,
        dry_run: bool = False,
    ) -> PruneReport:
        """Delete old checkpoints of threads; unknown threads are not an error.

        The state of every surviving checkpoint is unchanged: its values, its pending writes, and the rows from which
        its delta channels are replayed. The namespace of a subgraph's call is deleted with the root checkpoint that
        it started from. Safe while graphs run. Each thread is pruned in its own transaction.

        Args:
            thread_ids: The threads to prune.
            strategy: "keep_latest", or "delete" for everything.
            keep_last: The number of checkpoints that each namespace keeps; 1 by default.
            older_than: Delete only checkpoints of at least this age, by the server's clock.
            dry_run: Only count.

        Returns:
            Rows and bytes removed, by thread and table.

        Raises:
            TypeError: `thread_ids` is one str.
            InvalidConfigError: An argument is invalid.
            PruneFailedError: Some threads could not be pruned; the others were.
        """
        policy = require_policy(strategy, keep_last, older_than)
        return run_sync(self._prune(self._db, thread_ids, policy, dry_run))

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
        return await self._prune(self._adb, thread_ids, policy, dry_run)

    async def _prune(
        self, db: Database, thread_ids: Sequence[str], policy: Policy, dry_run: bool
    ) -> PruneReport:
        fallback = self._context.fallback if not dry_run else None
        if fallback is not None:
            await self._import_unknown(db, require_ids(thread_ids, "thread_ids"))
        report = await prune(db, self._codec, thread_ids, policy, dry_run=dry_run)
        if fallback is not None and policy.keep_last == 0:
            for thread_id in require_ids(thread_ids, "thread_ids"):
                await fallback.delete_thread(db, thread_id)
        return report

    def compact(self, graph: Any, thread_ids: Sequence[str]) -> PruneReport:
        """Fold the delta channels of threads into snapshots, then prune each namespace to its latest checkpoint.

        `prune` must keep the ancestors from which delta channels are replayed; this keeps only the value. Before
        anything is committed, it verifies that the state of the thread is unchanged.

        Args:
            graph: The compiled graph of the threads, whose checkpointer is this saver.
            thread_ids: The threads to compact; unknown ones are not an error.

        Raises:
            TypeError: `thread_ids` is one str.
            InvalidConfigError: The graph has another saver, or none.
            PruneFailedError: Some threads could not be compacted and are unchanged; the others were.
        """

        async def get_state(config: RunnableConfig) -> Any:
            return graph.get_state(config)

        return run_sync(compact(self._db, self._codec, self._require_own(graph), get_state, thread_ids))

    async def acompact(self, graph: Any, thread_ids: Sequence[str]) -> PruneReport:
        """Fold the delta channels of threads, then prune them; see `compact`."""

        async def get_state(config: RunnableConfig) -> Any:
            return await graph.aget_state(config)

        return await compact(self._adb, self._codec, self._require_own(graph), get_state, thread_ids)

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy a thread on the server: checkpoints, values and writes in every namespace, as of one moment.

        Its effects are copied, too: the copy replays the outcomes of those that finished, and those with an unknown
        outcome need a decision there, too. An unknown thread copies nothing.

        Raises:
            InvalidConfigError: Source and target are the same.
            ThreadExistsError: The target has checkpoints.

        Round trips: 1.
        """
        run_sync(self._copy_thread(self._db, source_thread_id, target_thread_id))

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy a thread; see `copy_thread`."""
        await self._copy_thread(self._adb, source_thread_id, target_thread_id)

    async def _copy_thread(self, db: Database, source: str, target: str) -> None:
        await self._import_unknown(db, (source, target))
        await copy_thread(db, source, target)

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
        """Prune every thread, each in a small transaction, and delete writes whose checkpoint was never stored.

        Args:
            older_than: See `prune`.
            keep_last: See `prune`.
            dry_run: Only count.
            after: Resume after this thread, as `progress` named it.
            progress: Called after every few threads.
            effects_older_than: Remove the arguments and results of effects that ended at least this long ago, and the
                errors and notes in their history; by default none. The fact that they ran is kept, and so are effects
                that need a decision.

        Raises:
            InvalidConfigError: An argument is invalid, or neither `older_than` nor `keep_last` is given.
            PruneFailedError: Some threads could not be pruned; everything else was done.
        """
        policy = require_prune_all_policy(keep_last, older_than)
        effects = require_age(effects_older_than, "effects_older_than")
        return run_sync(
            prune_all(
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
        return await prune_all(
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
        """Return the space that checkpoints take, and would take without segments and compression.

        Args:
            thread_id: The thread to measure; None for all. For one thread, indexes and free space are not counted.

        Raises:
            InvalidConfigError: `thread_id` is invalid.

        Round trips: 1, which reads every row.
        """
        return run_sync(storage_stats(self._db, thread_id))

    async def astorage_stats(self, thread_id: str | None = None) -> StorageStats:
        """Return the space that checkpoints take; see `storage_stats`."""
        return await storage_stats(self._adb, thread_id)

    def _require_own(self, graph: Any) -> Any:
        """Return a graph that was compiled with this saver or a clone of it."""
        saver = getattr(graph, "checkpointer", None)
        if getattr(saver, "durable_context", None) is not self.durable_context:
            raise InvalidConfigError(
                "compact needs a graph compiled with this saver, since the graph's own reducers compute the "
                "snapshots: builder.compile(checkpointer=saver)"
            )
        return graph

"""The fallback saver: a thread that is unknown here is imported from it when it is first used."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple

from langgraph_durable._checkpoints.codec import Codec
from langgraph_durable._checkpoints.known import KnownCheckpoints
from langgraph_durable._checkpoints.read import get_tuple
from langgraph_durable._checkpoints.refs import checkpoint_ref
from langgraph_durable._postgres.database import Database
from langgraph_durable._postgres.drivers import AsyncDatabase
from langgraph_durable._transfer.importing import FAILURES
from langgraph_durable._transfer.source import SaverSource, caller, is_missing
from langgraph_durable._transfer.store import FIND_THREAD, Outcome, import_thread
from langgraph_durable.errors import ImportFailedError, InvalidConfigError

_BATCH = 100
_GENERATION = 50_000


class _Threads:
    """A bounded set of thread ids, safe across threads. A race may drop one. Then the database is asked again."""

    def __init__(self) -> None:
        self._older: dict[str, None] = {}
        self._newer: dict[str, None] = {}

    def add(self, thread_id: str) -> None:
        if thread_id in self._newer:
            return
        self._newer[thread_id] = None
        if len(self._newer) >= _GENERATION:
            self._older, self._newer = self._newer, {}

    def __contains__(self, thread_id: str) -> bool:
        return thread_id in self._newer or thread_id in self._older


class Fallback:
    """A saver that still has threads, and what is known of them. One for a saver and its clones."""

    def __init__(self, saver: BaseCheckpointSaver[Any]) -> None:
        self.saver = saver
        self._here = _Threads()
        """Threads that exist here or were deleted here: the fallback is never asked for them again."""
        self._nowhere = _Threads()
        """Threads that neither saver had. A write to one of them starts it here."""

    def allow(self, types: Collection[tuple[str, ...]]) -> None:
        """Let the fallback load types of a graph's state in strict mode, as if the graph were compiled with it."""
        self.saver = self.saver.with_allowlist(types)

    async def get_tuple(
        self, db: Database, codec: Codec, known: KnownCheckpoints, config: RunnableConfig
    ) -> CheckpointTuple | None:
        """Return a checkpoint, after importing its thread if it is unknown here.

        Round trips: none besides those of `get_tuple` if the checkpoint is here. Else 1 for a thread that this process
        did not see before, and the import.
        """
        found = await get_tuple(db, codec, known, config)
        thread_id = checkpoint_ref(config).thread_id
        if found is not None:
            self._here.add(thread_id)
            return found
        if thread_id in self._here or not await self._import(db, codec, thread_id):
            return None
        return await get_tuple(db, codec, known, config)

    async def import_unknown(self, db: Database, codec: Codec, thread_id: str, *, writes: bool) -> None:
        """Import a thread that is unknown here, before it is listed, copied, pruned, or written.

        A write to a thread that was nowhere when it was read starts the thread here.
        """
        if thread_id in self._here or (writes and thread_id in self._nowhere):
            return
        await self._import(db, codec, thread_id)

    async def _import(self, db: Database, codec: Codec, thread_id: str) -> bool:
        """Import a thread unless it is known here; return whether it may have rows now.

        Raises:
            ImportFailedError: The fallback has the thread, and it cannot be imported.
        """
        [(has_rows, deleted)] = await db.fetch(FIND_THREAD, {"thread": thread_id})
        if has_rows or deleted:
            self._here.add(thread_id)
            return bool(has_rows)  # another process may have imported it since it was looked for
        try:
            batches = await SaverSource(self.saver, db, _BATCH).read(thread_id)
            result = await import_thread(db, codec, thread_id, batches)
        except FAILURES as exc:
            raise ImportFailedError(
                f"thread {thread_id!r} is in the fallback saver, and cannot be imported: {exc}"
            ) from exc
        if result.outcome is Outcome.ABSENT:
            self._nowhere.add(thread_id)
            return False
        self._here.add(thread_id)
        return True

    # --- deletions ---

    async def delete_thread(self, db: Database, thread_id: str) -> None:
        """Delete a thread from the fallback saver."""
        await self._call(db, "delete_thread", thread_id)

    async def delete_for_runs(self, db: Database, run_ids: Sequence[str]) -> None:
        """Delete runs from the fallback saver, if it can do that."""
        with suppress(NotImplementedError):
            await self._call(db, "delete_for_runs", run_ids)

    async def _call(self, db: Database, method: str, argument: Any) -> None:
        asynchronous = f"a{method}"
        if isinstance(db, AsyncDatabase) and not is_missing(self.saver, asynchronous):
            await getattr(self.saver, asynchronous)(argument)
            return
        await caller(db)(getattr(self.saver, method), argument)


def require_fallback(saver: Any) -> Fallback | None:
    """Return the fallback for a constructor's argument.

    Raises:
        InvalidConfigError: It is not a saver.
    """
    if saver is None:
        return None
    if not isinstance(saver, BaseCheckpointSaver):
        raise InvalidConfigError(f"fallback must be a BaseCheckpointSaver, got {type(saver).__name__}")
    return Fallback(saver)

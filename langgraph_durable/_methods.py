"""The base of DurableSaver's class: its context, lifetime, set-up and delta channels."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import NoReturn, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple, DeltaChannelHistory
from typing_extensions import Self

from langgraph_durable._checkpoints.codec import Codec
from langgraph_durable._checkpoints.history import get_delta_channel_history
from langgraph_durable._checkpoints.listing import Listing
from langgraph_durable._checkpoints.read import get_tuple
from langgraph_durable._checkpoints.refs import checkpoint_ref
from langgraph_durable._context import SaverContext
from langgraph_durable._postgres.database import Database, run_sync
from langgraph_durable._postgres.drivers import AsyncDatabase, BlockingDatabase
from langgraph_durable._postgres.migrate import set_up
from langgraph_durable._validation import require_thread_id


class SaverMethods(BaseCheckpointSaver[str]):
    """Each half of DurableSaver's methods builds on this class."""

    _context: SaverContext

    @property
    def durable_context(self) -> SaverContext:
        """For this package: also found behind a proxy that forwards unknown names, like the Agent Server's."""
        return self._context

    @property
    def schema(self) -> str:
        """The database schema of the saver's tables."""
        return self._context.schema

    @property
    def _db(self) -> BlockingDatabase:
        return self._context.db

    @property
    def _adb(self) -> AsyncDatabase:
        return self._context.adb

    @property
    def _codec(self) -> Codec:
        """Made at every call, since LangGraph reassigns `serde`."""
        context = self._context
        options = context.options
        return Codec(
            self.serde, options.indexed_metadata, options.segment_key, context.segments, options.tuning
        )

    def with_allowlist(self, extra_allowlist: Collection[tuple[str, ...]]) -> BaseCheckpointSaver[str]:
        """Return a clone that may load the types of a graph's state in strict mode, also from the fallback saver."""
        if (fallback := self._context.fallback) is not None:
            fallback.allow(extra_allowlist)
        return super().with_allowlist(extra_allowlist)

    # --- the fallback saver ---

    async def _get_tuple(self, db: Database, config: RunnableConfig) -> CheckpointTuple | None:
        known = self._context.known
        if (fallback := self._context.fallback) is None:
            return await get_tuple(db, self._codec, known, config)
        return await fallback.get_tuple(db, self._codec, known, config)

    def _import_before_write(self, config: RunnableConfig) -> None:
        if (fallback := self._context.fallback) is not None:
            thread_id = checkpoint_ref(config).thread_id
            run_sync(fallback.import_unknown(self._db, self._codec, thread_id, writes=True))

    async def _aimport_before_write(self, config: RunnableConfig) -> None:
        if (fallback := self._context.fallback) is not None:
            thread_id = checkpoint_ref(config).thread_id
            await fallback.import_unknown(self._adb, self._codec, thread_id, writes=True)

    async def _import_unknown(self, db: Database, thread_ids: Iterable[str]) -> None:
        if (fallback := self._context.fallback) is not None:
            for thread_id in thread_ids:
                await fallback.import_unknown(db, self._codec, require_thread_id(thread_id), writes=False)

    def _iterate(self, listing: Listing) -> Iterator[CheckpointTuple]:
        if self._context.fallback is None or listing.thread_id is None:
            return listing.iterate(self._db)
        return self._import_and_iterate(listing, listing.thread_id)

    def _import_and_iterate(self, listing: Listing, thread_id: str) -> Iterator[CheckpointTuple]:
        run_sync(self._import_unknown(self._db, [thread_id]))
        yield from listing.iterate(self._db)

    def _aiterate(self, listing: Listing) -> AsyncIterator[CheckpointTuple]:
        if self._context.fallback is None or listing.thread_id is None:
            return listing.aiterate(self._adb)
        return self._import_and_aiterate(listing, listing.thread_id)

    async def _import_and_aiterate(self, listing: Listing, thread_id: str) -> AsyncIterator[CheckpointTuple]:
        await self._import_unknown(self._adb, [thread_id])
        async for found in listing.aiterate(self._adb):
            yield found

    # --- lifetime ---

    def close(self) -> None:
        """Close the saver's own pools; pools given to it stay open. Further calls raise SaverClosedError."""
        if self._context.own_pools is not None:
            self._context.own_pools.close()

    async def aclose(self) -> None:
        """Close the saver's own pools, from an event loop."""
        if self._context.own_pools is not None:
            await self._context.own_pools.aclose()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.aclose()

    # --- delta channels ---

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Return what delta channels are replayed from at the checkpoint that `config` names.

        Returns:
            For each channel the writes of the checkpoint's ancestors, oldest first, from the nearest ancestor
            that has the channel's value; that value is its `seed`, absent if no ancestor has one.

        Raises:
            TypeError: `channels` is one str.
            InvalidConfigError: `config` names no thread.
            CheckpointCorruptedError: A stored row is missing or cannot be read; the message says which.

        Round trips: 1, for any number of channels and ancestors; 1 more if seeds' segments must be fetched.
        """
        return run_sync(get_delta_channel_history(self._db, self._codec, config, channels))

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Return what delta channels are replayed from; see `get_delta_channel_history`."""
        return await get_delta_channel_history(self._adb, self._codec, config, channels)

    # --- set-up ---

    def setup(self, *, verify_only: bool = False) -> None:
        """Create or migrate the tables; safe to call at every start, by any number of processes at once.

        On an event loop use `await saver.asetup()`. This method works there too, but blocks the loop, and awaiting its
        result raises TypeError.

        Args:
            verify_only: Change nothing, only raise if something would have to be changed.

        Raises:
            SchemaOutOfDateError: The tables are newer than this package, or, with `verify_only`, not current.
        """
        run_sync(set_up(self._db, verify_only=verify_only))
        return _nothing_to_await()

    async def asetup(self, *, verify_only: bool = False) -> None:
        """Create or migrate the tables; see `setup`."""
        await set_up(self._adb, verify_only=verify_only)


class _NothingToAwait:
    """Returned by `setup` on an event loop, where a caller may await it as AsyncPostgresSaver's."""

    def __bool__(self) -> bool:
        return False

    def __await__(self) -> Generator[None, None, NoReturn]:
        raise TypeError(
            "DurableSaver.setup() cannot be awaited: it is synchronous, and is done already. Use await saver.asetup()."
        )


def _nothing_to_await() -> None:
    """Return None, or on an event loop an object that cannot be awaited either, but says what to do."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return None
    return cast("None", _NothingToAwait())

"""The base of DurableSaver's class: its context, its lifetime, and its set-up."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from types import TracebackType
from typing import NoReturn, cast

from langgraph.checkpoint.base import BaseCheckpointSaver
from typing_extensions import Self

from langgraph_durable._checkpoints.codec import Codec
from langgraph_durable._context import SaverContext
from langgraph_durable._postgres.database import run_sync
from langgraph_durable._postgres.drivers import AsyncDatabase, BlockingDatabase
from langgraph_durable._postgres.migrate import set_up


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

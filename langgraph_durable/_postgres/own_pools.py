"""The saver's own pools, made from a connection string: one for threads, and one for each event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from langgraph_durable._postgres.conninfo_source import Conninfo
from langgraph_durable._postgres.loop_pools import LoopPools
from langgraph_durable._postgres.pools import BlockingPool, PoolContext, PoolSettings


class OwnPools:
    """The pools of a saver and its clones."""

    def __init__(self, conninfo: Conninfo, settings: PoolSettings) -> None:
        self._context = PoolContext(conninfo, settings)
        self.blocking = BlockingPool(self._context)
        self.asynchronous = LoopPools(self._context)

    def close(self) -> None:
        """Close every pool, also those of event loops in other threads."""
        self._context.closed = True
        self.blocking.close()
        self.asynchronous.close_all()

    async def aclose(self) -> None:
        """Close every pool, from an event loop."""
        self._context.closed = True
        await self.asynchronous.close_own()
        await _run_in_thread(self.blocking.close)
        await _run_in_thread(self.asynchronous.close_all)


async def _run_in_thread(close: Callable[[], None]) -> None:
    try:
        closing = asyncio.get_running_loop().run_in_executor(None, close)
    except RuntimeError:  # the loop ends, and its threads have ended before
        close()
    else:
        await closing

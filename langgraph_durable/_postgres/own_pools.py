"""The saver's own pools, made from a connection string: one for threads, and one for each event loop."""

from __future__ import annotations

import asyncio

from langgraph_durable._postgres.loop_pools import LoopPools
from langgraph_durable._postgres.pools import BlockingPool, PoolContext, PoolSettings


class OwnPools:
    """The pools of a saver and its clones."""

    def __init__(self, conninfo: str, settings: PoolSettings) -> None:
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
        await asyncio.to_thread(self.blocking.close)
        await asyncio.to_thread(self.asynchronous.close_all)

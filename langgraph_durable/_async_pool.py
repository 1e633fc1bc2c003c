"""An asyncio pool whose event loop can end while it is connecting."""

from __future__ import annotations

import asyncio
from typing import Any

from psycopg_pool import AsyncConnectionPool
from psycopg_pool.pool_async import StopWorker


class LoopPool(AsyncConnectionPool[Any]):
    """psycopg's pool, with workers that end when they are cancelled.

    Its own ones take a cancellation for a connection that failed, and wait for the next task. A loop that
    ends (`asyncio.run` cancels what is left, and waits for it) while a pool grows would hang forever.
    """

    @classmethod
    async def worker(cls, q: asyncio.Queue[Any]) -> None:
        """Run the pool's tasks, each as an asyncio task of its own, so that a cancellation reaches both."""
        while not isinstance(task := await q.get(), StopWorker):
            running = asyncio.ensure_future(task.run())
            await asyncio.wait([running])
            if not running.cancelled() and (exc := running.exception()) is not None:
                asyncio.get_running_loop().call_exception_handler(
                    {"message": f"a pool's task failed: {task}", "exception": exc, "future": running}
                )

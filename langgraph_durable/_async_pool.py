"""An asyncio pool whose event loop can end while it is connecting."""

from __future__ import annotations

import asyncio
from typing import Any

from psycopg import AsyncConnection
from psycopg_pool import AsyncConnectionPool
from psycopg_pool.pool_async import StopWorker
from typing_extensions import Self


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


class LoopConnection(AsyncConnection[Any]):
    """psycopg's connection, which is closed at once if it is cancelled while it connects."""

    @classmethod
    async def connect(cls, conninfo: str = "", **options: Any) -> Self:
        """Connect; see psycopg."""
        try:
            return await super().connect(conninfo, **options)
        except asyncio.CancelledError as exc:
            # Its traceback would keep the frames that hold the socket, and the server would wait for the rest of
            # the handshake, for a minute.
            raise exc.with_traceback(None) from None

"""The saver's own asyncio pools: one for each event loop, since an asyncio connection belongs to its loop.

A saver may be used without `close()`, so each pool closes with its event loop. When `asyncio.run` ends a loop, it
cancels every task, which closes the pool, and then shuts down async generators.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
import weakref
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import asynccontextmanager, suppress
from typing import Any

import psycopg
from psycopg import AsyncConnection
from psycopg.conninfo import conninfo_to_dict
from psycopg_pool import AsyncConnectionPool
from typing_extensions import Self

from langgraph_durable._postgres import pools
from langgraph_durable._postgres.background import keep_alive
from langgraph_durable._postgres.loop_checkout import async_live_connection
from langgraph_durable._postgres.pools import AsyncConnections, PoolContext
from langgraph_durable._postgres.psycopg_internals import TunedAsyncConnection, lend_last_returned_first


class LoopPools(AsyncConnections):
    """The asyncio pools of a saver and its clones."""

    def __init__(self, context: PoolContext) -> None:
        self.planning = context.planning
        self._context = context
        # Changed by many threads at once: each change, and each copy, is atomic in the interpreter.
        self._by_loop: dict[asyncio.AbstractEventLoop, _LoopPool] = {}
        self._attempts: dict[asyncio.AbstractEventLoop, asyncio.Event] = {}

    @asynccontextmanager
    async def checkout(self) -> AsyncIterator[AsyncConnection[Any]]:
        """Lend a connection of the running event loop's pool."""
        self._context.require_open()
        if not self._context.reached and (first := await self._reach()) is not None:
            async with first:
                yield first
            return
        self._context.require_open()  # since it may have been closed meanwhile
        own = self._by_loop.get(asyncio.get_running_loop())
        if own is not None and own.loop_ends:
            async with await self._connect_first() as single:
                yield single
            return
        if own is None or own.pid != os.getpid():
            own = self._make_pool(own)
        if not own.opened:
            await own.open()
        own.users += 1
        try:
            async with async_live_connection(own.pool) as connection:
                yield connection
        finally:
            own.users -= 1

    def pool_stats(self) -> Mapping[str, int]:
        """Return psycopg_pool's counts, summed over the event loops."""
        total = Counter[str]()
        for own in list(self._by_loop.values()):
            total.update(own.pool.get_stats())
        return total

    def parameters(self) -> Mapping[str, Any]:
        """Return the connection parameters."""
        return conninfo_to_dict(self._context.conninfo)

    def _make_pool(self, inherited: _LoopPool | None) -> _LoopPool:
        if inherited is not None:
            inherited.abandon()
        for loop, pool in list(self._by_loop.items()):
            if loop.is_closed():
                pool.abandon()
                self._by_loop.pop(loop, None)
        loop = asyncio.get_running_loop()
        own = self._by_loop[loop] = _LoopPool(self._context)
        own.close_with(self, loop)
        return own

    async def _reach(self) -> AsyncConnection[Any] | None:
        """Make the first connection, or wait for this loop's task that makes it."""
        loop, attempt = asyncio.get_running_loop(), asyncio.Event()
        if (other := self._attempts.setdefault(loop, attempt)) is not attempt:
            await other.wait()
            return None if self._context.reached else await self._connect_first()
        try:
            first = await self._connect_first()
            self._context.reached = True
            return first
        finally:
            self._attempts.pop(loop, None)
            attempt.set()

    async def _connect_first(self) -> AsyncConnection[Any]:
        tried = self._context.conninfo
        try:
            return await AsyncConnection.connect(tried, **self._context.connection_options)
        except psycopg.OperationalError as exc:
            if not self._context.give_up_options(tried, exc):
                raise
            return await self._connect_first()

    async def close_own(self) -> None:
        """Close the running event loop's pool."""
        if (own := self._by_loop.pop(asyncio.get_running_loop(), None)) is not None:
            await own.close()

    def close_all(self) -> None:
        """Close the pools of all event loops, from any thread."""
        for loop, own in list(self._by_loop.items()):
            self._by_loop.pop(loop, None)
            if own.pid != os.getpid() or loop.is_closed():
                own.abandon()
            elif not loop.is_running() and _running_loop() is None:
                # Between two runs of the loop, as in a test's teardown. A connection that is just being made can be
                # closed only on its loop; left alone, it keeps the server waiting for a minute.
                loop.run_until_complete(own.close())
            elif not loop.is_running():
                own.abandon()
            elif loop is _running_loop():
                own.start_closing(loop)
            else:
                closing = asyncio.run_coroutine_threadsafe(own.close(), loop)
                # A loop that is blocked closes it later.
                with suppress(FutureTimeout):
                    closing.result(pools.CLOSE_TIMEOUT)


class LoopConnection(AsyncConnection[Any]):
    """A connection that closes its socket if cancelled while it connects."""

    @classmethod
    async def connect(cls, conninfo: str = "", **options: Any) -> Self:
        """Connect; see psycopg."""
        try:
            return await super().connect(conninfo, **options)
        except asyncio.CancelledError as exc:
            # The traceback's frames hold the socket open, and the server would wait a minute for the handshake.
            raise exc.with_traceback(None) from None


class _TunedLoopConnection(TunedAsyncConnection, LoopConnection):
    pass


class _LoopPool:
    """The pool of one event loop, which closes with the loop.

    psycopg_pool's tasks (3.3.3) lose a cancellation that arrives while they connect, and then `asyncio.run` waits for
    them forever. So a task of ours waits to be cancelled and closes the pool, which stops those tasks. What other
    tasks save while they are cancelled goes over separate connections. An async generator closes the pools of loops
    that end without cancelling their tasks.
    """

    def __init__(self, context: PoolContext) -> None:
        self.pid = os.getpid()
        self.opened = False
        self.loop_ends = False
        self.users = 0
        self._closed = asyncio.Event()
        logging.getLogger("psycopg.pool").addFilter(_is_not_cancellation)  # adding it again does nothing
        self._connections: weakref.WeakSet[AsyncConnection[Any]] = weakref.WeakSet()
        self.pool: AsyncConnectionPool[Any] = AsyncConnectionPool(
            context.conninfo,
            connection_class=_TunedLoopConnection if context.tuning else LoopConnection,
            configure=self._remember,
            reconnect_failed=_retry_connecting,
            **context.pool_options,
        )
        if context.tuning:
            lend_last_returned_first(self.pool)
        self._life = self._close_when_shut_down()
        self._guard: asyncio.Task[None] | None = None

    async def open(self) -> None:
        await self.pool.open()  # does nothing for all but the first of concurrent tasks
        if not self.opened:
            self.opened = True
            self._guard = asyncio.create_task(self._close_when_cancelled())
            await self._life.__anext__()

    def close_with(self, owner: object, loop: asyncio.AbstractEventLoop) -> None:
        """Close when an unclosed saver is garbage collected, in whatever thread."""
        # It also keeps this object alive: a pool that is collected with its saver could not stop its tasks.
        self._finalizer = weakref.finalize(owner, self._close_soon, loop)
        self._finalizer.atexit = False

    def _close_soon(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            loop.call_soon_threadsafe(self.start_closing, loop)
        except RuntimeError:  # the loop is closed
            self.abandon()

    def start_closing(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start to close, on the running event loop."""
        keep_alive(loop.create_task(self.close()))

    async def close(self) -> None:
        self._finalizer.detach()
        self.opened = True  # so that a concurrent checkout does not open the closed pool again
        self._closed.set()
        await self.pool.close(pools.CLOSE_TIMEOUT)
        await self._life.aclose()

    def abandon(self) -> None:
        """Close a closed loop's connections, without awaiting anything."""
        self._finalizer.detach()
        if self.pid != os.getpid():
            pools.inherited.append(self)
            return
        for connection in list(self._connections):
            connection.pgconn.finish()

    async def _remember(self, connection: AsyncConnection[Any]) -> None:
        self._connections.add(connection)

    async def _close_when_cancelled(self) -> None:
        try:
            await self._closed.wait()
        except asyncio.CancelledError:
            await self._close_with_loop()
            raise

    async def _close_when_shut_down(self) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            await self._close_with_loop()

    async def _close_with_loop(self) -> None:
        self.loop_ends = True
        deadline = time.monotonic() + pools.CLOSE_TIMEOUT
        while self.users and time.monotonic() < deadline:  # noqa: ASYNC110 (an Event would cost every checkout)
            await asyncio.sleep(0.005)
        try:
            await self.pool.close(pools.CLOSE_TIMEOUT)
        except asyncio.CancelledError:  # of the pool's tasks, which it waits for
            self.abandon()


def _is_not_cancellation(record: logging.LogRecord) -> bool:
    """Return whether a log record is not about a cancelled connection attempt."""
    args = record.args if isinstance(record.args, tuple) else ()
    return not any(isinstance(argument, asyncio.CancelledError) for argument in args)


async def _retry_connecting(pool: AsyncConnectionPool[Any]) -> None:
    await pool.check()


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None

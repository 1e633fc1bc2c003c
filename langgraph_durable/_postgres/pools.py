"""The saver's own pools, made from a connection string and opened at first use.

One blocking pool for all threads, and one asyncio pool for each event loop (loop_pools.py). No lock surrounds a pool.
A process that exits closes the blocking pool. A forked process leaves what it inherited to its parent.
"""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import Connection
from psycopg_pool import ConnectionPool

from langgraph_durable._postgres import pool_context
from langgraph_durable._postgres.checkout import live_connection
from langgraph_durable._postgres.connections import BlockingConnections
from langgraph_durable._postgres.conninfo_source import Conninfo
from langgraph_durable._postgres.loop_pools import LoopPools
from langgraph_durable._postgres.pool_context import PoolContext, PoolSettings
from langgraph_durable._postgres.psycopg_internals import TunedConnection, lend_last_returned_first


class OwnPools:
    """The pools of a saver and its clones."""

    def __init__(self, conninfo: Conninfo, settings: PoolSettings) -> None:
        self._context = PoolContext(conninfo, settings)
        self.blocking = _BlockingPool(self._context)
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


class _BlockingPool(BlockingConnections):
    """The pool of all threads of a process."""

    def __init__(self, context: PoolContext) -> None:
        self.planning = context.planning
        self._context = context
        self._connection_class: type[Connection[Any]] = TunedConnection if context.tuning else Connection
        self._pool: ConnectionPool[Any] | None = None
        self._pid = os.getpid()
        self._opening = threading.Lock()
        # By process id, so that a forked child does not wait for its parent's attempt.
        self._attempts: dict[int, threading.Event] = {}
        self._finalizer: weakref.finalize[..., Any] | None = None

    @contextmanager
    def checkout(self) -> Iterator[Connection[Any]]:
        self._context.require_open()
        if not self._context.reached and (first := self._reach()) is not None:
            with first:
                yield first
            return
        pool = self._pool
        if pool is None or self._pid != os.getpid():
            pool = self._open()
        with live_connection(pool) as connection:
            yield connection

    def pool_stats(self) -> Mapping[str, int]:
        return self._pool.get_stats() if self._pool is not None else {}

    def parameters(self) -> Mapping[str, Any]:
        return self._context.source.parameters()

    def _reach(self) -> Connection[Any] | None:
        """Make the first connection, or wait for the caller that is making it.

        Without waiting, each of many first callers would open a connection.

        Returns:
            None if another caller has reached the server.
        """
        attempt = threading.Event()
        if (other := self._attempts.setdefault(os.getpid(), attempt)) is not attempt:
            other.wait()
            return None if self._context.reached else self._connect_first()
        try:
            if self._context.reached:  # since the check in `checkout`
                return None
            first = self._connect_first()
            self._context.reached = True
            return first
        finally:
            self._attempts.pop(os.getpid(), None)
            attempt.set()

    def _connect_first(self) -> Connection[Any]:
        source = self._context.source
        tried_plain = source.plain
        try:
            return self._connection_class.connect(source.get(), **self._context.connection_options)
        except psycopg.OperationalError as exc:
            if not self._context.give_up_options(tried_plain, exc):
                raise
            return self._connect_first()

    def _open(self) -> ConnectionPool[Any]:
        if self._pid != os.getpid():
            pool_context.inherited.append((self._pool, self._finalizer))
            if self._finalizer is not None:
                self._finalizer.detach()
            self._pool, self._opening, self._pid = None, threading.Lock(), os.getpid()
        with self._opening:  # so that two threads do not open two pools
            self._context.require_open()
            if self._pool is None:
                pool: ConnectionPool[Any] = ConnectionPool(
                    self._context.source.for_pool(self._context.source.get),
                    connection_class=self._connection_class,
                    reconnect_failed=_retry_connecting,
                    **self._context.pool_options,
                )
                if self._context.tuning:
                    lend_last_returned_first(pool)
                pool.open()
                self._finalizer = weakref.finalize(self, _close_unless_forked, pool, self._pid)
                self._pool = pool
            return self._pool

    def close(self) -> None:
        with self._opening:
            if self._finalizer is not None and self._pid == os.getpid():
                self._finalizer()


def _close_unless_forked(pool: ConnectionPool[Any], pid: int) -> None:
    if pid == os.getpid():
        pool.close(pool_context.CLOSE_TIMEOUT)
    else:
        pool_context.inherited.append(pool)


def _retry_connecting(pool: ConnectionPool[Any]) -> None:
    pool.check()  # makes the pool connect again if a caller waits, or if it has too few connections

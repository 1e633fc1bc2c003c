"""Connections that a caller passes: a pool, or one connection.

A passed pool is used without any lock around it. A passed connection serves one operation at a time, and work that
failed inside the caller's transaction is not retried.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import (
    asynccontextmanager,
    contextmanager,
)
from typing import Any

from psycopg import AsyncConnection, Connection
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import TransactionStatus
from psycopg_pool import AsyncConnectionPool, ConnectionPool, PoolClosed

from langgraph_durable._postgres.conninfo import planning_beside
from langgraph_durable._postgres.loop_checkout import async_live_connection
from langgraph_durable._postgres.pools import AsyncConnections, BlockingConnections, is_idle, live_connection
from langgraph_durable.errors import InvalidConfigError, SaverClosedError


class GivenPool(BlockingConnections):
    """The caller's blocking pool; never closed."""

    def __init__(self, pool: ConnectionPool[Any]) -> None:
        self._pool = pool
        self.planning = planning_beside(_options_of(pool))

    @contextmanager
    def checkout(self) -> Iterator[Connection[Any]]:
        """Lend a connection of the pool."""
        with _naming_closed("pool"), live_connection(self._pool) as connection:
            yield connection

    def pool_stats(self) -> Mapping[str, int]:
        """Return the pool's counts, which include other users' requests."""
        return self._pool.get_stats()

    def parameters(self) -> Mapping[str, Any]:
        """Return the pool's parameters."""
        return _parameters_of(self._pool)


class GivenConnection(BlockingConnections):
    """The caller's blocking connection: one operation at a time; never closed."""

    pooled = False

    def __init__(self, connection: Connection[Any]) -> None:
        self._connection = connection
        self._lock = threading.RLock()

    @contextmanager
    def checkout(self) -> Iterator[Connection[Any]]:
        """Lend the connection as soon as it is free."""
        with self._lock:
            _require_open(self._connection)
            yield self._connection

    def may_retry(self) -> bool:
        """Return whether the connection is usable and not in the caller's transaction."""
        with self._lock:  # another thread's operation would look like the caller's transaction
            return is_idle(self._connection)

    def in_transaction(self) -> bool:
        """Return whether the connection is in the caller's transaction."""
        with self._lock:  # as above
            return _is_in_transaction(self._connection)

    def parameters(self) -> Mapping[str, Any]:
        """Return the parameters of the connection."""
        return self._connection.info.get_parameters()


class AsyncGivenPool(AsyncConnections):
    """The caller's asyncio pool; never closed."""

    def __init__(self, pool: AsyncConnectionPool[Any]) -> None:
        self._pool = pool
        self.planning = planning_beside(_options_of(pool))

    @asynccontextmanager
    async def checkout(self) -> AsyncIterator[AsyncConnection[Any]]:
        """Lend a connection of the pool."""
        with _naming_closed("async_pool"):
            async with async_live_connection(self._pool) as connection:
                yield connection

    def pool_stats(self) -> Mapping[str, int]:
        """Return the pool's counts, which include other users' requests."""
        return self._pool.get_stats()

    def parameters(self) -> Mapping[str, Any]:
        """Return the pool's parameters."""
        return _parameters_of(self._pool)


class AsyncGivenConnection(AsyncConnections):
    """The caller's asyncio connection: one operation at a time; never closed."""

    pooled = False

    def __init__(self, connection: AsyncConnection[Any]) -> None:
        self._connection = connection
        self._lock = asyncio.Lock()
        self._holder: asyncio.Task[Any] | None = None

    @asynccontextmanager
    async def checkout(self) -> AsyncIterator[AsyncConnection[Any]]:
        """Lend the connection as soon as it is free."""
        async with self._held():
            _require_open(self._connection)
            yield self._connection

    @asynccontextmanager
    async def _held(self) -> AsyncIterator[None]:
        """Hold the lock, which is reentrant for a task, as an RLock is for a thread."""
        task = asyncio.current_task()
        if task is not None and task is self._holder:
            yield
            return
        async with self._lock:
            self._holder = task
            try:
                yield
            finally:
                self._holder = None

    def may_retry(self) -> bool:
        """Return whether the connection is usable and not in the caller's transaction."""
        return is_idle(self._connection)

    async def in_transaction(self) -> bool:
        """Return whether the connection is in the caller's transaction."""
        async with self._held():
            return _is_in_transaction(self._connection)

    def parameters(self) -> Mapping[str, Any]:
        """Return the parameters of the connection."""
        return self._connection.info.get_parameters()


def given_connections(pool: Any) -> BlockingConnections:
    """Return the source of connections for a caller's `pool` argument.

    Raises:
        InvalidConfigError: It is neither a psycopg ConnectionPool nor a Connection.
    """
    if isinstance(pool, ConnectionPool):
        return GivenPool(pool)
    if isinstance(pool, Connection):
        return GivenConnection(pool)
    raise InvalidConfigError(
        f"pool must be a psycopg ConnectionPool or Connection, got {type(pool).__name__}"
        + ("; pass it as async_pool=" if isinstance(pool, (AsyncConnectionPool, AsyncConnection)) else "")
    )


def given_async_connections(pool: Any) -> AsyncConnections:
    """Return the source of connections for a caller's `async_pool` argument.

    Raises:
        InvalidConfigError: It is neither a psycopg AsyncConnectionPool nor an AsyncConnection.
    """
    if isinstance(pool, AsyncConnectionPool):
        return AsyncGivenPool(pool)
    if isinstance(pool, AsyncConnection):
        return AsyncGivenConnection(pool)
    raise InvalidConfigError(
        f"async_pool must be a psycopg AsyncConnectionPool or AsyncConnection, got {type(pool).__name__}"
        + ("; pass it as pool=" if isinstance(pool, (ConnectionPool, Connection)) else "")
    )


def _parameters_of(pool: ConnectionPool[Any] | AsyncConnectionPool[Any]) -> Mapping[str, Any]:
    """Return the parameters in a pool's connection string; none if that is a callable."""
    return conninfo_to_dict(pool.conninfo) if isinstance(pool.conninfo, str) else {}


def _options_of(pool: ConnectionPool[Any] | AsyncConnectionPool[Any]) -> str | None:
    """Return the startup options of a pool; None if it has none, or has them from a callable."""
    given = pool.kwargs if isinstance(pool.kwargs, Mapping) else {}
    options: str | None = {**_parameters_of(pool), **given}.get("options")
    return options


def _is_in_transaction(connection: Connection[Any] | AsyncConnection[Any]) -> bool:
    status = connection.pgconn.transaction_status
    return status in (TransactionStatus.INTRANS, TransactionStatus.INERROR)


def _require_open(connection: Connection[Any] | AsyncConnection[Any]) -> None:
    if connection.closed:
        raise SaverClosedError(
            "the connection given to the saver is closed. Pass an open one, or a pool, which replaces "
            "connections that die."
        )


@contextmanager
def _naming_closed(parameter: str) -> Iterator[None]:
    try:
        yield
    except PoolClosed as exc:
        raise SaverClosedError(
            f"the {parameter} given to the saver is not open: {exc}. Open it first."
        ) from exc

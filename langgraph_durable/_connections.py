"""Sources of connections, and those that a caller brings: pools, or one connection.

A given pool is used as it is: nothing here holds a lock around it. A single connection serves one operation at a
time, but for what is called inside of one, as in the block of an effect's transaction, and no work that failed inside
the caller's own transaction is run again.
"""

from __future__ import annotations

import asyncio
import re
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Coroutine, Generator, Iterator, Mapping
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
)
from functools import partial
from types import coroutine as coroutine_of
from typing import Any
from weakref import WeakKeyDictionary

from psycopg import AsyncConnection, Connection, OperationalError
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import TransactionStatus
from psycopg_pool import AsyncConnectionPool, ConnectionPool, PoolClosed

from langgraph_durable._faults import refuses_writes
from langgraph_durable.errors import SaverClosed

_returning: set[asyncio.Future[None]] = set()
"""Connections on their way back to their pools, kept because a loop alone does not keep its tasks."""

_refused_writes: WeakKeyDictionary[ConnectionPool[Any] | AsyncConnectionPool[Any], float] = (
    WeakKeyDictionary()
)
"""When, by the monotonic clock, a connection of a pool last refused to write."""


PLANNING: Mapping[str, str] = {"plan_cache_mode": "force_generic_plan", "jit": "off"}
"""What our statements run under, which find rows by their keys, whatever the parameters.

Planning one anew costs as much as running it, and compiling one takes a hundred times as long.
"""


def planning_beside(options: str | None) -> Mapping[str, str | None]:
    """Return these settings, but None for those that startup options of the caller's name: what they say stands."""
    named = re.findall(r"(?:^|\s)(?:-c\s*|--)([\w-]+)=", options or "")
    chosen = {name.replace("-", "_").lower() for name in named}
    return {name: None if name in chosen else value for name, value in PLANNING.items()}


class Connections:
    """A source of connections, of either kind."""

    planning: Mapping[str, str | None] = dict.fromkeys(PLANNING)
    """Settings that writes make for their own transactions; None for those that are left as they are."""

    pooled = True
    """Whether there are several, in none of which a transaction of the caller's can be."""

    def may_retry(self) -> bool:
        """Tell whether work that failed may be run again: not on a connection in the caller's transaction."""
        return True

    def pool_stats(self) -> Mapping[str, int]:
        """Return what psycopg_pool has counted of the pools there are."""
        return {}

    def parameters(self) -> Mapping[str, Any]:
        """Return the connection parameters, as far as they are known without asking."""
        return {}


class BlockingConnections(Connections, ABC):
    """A source of blocking connections."""

    @abstractmethod
    def checkout(self) -> AbstractContextManager[Connection[Any]]:
        """Lend a connection; it must not be held across a yield to the caller."""

    def in_transaction(self) -> bool:
        """Tell whether what is done would be part of the caller's transaction."""
        return False


class AsyncConnections(Connections, ABC):
    """A source of asyncio connections."""

    @abstractmethod
    def checkout(self) -> AbstractAsyncContextManager[AsyncConnection[Any]]:
        """Lend a connection of the running event loop."""

    async def in_transaction(self) -> bool:
        """Tell whether what is done would be part of the caller's transaction."""
        return False


class GivenPool(BlockingConnections):
    """A caller's blocking pool, used as it is and never closed."""

    def __init__(self, pool: ConnectionPool[Any]) -> None:
        self._pool = pool
        self.planning = planning_beside(_options_of(pool))

    @contextmanager
    def checkout(self) -> Iterator[Connection[Any]]:
        """Lend a connection of the pool."""
        with _naming_closed("pool"), living_connection(self._pool) as connection:
            yield connection

    def pool_stats(self) -> Mapping[str, int]:
        """Return what the pool has counted, also for others."""
        return self._pool.get_stats()

    def parameters(self) -> Mapping[str, Any]:
        """Return the pool's parameters."""
        return _parameters_of(self._pool)


class GivenConnection(BlockingConnections):
    """A caller's one blocking connection: one operation at a time, never closed."""

    pooled = False

    def __init__(self, connection: Connection[Any]) -> None:
        self._connection = connection
        self._lock = threading.RLock()

    @contextmanager
    def checkout(self) -> Iterator[Connection[Any]]:
        """Lend the connection, when it is free."""
        with self._lock:
            _require_open(self._connection)
            yield self._connection

    def may_retry(self) -> bool:
        """Tell whether the connection is whole and in no transaction of the caller's."""
        with self._lock:  # or what another thread does there would look like the caller's transaction
            return is_idle(self._connection)

    def in_transaction(self) -> bool:
        """Tell whether the connection is in a transaction of the caller's."""
        with self._lock:  # as above
            return _is_in_transaction(self._connection)

    def parameters(self) -> Mapping[str, Any]:
        """Return the parameters of the connection."""
        return self._connection.info.get_parameters()


class AsyncGivenPool(AsyncConnections):
    """A caller's asyncio pool, used as it is and never closed."""

    def __init__(self, pool: AsyncConnectionPool[Any]) -> None:
        self._pool = pool
        self.planning = planning_beside(_options_of(pool))

    @asynccontextmanager
    async def checkout(self) -> AsyncIterator[AsyncConnection[Any]]:
        """Lend a connection of the pool."""
        with _naming_closed("async_pool"):
            async with async_living_connection(self._pool) as connection:
                yield connection

    def pool_stats(self) -> Mapping[str, int]:
        """Return what the pool has counted, also for others."""
        return self._pool.get_stats()

    def parameters(self) -> Mapping[str, Any]:
        """Return the pool's parameters."""
        return _parameters_of(self._pool)


class AsyncGivenConnection(AsyncConnections):
    """A caller's one asyncio connection: one operation at a time, never closed."""

    pooled = False

    def __init__(self, connection: AsyncConnection[Any]) -> None:
        self._connection = connection
        self._lock = asyncio.Lock()
        self._holder: asyncio.Task[Any] | None = None

    @asynccontextmanager
    async def checkout(self) -> AsyncIterator[AsyncConnection[Any]]:
        """Lend the connection, when it is free."""
        async with self._held():
            _require_open(self._connection)
            yield self._connection

    @asynccontextmanager
    async def _held(self) -> AsyncIterator[None]:
        """Hold the lock, which the task that holds it already need not wait for: it would wait for itself."""
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
        """Tell whether the connection is whole and in no transaction of the caller's."""
        return is_idle(self._connection)

    async def in_transaction(self) -> bool:
        """Tell whether the connection is in a transaction of the caller's."""
        async with self._held():
            return _is_in_transaction(self._connection)

    def parameters(self) -> Mapping[str, Any]:
        """Return the parameters of the connection."""
        return self._connection.info.get_parameters()


@contextmanager
def living_connection(pool: ConnectionPool[Any]) -> Iterator[Connection[Any]]:
    """Lend a connection of a pool, after closing those that are of no use: a restart, or a failover, leaves it full.

    One that leads to a read-only server, and was asked to write, does not go back to the pool: the server's address
    may lead elsewhere by now. For reading alone it is as good as any.
    """
    refused = _refused_writes.get(pool)
    while True:
        with pool.connection() as connection:
            if not _has_ended(connection) and not _is_suspect(connection, refused):
                try:
                    yield connection
                except BaseException as exc:
                    if refuses_writes(exc):
                        _refused_writes[pool] = time.monotonic()
                        connection.close()
                    raise
                return
            connection.close()


@asynccontextmanager
async def async_living_connection(pool: AsyncConnectionPool[Any]) -> AsyncIterator[AsyncConnection[Any]]:
    """Lend a connection of a pool; see `living_connection`."""
    refused = _refused_writes.get(pool)
    while True:
        async with _lent_connection(pool) as connection:
            if not _has_ended(connection) and not _is_suspect(connection, refused):
                try:
                    yield connection
                except BaseException as exc:
                    if refuses_writes(exc):
                        _refused_writes[pool] = time.monotonic()
                        await connection.close()
                    raise
                return
            await connection.close()


@asynccontextmanager
async def _lent_connection(pool: AsyncConnectionPool[Any]) -> AsyncIterator[AsyncConnection[Any]]:
    """Lend a connection as `pool.connection()` does, but take it back for certain.

    psycopg_pool (3.3.3) loses it if it is cancelled while it takes it back, and with it the task that it would have
    given it to, which waits in vain.
    """
    connection = await pool.getconn()
    try:
        yield connection
    except BaseException:
        async with connection:  # which undoes what may be left of a transaction
            raise
    finally:
        await finish(pool.putconn(connection))


async def finish(coroutine: Coroutine[Any, Any, None]) -> None:
    """Finish a coroutine even if whoever waits for it is cancelled; at once if it need not wait.

    A task of its own would take two turns of the event loop. But what it does until it first waits, it does in the
    caller's task: nothing that remembers its task, as a time-out does, may be begun there.
    """
    try:
        waits_for = coroutine.send(None)
    except StopIteration:
        return
    rest = asyncio.ensure_future(_rest_of(coroutine, waits_for))
    _returning.add(rest)
    rest.add_done_callback(_returning.discard)
    await asyncio.shield(rest)


@coroutine_of
def _rest_of(coroutine: Coroutine[Any, Any, None], waits_for: Any) -> Generator[Any, Any, None]:
    """Finish a coroutine that has begun, and waits."""
    while True:
        try:
            came = yield waits_for
        except BaseException as exc:
            step = partial(coroutine.throw, exc)
        else:
            step = partial(coroutine.send, came)
        try:
            waits_for = step()
        except StopIteration:
            return


def _parameters_of(pool: ConnectionPool[Any] | AsyncConnectionPool[Any]) -> Mapping[str, Any]:
    """Return the parameters that a pool was given; none if it calls for them each time."""
    return conninfo_to_dict(pool.conninfo) if isinstance(pool.conninfo, str) else {}


def _options_of(pool: ConnectionPool[Any] | AsyncConnectionPool[Any]) -> str | None:
    """Return the startup options that a pool was given; None if it calls for them each time."""
    given = pool.kwargs if isinstance(pool.kwargs, Mapping) else {}
    options: str | None = {**_parameters_of(pool), **given}.get("options")
    return options


def _has_ended(connection: Connection[Any] | AsyncConnection[Any]) -> bool:
    """Tell whether the server has ended an idle connection: from what has come already, without a round trip."""
    try:
        connection.pgconn.consume_input()  # may find the server's farewell,
        connection.pgconn.consume_input()  # and then the end of the stream
    except OperationalError:
        return True
    return False


def _is_suspect(connection: Connection[Any] | AsyncConnection[Any], refused: float | None) -> bool:
    """Return whether a connection is as old as one that refused to write, and says itself that it is read-only.

    Else each of a large pool would cost a call of its own to be found out.
    """
    if refused is None or getattr(connection, "_created_at", refused) >= refused:  # psycopg_pool's (3.3) mark
        return False
    told = (
        connection.info.parameter_status(name) for name in ("in_hot_standby", "default_transaction_read_only")
    )
    return "on" in told


def _is_in_transaction(connection: Connection[Any] | AsyncConnection[Any]) -> bool:
    status = connection.pgconn.transaction_status
    return status in (TransactionStatus.INTRANS, TransactionStatus.INERROR)


def is_idle(connection: Connection[Any] | AsyncConnection[Any]) -> bool:
    """Tell whether a connection is whole and in no transaction."""
    return not connection.closed and connection.info.transaction_status == TransactionStatus.IDLE


def _require_open(connection: Connection[Any] | AsyncConnection[Any]) -> None:
    if connection.closed:
        raise SaverClosed(
            "the connection given to the saver is closed: give it an open one, or a pool, which replaces "
            "connections that die"
        )


@contextmanager
def _naming_closed(parameter: str) -> Iterator[None]:
    try:
        yield
    except PoolClosed as exc:
        raise SaverClosed(f"the {parameter} given to the saver is not open: {exc}") from exc

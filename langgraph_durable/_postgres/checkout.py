"""Lend live connections of a pool, and return them despite cancellation."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Coroutine, Generator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from types import coroutine as coroutine_of
from typing import Any
from weakref import WeakKeyDictionary

from psycopg import AsyncConnection, Connection, OperationalError
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from langgraph_durable._postgres.background import keep_alive
from langgraph_durable._postgres.faults import refuses_writes
from langgraph_durable._postgres.psycopg_internals import created_at

_refused_writes: WeakKeyDictionary[ConnectionPool[Any] | AsyncConnectionPool[Any], float] = (
    WeakKeyDictionary()
)
"""When a connection of a pool last refused to write, by the monotonic clock."""


@contextmanager
def live_connection(pool: ConnectionPool[Any]) -> Iterator[Connection[Any]]:
    """Lend a connection of a pool, and close dead ones found on the way: a restart leaves a pool full of them.

    A connection that refused to write because its server is read-only is closed too, since the server's address may
    lead elsewhere by now. It stays in the pool if it only reads.
    """
    refused = _refused_writes.get(pool)
    for left in range(max(pool.max_size, 1), -1, -1):
        with pool.connection() as connection:
            if left and (_has_ended(connection) or _is_suspect(connection, refused)):
                connection.close()
                continue
            try:
                yield connection
            except BaseException as exc:
                if refuses_writes(exc):
                    _refused_writes[pool] = time.monotonic()
                    connection.close()
                raise
            return


@asynccontextmanager
async def async_live_connection(pool: AsyncConnectionPool[Any]) -> AsyncIterator[AsyncConnection[Any]]:
    """Lend a connection of a pool; see `live_connection`."""
    refused = _refused_writes.get(pool)
    for left in range(max(pool.max_size, 1), -1, -1):
        async with _lent_connection(pool) as connection:
            if left and (_has_ended(connection) or _is_suspect(connection, refused)):
                await connection.close()
                continue
            try:
                yield connection
            except BaseException as exc:
                if refuses_writes(exc):
                    _refused_writes[pool] = time.monotonic()
                    await connection.close()
                raise
            return


@asynccontextmanager
async def _lent_connection(pool: AsyncConnectionPool[Any]) -> AsyncIterator[AsyncConnection[Any]]:
    """Lend a connection, and return it even if cancelled meanwhile.

    psycopg_pool (3.3.3) loses a connection if it is cancelled while returning it, and the task that it would have
    lent it to waits until its timeout.
    """
    connection = await pool.getconn()
    try:
        yield connection
    except BaseException:
        async with connection:  # rolls an open transaction back
            raise
    finally:
        await finish(pool.putconn(connection))


async def finish(coroutine: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine to its end, even if the caller is cancelled; at once if it does not have to wait.

    A separate task from the start would take two turns of the event loop. So the coroutine's first step runs in the
    caller's task: it must not enter anything that remembers its task, such as a timeout, before it first waits.
    """
    try:
        waits_for = coroutine.send(None)
    except StopIteration:
        return
    await asyncio.shield(keep_alive(asyncio.ensure_future(_rest_of(coroutine, waits_for))))


@coroutine_of
def _rest_of(coroutine: Coroutine[Any, Any, None], waits_for: Any) -> Generator[Any, Any, None]:
    """Run a coroutine that has begun to its end."""
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


def _has_ended(connection: Connection[Any] | AsyncConnection[Any]) -> bool:
    """Return whether the server has ended an idle connection, by what was received: no round trip."""
    try:
        connection.pgconn.consume_input()  # may read the server's last message,
        connection.pgconn.consume_input()  # and then the end of the stream
    except OperationalError:
        return True
    return False


def _is_suspect(connection: Connection[Any] | AsyncConnection[Any], refused: float | None) -> bool:
    """Return whether a connection may be one that leads to a read-only server.

    It is older than the last one that refused to write, and its server reports that it is read-only. Without this check
    each connection of a large pool would cost a failed call.
    """
    if refused is None or (created_at(connection) or refused) >= refused:
        return False
    reported = (
        connection.info.parameter_status(name) for name in ("in_hot_standby", "default_transaction_read_only")
    )
    return "on" in reported

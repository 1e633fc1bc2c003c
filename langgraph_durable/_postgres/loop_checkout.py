"""Lend live connections of asyncio pools, and return them despite cancellation."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Coroutine, Generator
from contextlib import asynccontextmanager
from functools import partial
from types import coroutine as coroutine_of
from typing import Any

from psycopg import AsyncConnection
from psycopg_pool import AsyncConnectionPool

from langgraph_durable._postgres.background import keep_alive
from langgraph_durable._postgres.faults import refuses_writes
from langgraph_durable._postgres.pools import has_ended, is_suspect, refused_writes


@asynccontextmanager
async def async_live_connection(pool: AsyncConnectionPool[Any]) -> AsyncIterator[AsyncConnection[Any]]:
    """Lend a connection of a pool; see `live_connection`."""
    refused = refused_writes.get(pool)
    for left in range(max(pool.max_size, 1), -1, -1):
        async with _lent_connection(pool) as connection:
            if left and (has_ended(connection) or is_suspect(connection, refused)):
                await connection.close()
                continue
            try:
                yield connection
            except BaseException as exc:
                if refuses_writes(exc):
                    refused_writes[pool] = time.monotonic()
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

"""Everything that uses the private API of psycopg and psycopg_pool.

It sends with fewer waits, and reuses warm backends. Used only with the versions in `_TESTED` and with `tuning=True` of
`from_conn_string`. Otherwise the saver's pools and connections are psycopg's own: correct, and slower.
"""

from __future__ import annotations

import re
from collections import deque
from functools import cache
from typing import Any, TypeVar

import psycopg
import psycopg_pool
from psycopg import AsyncConnection, Connection
from psycopg.abc import RV, PQGen
from psycopg.waiting import Ready, Wait
from psycopg_pool import AsyncConnectionPool, ConnectionPool

P = TypeVar("P", ConnectionPool[Any], AsyncConnectionPool[Any])

_TESTED = {"psycopg": (3, 3), "psycopg_pool": (3, 3)}

_SENDS = 16
"""Steps of sending that may follow one another; there is one for each statement of a pipeline."""


@cache
def is_tested(
    psycopg_version: str = psycopg.__version__, pool_version: str = psycopg_pool.__version__
) -> bool:
    """Return whether the private API of the installed versions is the one used here."""
    installed = {"psycopg": psycopg_version, "psycopg_pool": pool_version}
    return {name: _minor(version) for name, version in installed.items()} == _TESTED


def _minor(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)[:2]))


class TunedAsyncConnection(AsyncConnection[Any]):
    """Yields to the event loop only when it has to wait.

    A turn of an event loop that runs 200 graphs takes tens of milliseconds, so a call costs as much as its turns.
    """

    async def wait(self, gen: PQGen[RV], *args: Any, **options: Any) -> RV:
        """Wait, but without the turn that psycopg (3.3.9) yields after 5 ms."""
        rest = _after_sending(gen)
        try:
            next(rest)
        except StopIteration as stop:
            result: RV = stop.value
            return result
        return await super().wait(rest, *args, **options)


class TunedConnection(Connection[Any]):
    """Sends without asking whether the socket is writable: each question releases the interpreter's lock."""

    def wait(self, gen: PQGen[RV], *args: Any, **options: Any) -> RV:
        """Wait as psycopg does, after sending."""
        return super().wait(_after_sending(gen), *args, **options)


def _after_sending(gen: PQGen[RV]) -> PQGen[RV]:
    """Advance a generator while it has data to send. What the socket does not take stays in libpq's buffer.

    Resumed without an event, as after a cancellation, it waits for the same one again.
    """
    try:
        waits_for = next(gen)
        for _ in range(_SENDS):
            if not waits_for & Wait.W:
                break
            waits_for = gen.send(Ready.W)
        while True:
            while not (ready := (yield waits_for)):
                pass
            waits_for = gen.send(ready)
    except StopIteration as stop:
        result: RV = stop.value
        return result


class _LastInFirstOut(deque[Any]):
    """The idle connections of a pool, of which the last one returned is lent first.

    psycopg_pool lends them in turn, so a single caller would visit all of them, and find each backend's plans and
    catalogs out of the processor's caches: about 0.4 ms of a put's 1.1.
    """

    def popleft(self) -> Any:
        """Remove the connection that the pool lends."""
        return self.pop()


def lend_last_returned_first(pool: P) -> P:
    """Make a pool, not yet open, lend the connection that was returned last. psycopg_pool has no option for it."""
    pool._pool = _LastInFirstOut()  # noqa: SLF001 (what this file is for)
    return pool


def created_at(connection: Connection[Any] | AsyncConnection[Any]) -> float | None:
    """Return when psycopg_pool made a connection, by the monotonic clock; None if it does not say."""
    made: float | None = getattr(connection, "_created_at", None) if is_tested() else None
    return made

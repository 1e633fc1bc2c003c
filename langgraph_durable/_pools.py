"""Pools of our own, made from a connection string and opened at first use.

One blocking pool, and one asyncio pool for each running event loop, since an asyncio connection belongs to the loop
it was made in. Nothing here holds a lock around a pool: it serves as many operations at once as it has connections.

Lifetimes. A saver used bare is never told when to end, so its pools see to it themselves: an event loop that ends
in good order (`asyncio.run` does) closes its pool, by way of a task that it cancels and an async generator that it
shuts down; a process that exits closes the blocking pool; a process that was forked leaves what it inherited to its
parent.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
import weakref
from collections import Counter, deque
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

import psycopg
from psycopg import AsyncConnection, Connection
from psycopg.conninfo import conninfo_to_dict, make_conninfo, timeout_from_conninfo
from psycopg.pq import PGconn
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from langgraph_durable._connections import (
    AsyncConnections,
    BlockingConnections,
    async_living_connection,
    living_connection,
    planning_beside,
)
from langgraph_durable._own_connections import LoopConnection, ThreadConnection
from langgraph_durable.errors import InvalidConfig, SaverClosed

_CLOSE_TIMEOUT = 5.0
_RECONNECT_TIMEOUT = 2.0
"""Seconds until a pool starts its attempts to connect anew: left alone it waits twice as long after each one."""

_DEFAULTS: Mapping[str, int | str] = {
    "connect_timeout": 10,
    # Else a call on a connection whose peer is gone without a word waits until the kernel gives up, after 15 minutes.
    "tcp_user_timeout": 15_000,  # milliseconds that what was sent may go unacknowledged
    "keepalives_idle": 15,  # seconds of silence after which the peer is probed, also while an answer is waited for
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "fallback_application_name": "langgraph_durable",
}
"""What holds unless the connection string, the environment or a service file says otherwise."""

_REFUSED_OPTIONS = ("unsupported startup parameter", "command-line options")
"""The words of pgbouncer and its like, and of RDS Proxy."""

_inherited: list[Any] = []
"""Pools that a forked process got from its parent, kept so that collecting them touches no socket of the parent's."""

_closing: set[asyncio.Task[None]] = set()
"""Tasks that close pools, kept because a loop alone does not keep its tasks."""


class _LastReturnedFirst(deque[Any]):
    """The connections that wait in a pool: what was returned last is lent first.

    psycopg_pool lends them in turn, so that a caller alone goes round all of them, and each of the server's processes
    has its plans and catalogs out of the processor's caches when its turn comes: about 0.4 ms of a put's 1.1.
    """

    def popleft(self) -> Any:
        """Take a connection out, as the pool does to lend it."""
        return self.pop()


class OwnPools:
    """Pools made from a connection string, shared by a saver and its clones."""

    def __init__(
        self,
        conninfo: str,
        *,
        min_size: int,
        max_size: int,
        timeout: float,
        prepare_threshold: int | None,
    ) -> None:
        self._plain_conninfo, options = _complete_conninfo(conninfo)
        planning = planning_beside(options)
        settings = [f"-c {name}={value}" for name, value in planning.items() if value]
        self.conninfo = make_conninfo(
            self._plain_conninfo, options=" ".join([options or "", *settings]).strip()
        )
        self.connection_options: dict[str, Any] = {"autocommit": True, "prepare_threshold": prepare_threshold}
        self.pool_options: dict[str, Any] = {
            "min_size": min_size,
            "max_size": max_size,
            "timeout": timeout,
            "reconnect_timeout": _RECONNECT_TIMEOUT,
            "kwargs": self.connection_options,
            "open": False,
        }
        self.blocking = _BlockingOwnPool(self)
        self.asynchronous = _AsyncOwnPools(self)
        self.blocking.planning = self.asynchronous.planning = planning
        self.closed = False
        # The first connection is made directly: a pool would hide why it cannot be made until it times out.
        self.reached = False

    def give_up_options(self, tried: str, exc: psycopg.OperationalError) -> bool:
        """After a first connection that failed: return whether to try again without startup options of ours.

        Some poolers refuse those that they do not know. A server that is away or full refuses a connection, not its
        options. Of several first connections at once, each must be tried again: what it tried counts, not what
        another has given up meanwhile.
        """
        if not any(words in str(exc) for words in _REFUSED_OPTIONS):
            return False
        self.conninfo = self._plain_conninfo
        return tried != self._plain_conninfo

    def require_open(self) -> None:
        """Refuse to work after `close`."""
        if self.closed:
            raise SaverClosed("the saver was closed: make another one, or close it later")

    def close(self) -> None:
        """Close every pool; of event loops running elsewhere too."""
        self.closed = True
        self.blocking.close()
        self.asynchronous.close_all()

    async def aclose(self) -> None:
        """Close every pool, from an event loop."""
        self.closed = True
        await self.asynchronous.close_own()
        await asyncio.to_thread(self.blocking.close)
        await asyncio.to_thread(self.asynchronous.close_all)


class _BlockingOwnPool(BlockingConnections):
    def __init__(self, pools: OwnPools) -> None:
        self._pools = pools
        self._pool: ConnectionPool[Any] | None = None
        self._pid = os.getpid()
        self._opening = threading.Lock()
        # By process: no child waits for what its parent was doing.
        self._attempts: dict[int, threading.Event] = {}
        self._finalizer: weakref.finalize[..., Any] | None = None

    @contextmanager
    def checkout(self) -> Iterator[Connection[Any]]:
        self._pools.require_open()
        if not self._pools.reached and (first := self._reach()) is not None:
            with first:
                yield first
            return
        pool = self._pool
        if pool is None or self._pid != os.getpid():
            pool = self._open()
        with living_connection(pool) as connection:
            yield connection

    def pool_stats(self) -> Mapping[str, int]:
        return self._pool.get_stats() if self._pool is not None else {}

    def parameters(self) -> Mapping[str, Any]:
        return conninfo_to_dict(self._pools.conninfo)

    def _reach(self) -> Connection[Any] | None:
        """Connect, or wait for whoever does so just now: all who come first would take a connection each.

        Returns:
            None if they reached the server.
        """
        attempt = threading.Event()
        if (other := self._attempts.setdefault(os.getpid(), attempt)) is not attempt:
            other.wait()
            return None if self._pools.reached else self._connect_first()
        try:
            if self._pools.reached:  # just now
                return None
            first = self._connect_first()
            self._pools.reached = True
            return first
        finally:
            self._attempts.pop(os.getpid(), None)
            attempt.set()

    def _connect_first(self) -> Connection[Any]:
        tried = self._pools.conninfo
        try:
            return ThreadConnection.connect(tried, **self._pools.connection_options)
        except psycopg.OperationalError as exc:
            if not self._pools.give_up_options(tried, exc):
                raise
            return self._connect_first()

    def _open(self) -> ConnectionPool[Any]:
        if self._pid != os.getpid():
            _inherited.append((self._pool, self._finalizer))
            if self._finalizer is not None:
                self._finalizer.detach()
            self._pool, self._opening, self._pid = None, threading.Lock(), os.getpid()
        with self._opening:  # of the opening only: two threads must not make two pools
            self._pools.require_open()
            if self._pool is None:
                pool: ConnectionPool[Any] = ConnectionPool(
                    self._pools.conninfo,
                    connection_class=ThreadConnection,
                    reconnect_failed=_try_again,
                    **self._pools.pool_options,
                )
                pool._pool = _LastReturnedFirst()  # there is no option for it (psycopg_pool 3.3)
                pool.open()
                self._finalizer = weakref.finalize(self, _close_unless_forked, pool, self._pid)
                self._pool = pool
            return self._pool

    def close(self) -> None:
        with self._opening:
            if self._finalizer is not None and self._pid == os.getpid():
                self._finalizer()


class _AsyncOwnPools(AsyncConnections):
    def __init__(self, pools: OwnPools) -> None:
        self._pools = pools
        # Changed by many threads at once: each change, and each copy, is one step of the interpreter's.
        self._by_loop: dict[asyncio.AbstractEventLoop, _LoopPool] = {}
        self._attempts: dict[asyncio.AbstractEventLoop, asyncio.Event] = {}

    @asynccontextmanager
    async def checkout(self) -> AsyncIterator[AsyncConnection[Any]]:
        self._pools.require_open()
        if not self._pools.reached and (first := await self._reach()) is not None:
            async with first:
                yield first
            return
        self._pools.require_open()  # it may have been closed meanwhile
        own = self._by_loop.get(asyncio.get_running_loop())
        if own is not None and own.loop_ends:
            async with await self._connect_first() as single:
                yield single
            return
        if own is None or own.pid != os.getpid():
            own = self._make_own(own)
        if not own.opened:
            await own.open()
        own.users += 1
        try:
            async with async_living_connection(own.pool) as connection:
                yield connection
        finally:
            own.users -= 1

    def pool_stats(self) -> Mapping[str, int]:
        total = Counter[str]()
        for own in list(self._by_loop.values()):
            total.update(own.pool.get_stats())
        return total

    def parameters(self) -> Mapping[str, Any]:
        return conninfo_to_dict(self._pools.conninfo)

    def _make_own(self, inherited: _LoopPool | None) -> _LoopPool:
        if inherited is not None:
            inherited.abandon()
        for loop, pool in list(self._by_loop.items()):
            if loop.is_closed():
                pool.abandon()
                self._by_loop.pop(loop, None)
        loop = asyncio.get_running_loop()
        own = self._by_loop[loop] = _LoopPool(self._pools)
        own.close_with(self, loop)
        return own

    async def _reach(self) -> AsyncConnection[Any] | None:
        """Connect, or wait for whoever does so just now on this event loop; see _BlockingOwnPool."""
        loop, attempt = asyncio.get_running_loop(), asyncio.Event()
        if (other := self._attempts.setdefault(loop, attempt)) is not attempt:
            await other.wait()
            return None if self._pools.reached else await self._connect_first()
        try:
            first = await self._connect_first()
            self._pools.reached = True
            return first
        finally:
            self._attempts.pop(loop, None)
            attempt.set()

    async def _connect_first(self) -> AsyncConnection[Any]:
        tried = self._pools.conninfo
        try:
            return await AsyncConnection.connect(tried, **self._pools.connection_options)
        except psycopg.OperationalError as exc:
            if not self._pools.give_up_options(tried, exc):
                raise
            return await self._connect_first()

    async def close_own(self) -> None:
        if (own := self._by_loop.pop(asyncio.get_running_loop(), None)) is not None:
            await own.close()

    def close_all(self) -> None:
        for loop, own in list(self._by_loop.items()):
            self._by_loop.pop(loop, None)
            if own.pid != os.getpid() or loop.is_closed():
                own.abandon()
            elif not loop.is_running() and _running_loop() is None:
                # Between two runs of it, as in a test's teardown. What is just connecting can be closed only there:
                # left alone, the server waits a minute for such a client.
                loop.run_until_complete(own.close())
            elif not loop.is_running():
                own.abandon()
            elif loop is _running_loop():
                own.start_closing(loop)
            else:
                closing = asyncio.run_coroutine_threadsafe(own.close(), loop)
                # A loop that something blocks closes it once that has ended.
                with suppress(FutureTimeout):
                    closing.result(_CLOSE_TIMEOUT)


class _LoopPool:
    """The pool of one event loop.

    When the loop ends, `asyncio.run` cancels every task, waits for them, and then shuts async generators down.
    The pool's own tasks must not be left to that: psycopg_pool's (3.3.3) lose a cancellation that comes while they
    connect, and are waited for for ever. So the cancellation of a task of ours closes the pool, which stops them;
    what other tasks still save while they are cancelled goes over connections made for it. The generator is for
    loops that are ended without cancelling.
    """

    def __init__(self, pools: OwnPools) -> None:
        self.pid = os.getpid()
        self.opened = False
        self.loop_ends = False
        self.users = 0
        self._closed = asyncio.Event()
        logging.getLogger("psycopg.pool").addFilter(_is_news)  # once: a filter is not added again
        self._connections: weakref.WeakSet[AsyncConnection[Any]] = weakref.WeakSet()
        self.pool: AsyncConnectionPool[Any] = AsyncConnectionPool(
            pools.conninfo,
            connection_class=LoopConnection,
            configure=self._remember,
            reconnect_failed=_atry_again,
            **pools.pool_options,
        )
        self.pool._pool = _LastReturnedFirst()
        self._life = self._close_when_shut_down()
        self._guard: asyncio.Task[None] | None = None

    async def open(self) -> None:
        await self.pool.open()  # does nothing for all but the first of the tasks that come here together
        if not self.opened:
            self.opened = True
            self._guard = asyncio.create_task(self._close_when_cancelled())
            await self._life.__anext__()

    def close_with(self, owner: object, loop: asyncio.AbstractEventLoop) -> None:
        """Close when a saver that nobody closed is collected, which may happen in any thread."""
        # It also keeps this alive: a pool collected with its saver could not stop its tasks any more.
        self._finalizer = weakref.finalize(owner, self._close_soon, loop)
        self._finalizer.atexit = False

    def _close_soon(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            loop.call_soon_threadsafe(self.start_closing, loop)
        except RuntimeError:  # the loop is closed
            self.abandon()

    def start_closing(self, loop: asyncio.AbstractEventLoop) -> None:
        """Close, on the running loop, without waiting for it."""
        task = loop.create_task(self.close())
        _closing.add(task)
        task.add_done_callback(_closing.discard)

    async def close(self) -> None:
        self._finalizer.detach()
        self.opened = True  # a checkout under way must meet the closed pool, not open it again
        self._closed.set()
        await self.pool.close(_CLOSE_TIMEOUT)
        await self._life.aclose()

    def abandon(self) -> None:
        """Close the connections of a loop that is gone, and that nobody can await in any more."""
        self._finalizer.detach()
        if self.pid != os.getpid():
            _inherited.append(self)
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
        deadline = time.monotonic() + _CLOSE_TIMEOUT
        while self.users and time.monotonic() < deadline:  # noqa: ASYNC110 (once, and an Event would cost every call)
            await asyncio.sleep(0.005)
        try:
            await self.pool.close(_CLOSE_TIMEOUT)
        except asyncio.CancelledError:  # of the pool's tasks, which it waits for
            self.abandon()


def _is_news(record: logging.LogRecord) -> bool:
    """Tell whether psycopg_pool logs more than that a loop's end cancelled its connecting."""
    args = record.args if isinstance(record.args, tuple) else ()
    return not any(isinstance(argument, asyncio.CancelledError) for argument in args)


def _close_unless_forked(pool: ConnectionPool[Any], pid: int) -> None:
    if pid == os.getpid():
        pool.close(_CLOSE_TIMEOUT)
    else:
        _inherited.append(pool)


def _try_again(pool: ConnectionPool[Any]) -> None:
    pool.check()  # grows the pool if somebody waits, or if it is too small


async def _atry_again(pool: AsyncConnectionPool[Any]) -> None:
    await pool.check()


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _complete_conninfo(conninfo: str) -> tuple[str, str | None]:
    """Return a connection string with our defaults, and the startup options in force, wherever they are from."""
    try:
        given = conninfo_to_dict(conninfo)
        effective: dict[str, Any] = {**_effective_parameters(conninfo), **given}
        _check(effective)
    except (psycopg.ProgrammingError, AttributeError, ValueError) as exc:  # of `_check`, no str, no Unicode
        raise InvalidConfig(
            f"not a Postgres connection string ({str(exc).strip()}): pass "
            '"postgresql://user:password@host:5432/database" or "host=... dbname=..."'
        ) from exc
    # psycopg reads the connect_timeout of no service file.
    completed = {name: effective.get(name, value) for name, value in _DEFAULTS.items()}
    # PGCLIENTENCODING is for terminals, and a database's own encoding may be SQL_ASCII, whose text comes as bytes.
    completed["client_encoding"] = given.get("client_encoding", "UTF8")
    return make_conninfo(conninfo, **completed), effective.get("options")


def _effective_parameters(conninfo: str) -> dict[str, str]:
    """Return the parameters libpq would use: the connection string's, a service file's, the environment's.

    Only a connection tells. This one fails at once, without a network: its socket's directory does not exist.
    """
    nowhere = make_conninfo(conninfo, host="/nonexistent", hostaddr="", port="")
    attempt = PGconn.connect_start(nowhere.encode())
    try:
        found = {option.keyword.decode(): option.val for option in attempt.info}
    finally:
        attempt.finish()
    # No others: a password need not be Unicode.
    return {
        name: value.decode() for name in (*_DEFAULTS, "options") if (value := found.get(name)) is not None
    }


def _check(given: dict[str, Any]) -> None:
    """Refuse what psycopg and the resolver refuse at the first connection, in many ways."""
    if "connect_timeout" in given:
        timeout_from_conninfo(given)
    for port in str(given.get("port") or "").split(","):
        if port and not port.strip().isdecimal():
            raise ValueError(f"port {port!r} is not a number")
    for host in str(given.get("host") or "").split(","):
        if not host.startswith(("/", "@")):  # the path of a socket
            try:
                host.encode("idna")
            except UnicodeError as exc:
                raise ValueError(f"host {host!r} cannot be a name: {exc}") from exc

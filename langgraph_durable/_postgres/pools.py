"""Connections for threads: how they are lent, and the saver's own pool of them.

The pool is opened at first use. No lock surrounds it. A process that exits closes it. A forked process leaves what it
inherited to its parent. Connections for event loops: loop_pools.py.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import AsyncConnection, Connection, OperationalError
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import TransactionStatus
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from langgraph_durable._postgres import psycopg_internals
from langgraph_durable._postgres.conninfo import PLANNING, Planning, complete_conninfo, planning_beside
from langgraph_durable._postgres.faults import refuses_writes
from langgraph_durable._postgres.psycopg_internals import (
    TunedConnection,
    created_at,
    lend_last_returned_first,
)
from langgraph_durable.errors import SaverClosedError

# --- sources of connections ---


class Connections:
    """A source of connections, of either kind."""

    planning: Planning = dict.fromkeys(PLANNING)
    """Settings that each write makes for its transaction."""

    pooled = True
    """Whether there are several connections, none of which can be in the caller's transaction."""

    def may_retry(self) -> bool:
        """Return whether failed work may be retried: not on a connection in the caller's transaction."""
        return True

    def pool_stats(self) -> Mapping[str, int]:
        """Return psycopg_pool's counts, summed over the pools."""
        return {}

    def parameters(self) -> Mapping[str, Any]:
        """Return the connection parameters that are known without connecting."""
        return {}


class BlockingConnections(Connections, ABC):
    """A source of blocking connections."""

    @abstractmethod
    def checkout(self) -> AbstractContextManager[Connection[Any]]:
        """Lend a connection. It must not be held across a yield to the caller."""

    def in_transaction(self) -> bool:
        """Return whether statements would be part of the caller's transaction."""
        return False


class AsyncConnections(Connections, ABC):
    """A source of asyncio connections."""

    @abstractmethod
    def checkout(self) -> AbstractAsyncContextManager[AsyncConnection[Any]]:
        """Lend a connection of the running event loop."""

    async def in_transaction(self) -> bool:
        """Return whether statements would be part of the caller's transaction."""
        return False


def is_idle(connection: Connection[Any] | AsyncConnection[Any]) -> bool:
    """Return whether a connection is usable and not in a transaction."""
    return not connection.closed and connection.info.transaction_status == TransactionStatus.IDLE


# --- lending ---

refused_writes: weakref.WeakKeyDictionary[ConnectionPool[Any] | AsyncConnectionPool[Any], float] = (
    weakref.WeakKeyDictionary()
)
"""When a connection of a pool last refused to write, by the monotonic clock."""


@contextmanager
def live_connection(pool: ConnectionPool[Any]) -> Iterator[Connection[Any]]:
    """Lend a connection of a pool, and close dead ones found on the way: a restart leaves a pool full of them.

    A connection that refused to write because its server is read-only is closed too, since the server's address may
    lead elsewhere by now. It stays in the pool if it only reads.
    """
    refused = refused_writes.get(pool)
    for left in range(max(pool.max_size, 1), -1, -1):
        with pool.connection() as connection:
            if left and (has_ended(connection) or is_suspect(connection, refused)):
                connection.close()
                continue
            try:
                yield connection
            except BaseException as exc:
                if refuses_writes(exc):
                    refused_writes[pool] = time.monotonic()
                    connection.close()
                raise
            return


def has_ended(connection: Connection[Any] | AsyncConnection[Any]) -> bool:
    """Return whether the server has ended an idle connection, by what was received: no round trip."""
    try:
        connection.pgconn.consume_input()  # may read the server's last message,
        connection.pgconn.consume_input()  # and then the end of the stream
    except OperationalError:
        return True
    return False


def is_suspect(connection: Connection[Any] | AsyncConnection[Any], refused: float | None) -> bool:
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


# --- the saver's own pools ---

CLOSE_TIMEOUT = 5.0
_RECONNECT_TIMEOUT = 2.0
"""Seconds until a pool starts its connection attempts anew. Its own back-off doubles after each attempt."""

_REFUSED_OPTIONS = ("unsupported startup parameter", "command-line options")
"""Texts of pgbouncer and similar poolers, and of RDS Proxy."""

inherited: list[Any] = []
"""Pools that a forked process got from its parent. Kept, since freeing them would close the parent's sockets."""


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """The validated settings of `DurableSaver.from_conn_string` about connections."""

    min_size: int
    max_size: int
    timeout: float
    """Seconds that an operation waits for a free connection."""
    prepare_threshold: int | None
    tuning: bool = True
    """Whether to use the private API of psycopg, if the installed versions are tested."""


class PoolContext:
    """Shared by the blocking pool and the asyncio pools of a saver and its clones."""

    def __init__(self, conninfo: str, settings: PoolSettings) -> None:
        self._plain_conninfo, options = complete_conninfo(conninfo)
        self.planning = planning_beside(options)
        ours = [f"-c {name}={value}" for name, value in self.planning.items() if value]
        self.conninfo = make_conninfo(self._plain_conninfo, options=" ".join([options or "", *ours]).strip())
        self.tuning = settings.tuning and psycopg_internals.is_tested()
        self.connection_options: dict[str, Any] = {
            "autocommit": True,
            "prepare_threshold": settings.prepare_threshold,
        }
        self.pool_options: dict[str, Any] = {
            "min_size": settings.min_size,
            "max_size": settings.max_size,
            "timeout": settings.timeout,
            "reconnect_timeout": _RECONNECT_TIMEOUT,
            "kwargs": self.connection_options,
            "open": False,
        }
        self.closed = False
        self.reached = False
        """Whether a connection was ever made. The first one is made without a pool, which would hide its error."""

    def give_up_options(self, tried: str, exc: psycopg.OperationalError) -> bool:
        """Return whether to retry a first connection without our startup options.

        Some poolers refuse options that they do not know. If several first connections fail at once, each must be
        retried. So what this one tried decides, not what another has given up meanwhile.
        """
        if not any(words in str(exc) for words in _REFUSED_OPTIONS):
            return False
        self.conninfo = self._plain_conninfo
        return tried != self._plain_conninfo

    def require_open(self) -> None:
        """Raise SaverClosedError after `close`."""
        if self.closed:
            raise SaverClosedError("the saver was closed. Close it later, or make another one.")


class BlockingPool(BlockingConnections):
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
        """Lend a connection of the pool."""
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
        """Return the pool's counts."""
        return self._pool.get_stats() if self._pool is not None else {}

    def parameters(self) -> Mapping[str, Any]:
        """Return the connection parameters."""
        return conninfo_to_dict(self._context.conninfo)

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
        tried = self._context.conninfo
        try:
            return self._connection_class.connect(tried, **self._context.connection_options)
        except psycopg.OperationalError as exc:
            if not self._context.give_up_options(tried, exc):
                raise
            return self._connect_first()

    def _open(self) -> ConnectionPool[Any]:
        if self._pid != os.getpid():
            inherited.append((self._pool, self._finalizer))
            if self._finalizer is not None:
                self._finalizer.detach()
            self._pool, self._opening, self._pid = None, threading.Lock(), os.getpid()
        with self._opening:  # so that two threads do not open two pools
            self._context.require_open()
            if self._pool is None:
                pool: ConnectionPool[Any] = ConnectionPool(
                    self._context.conninfo,
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
        """Close the pool, unless a parent process opened it."""
        with self._opening:
            if self._finalizer is not None and self._pid == os.getpid():
                self._finalizer()


def _close_unless_forked(pool: ConnectionPool[Any], pid: int) -> None:
    if pid == os.getpid():
        pool.close(CLOSE_TIMEOUT)
    else:
        inherited.append(pool)


def _retry_connecting(pool: ConnectionPool[Any]) -> None:
    pool.check()  # makes the pool connect again if a caller waits, or if it has too few connections

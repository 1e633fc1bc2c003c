"""The two drivers of a Database: one blocks the calling thread, one waits on the running event loop."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

import psycopg
from psycopg import AsyncConnection, Connection

from langgraph_durable._postgres.background import keep_alive
from langgraph_durable._postgres.connections import AsyncConnections, BlockingConnections, is_idle
from langgraph_durable._postgres.database import Database, DatabaseSettings, T, Work, run_sync
from langgraph_durable._postgres.group_commit import GroupCommit
from langgraph_durable._postgres.loop_support import can_wait_on_sockets
from langgraph_durable._postgres.session import AsyncSession, BlockingSession, Session
from langgraph_durable.errors import InvalidConfigError

_logger = logging.getLogger("langgraph_durable")


class BlockingDatabase(Database):
    """Blocks the calling thread. Its coroutine methods never suspend."""

    def __init__(self, connections: BlockingConnections, settings: DatabaseSettings) -> None:
        super().__init__(settings, connections.planning)
        self._connections = connections

    def _group_commit(self) -> GroupCommit | None:
        if self._committers is None or not self._connections.pooled:
            return None
        return self._committers.blocking

    async def _attempt(self, work: Work[T], transaction: bool) -> T:
        with self._connections.checkout() as connection:
            if not transaction and connection.autocommit:
                return await work(BlockingSession(connection, self.schema))
            if not connection.autocommit or not is_idle(connection):
                with connection.transaction():
                    return await work(BlockingSession(connection, self.schema))
            session = BlockingSession(connection, self.schema, begins=True)
            try:
                result = await work(session)
                connection.commit()  # does nothing if the last pipeline has committed
                return result
            except BaseException:
                with suppress(psycopg.Error):
                    connection.rollback()
                raise

    def attempt(self, work: Work[T], transaction: bool) -> T:
        """Run work once, without retries."""
        return run_sync(self._attempt(work, transaction))

    @contextmanager
    def open_session(self) -> Iterator[tuple[Session, Connection[Any]]]:
        """Open one transaction that the caller's statements can join. Committed at the end, never retried."""
        with self._connections.checkout() as connection, connection.transaction():
            yield BlockingSession(connection, self.schema), connection

    def _may_retry(self) -> bool:
        return self._connections.may_retry()

    async def in_transaction(self) -> bool:
        """Return whether statements would be part of the caller's transaction."""
        return self._connections.in_transaction()

    async def sleep(self, seconds: float) -> None:
        """Block the thread."""
        time.sleep(seconds)  # noqa: ASYNC251 (never run by an event loop)


class AsyncDatabase(Database):
    """Waits on the running event loop, or, if that cannot wait on sockets, for the blocking driver in a thread."""

    def __init__(
        self,
        connections: AsyncConnections,
        settings: DatabaseSettings,
        in_threads: BlockingDatabase | None = None,
    ) -> None:
        """Run operations.

        Args:
            connections: Where connections come from.
            settings: Those of the saver.
            in_threads: What runs the work for event loops that cannot wait on sockets; None if there is none.
        """
        super().__init__(settings, connections.planning)
        self._connections = connections
        self._in_threads = in_threads

    def _group_commit(self) -> GroupCommit | None:
        if self._committers is None or not self._connections.pooled:
            return None
        return self._committers.for_running_loop()

    async def _attempt(self, work: Work[T], transaction: bool) -> T:
        if self._in_threads is not None and not can_wait_on_sockets():
            return await asyncio.to_thread(self._in_threads.attempt, work, transaction)
        async with self._connections.checkout() as connection:
            if not transaction and connection.autocommit:
                return await work(AsyncSession(connection, self.schema))
            if not connection.autocommit or not is_idle(connection):
                async with connection.transaction():
                    return await work(AsyncSession(connection, self.schema))
            session = AsyncSession(connection, self.schema, begins=True)
            try:
                result = await work(session)
                await connection.commit()  # does nothing if the last pipeline has committed
                return result
            except BaseException:
                with suppress(psycopg.Error):
                    await connection.rollback()
                raise

    @asynccontextmanager
    async def open_session(self) -> AsyncIterator[tuple[Session, AsyncConnection[Any]]]:
        """Open one transaction that the caller's statements can join; see BlockingDatabase.

        Raises:
            InvalidConfigError: The event loop cannot wait on sockets.
        """
        if self._in_threads is not None and not can_wait_on_sockets():
            raise InvalidConfigError(
                "an async transaction needs an event loop that can wait on sockets, and this one cannot, as Windows' "
                "ProactorEventLoop. Use the sync method, or run the program in an asyncio.SelectorEventLoop"
            )
        async with self._connections.checkout() as connection, connection.transaction():
            yield AsyncSession(connection, self.schema), connection

    def _may_retry(self) -> bool:
        return self._connections.may_retry()

    async def in_transaction(self) -> bool:
        """Return whether statements would be part of the caller's transaction."""
        return await self._connections.in_transaction()

    async def sleep(self, seconds: float) -> None:
        """Suspend the task."""
        await asyncio.sleep(seconds)

    async def finish(self, operation: Coroutine[Any, Any, T]) -> T:
        """Run an operation in a separate task, and wait for it even if cancelled.

        Cancelled a second time, leave it running: LangGraph cancels the tasks of a failed step twice.
        """
        task = keep_alive(asyncio.ensure_future(operation))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(_log_failure)  # no caller will receive its exception
            await asyncio.wait([task])
            raise


def _log_failure(task: asyncio.Future[Any]) -> None:
    if not task.cancelled() and (exc := task.exception()) is not None:
        _logger.warning("an operation failed after its caller was cancelled: %s: %s", type(exc).__name__, exc)

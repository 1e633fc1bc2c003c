"""TODO."""

from __future__ import annotations

import asyncio
import time
from collections.abc import (
    AsyncIterator,
    Coroutine,
    Iterator,
)
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

import psycopg
from psycopg import AsyncConnection, Connection

from langgraph_durable._metrics import Metrics
from langgraph_durable._postgres.connections import AsyncConnections, BlockingConnections, is_idle
from langgraph_durable._postgres.database import Database, SchemaCheck, T, Work, _logger
from langgraph_durable._postgres.group_commit import GroupCommit
from langgraph_durable._postgres.group_waiters import GroupCommitters
from langgraph_durable._postgres.session import (
    AsyncSession,
    BlockingSession,
    Session,
)

_finishing: set[asyncio.Future[Any]] = set()
"""Operations that nobody may be waiting for any more, kept because a loop alone does not keep its tasks."""


# --- the two drivers ---


class BlockingDatabase(Database):
    """Blocks the calling thread; its coroutine methods never suspend."""

    def __init__(
        self,
        connections: BlockingConnections,
        schema: str,
        retry_timeout: float,
        schema_check: SchemaCheck,
        groups: GroupCommitters | None,
        metrics: Metrics,
    ) -> None:
        super().__init__(schema, retry_timeout, schema_check, groups, metrics, connections.planning)
        self._connections = connections

    def _group(self) -> GroupCommit | None:
        return (
            self._committers.blocking if self._committers is not None and self._connections.pooled else None
        )

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
                connection.commit()  # does nothing after the last pipeline's
                return result
            except BaseException:
                with suppress(psycopg.Error):
                    connection.rollback()
                raise

    @contextmanager
    def open_session(self) -> Iterator[tuple[Session, Connection[Any]]]:
        """Open one transaction for a caller's own statements too: committed at the end, not run again."""
        with self._connections.checkout() as connection, connection.transaction():
            yield BlockingSession(connection, self.schema), connection

    def _may_retry(self) -> bool:
        return self._connections.may_retry()

    async def in_transaction(self) -> bool:
        """Tell whether what is done would be part of a transaction of the caller's."""
        return self._connections.in_transaction()

    async def sleep(self, seconds: float) -> None:
        """Block the thread."""
        time.sleep(seconds)  # noqa: ASYNC251 (never run by an event loop)


class AsyncDatabase(Database):
    """Waits on the running event loop."""

    def __init__(
        self,
        connections: AsyncConnections,
        schema: str,
        retry_timeout: float,
        schema_check: SchemaCheck,
        groups: GroupCommitters | None,
        metrics: Metrics,
    ) -> None:
        super().__init__(schema, retry_timeout, schema_check, groups, metrics, connections.planning)
        self._connections = connections

    def _group(self) -> GroupCommit | None:
        return (
            self._committers.of_loop() if self._committers is not None and self._connections.pooled else None
        )

    async def _attempt(self, work: Work[T], transaction: bool) -> T:
        async with self._connections.checkout() as connection:
            if not transaction and connection.autocommit:
                return await work(AsyncSession(connection, self.schema))
            if not connection.autocommit or not is_idle(connection):
                async with connection.transaction():
                    return await work(AsyncSession(connection, self.schema))
            session = AsyncSession(connection, self.schema, begins=True)
            try:
                result = await work(session)
                await connection.commit()  # does nothing after the last pipeline's
                return result
            except BaseException:
                with suppress(psycopg.Error):
                    await connection.rollback()
                raise

    @asynccontextmanager
    async def open_session(self) -> AsyncIterator[tuple[Session, AsyncConnection[Any]]]:
        """Open one transaction for a caller's own statements too; see BlockingDatabase."""
        async with self._connections.checkout() as connection, connection.transaction():
            yield AsyncSession(connection, self.schema), connection

    def _may_retry(self) -> bool:
        return self._connections.may_retry()

    async def in_transaction(self) -> bool:
        """Tell whether what is done would be part of a transaction of the caller's."""
        return await self._connections.in_transaction()

    async def sleep(self, seconds: float) -> None:
        """Suspend the task."""
        await asyncio.sleep(seconds)

    async def finish(self, operation: Coroutine[Any, Any, T]) -> T:
        """Run an operation in a task of its own, and when cancelled wait for it all the same.

        Cancelled once more, it is left to itself: LangGraph cancels the tasks of a failed step twice.
        """
        task = asyncio.ensure_future(operation)
        _finishing.add(task)
        task.add_done_callback(_finishing.discard)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(_log_failure)  # nobody else will ask how it ended
            await asyncio.wait([task])
            raise


def _log_failure(task: asyncio.Future[Any]) -> None:
    if not task.cancelled() and (exc := task.exception()) is not None:
        _logger.warning(
            "an operation that nobody waited for any more failed: %s: %s", type(exc).__name__, exc
        )

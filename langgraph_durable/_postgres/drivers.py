"""The two drivers of a Database: one blocks the calling thread, one waits on the running event loop."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, Generic, TypeVar

import psycopg
from psycopg import AsyncConnection, AsyncCursor, AsyncRawCursor, Connection, Cursor, RawCursor
from psycopg.adapt import AdaptersMap
from psycopg.pq import ConnStatus, ExecStatus, PipelineStatus, TransactionStatus
from psycopg.rows import tuple_row

from langgraph_durable._postgres.background import keep_alive
from langgraph_durable._postgres.database import (
    CommitRefusedError,
    Database,
    DatabaseSettings,
    Session,
    T,
    Work,
)
from langgraph_durable._postgres.faults import was_lost
from langgraph_durable._postgres.group_commit import GroupCommit
from langgraph_durable._postgres.pools import AsyncConnections, BlockingConnections, is_idle
from langgraph_durable._postgres.statement import Call, Params, Row, Statement, render
from langgraph_durable._postgres.times import ADAPTERS

C = TypeVar("C", Connection[Any], AsyncConnection[Any])

_logger = logging.getLogger("langgraph_durable")

# --- sessions ---

# Not `connection.cursor()`: its cursor_factory, row_factory and adapters are the caller's. Raw cursors do not parse the
# statement.


class _BlockingCursor(RawCursor[Row]):
    @property
    def adapters(self) -> AdaptersMap:
        return ADAPTERS


class _AsyncCursor(AsyncRawCursor[Row]):
    @property
    def adapters(self) -> AdaptersMap:
        return ADAPTERS


def _gives_rows(cursor: Cursor[Row] | AsyncCursor[Row]) -> bool:
    """Return whether a statement returned rows. `cursor.description` would create an object for each column."""
    return cursor.pgresult is not None and cursor.pgresult.status == ExecStatus.TUPLES_OK


class _DriverSession(Session, Generic[C]):
    def __init__(self, connection: C, schema: str, *, begins: bool = False) -> None:
        self._connection: C = connection
        self._owns = begins  # the transaction
        self._begins = begins  # with its first statement
        self._schema = schema
        self.server_version = connection.info.server_version
        self.client_encoding = connection.info.parameter_status("client_encoding")

    def was_lost(self, exc: psycopg.Error) -> bool:
        return was_lost(self._connection, exc)


class BlockingSession(_DriverSession[Connection[Any]]):
    async def fetch(self, statement: Statement, params: Params = None) -> list[Row]:
        if self._begins:
            return (await self.pipeline((statement, params)))[0]
        with _BlockingCursor(self._connection, row_factory=tuple_row) as cursor:
            query = render(statement, self._schema)
            cursor.execute(query.query, query.arguments(params), binary=True)
            return cursor.fetchall() if _gives_rows(cursor) else []

    async def pipeline(self, *calls: Call, last: bool = False) -> list[list[Row]]:
        implicit = _would_be_implicit(self._connection)
        cursors = [_BlockingCursor(self._connection, row_factory=tuple_row) for _ in calls]
        try:
            with self._connection.pipeline():
                if self._begins:
                    RawCursor(self._connection).execute(b"BEGIN", prepare=False)
                for cursor, (statement, params) in zip(cursors, calls, strict=True):
                    query = render(statement, self._schema)
                    cursor.execute(query.query, query.arguments(params), binary=True)
                if last and self._owns:
                    RawCursor(self._connection).execute(b"COMMIT", prepare=False)
        except BaseException as exc:
            lost = implicit and not self._owns and _lost_the_error(exc, self._connection)
            if self._connection.pgconn.pipeline_status != PipelineStatus.OFF:
                self._connection.close()  # see AsyncSession
            if lost:
                raise CommitRefusedError from exc
            raise
        self._begins = False
        return [cursor.fetchall() if _gives_rows(cursor) else [] for cursor in cursors]

    async def execute_script(self, script: bytes) -> None:
        with Cursor(self._connection) as cursor:
            if self._begins:
                cursor.execute(b"BEGIN", prepare=False)
                self._begins = False
            cursor.execute(script, prepare=False)


class AsyncSession(_DriverSession[AsyncConnection[Any]]):
    async def fetch(self, statement: Statement, params: Params = None) -> list[Row]:
        if self._begins:
            return (await self.pipeline((statement, params)))[0]
        async with _AsyncCursor(self._connection, row_factory=tuple_row) as cursor:
            query = render(statement, self._schema)
            await cursor.execute(query.query, query.arguments(params), binary=True)
            return await cursor.fetchall() if _gives_rows(cursor) else []

    async def pipeline(self, *calls: Call, last: bool = False) -> list[list[Row]]:
        implicit = _would_be_implicit(self._connection)
        cursors = [_AsyncCursor(self._connection, row_factory=tuple_row) for _ in calls]
        try:
            async with self._connection.pipeline():
                if self._begins:
                    await AsyncRawCursor(self._connection).execute(b"BEGIN", prepare=False)
                for cursor, (statement, params) in zip(cursors, calls, strict=True):
                    query = render(statement, self._schema)
                    await cursor.execute(query.query, query.arguments(params), binary=True)
                if last and self._owns:
                    await AsyncRawCursor(self._connection).execute(b"COMMIT", prepare=False)
        except BaseException as exc:
            lost = implicit and not self._owns and _lost_the_error(exc, self._connection)
            if self._connection.pgconn.pipeline_status != PipelineStatus.OFF:
                # psycopg (3.3.9) leaves a connection in pipeline mode if it is cancelled while entering, so the next
                # statement would receive the previous one's results.
                await self._connection.close()
            if lost:
                raise CommitRefusedError from exc
            raise
        self._begins = False
        return [await cursor.fetchall() if _gives_rows(cursor) else [] for cursor in cursors]

    async def execute_script(self, script: bytes) -> None:
        async with AsyncCursor(self._connection) as cursor:
            if self._begins:
                await cursor.execute(b"BEGIN", prepare=False)
                self._begins = False
            await cursor.execute(script, prepare=False)


def _would_be_implicit(connection: Connection[Any] | AsyncConnection[Any]) -> bool:
    """Return whether a pipeline without BEGIN would be an implicit transaction."""
    return connection.pgconn.transaction_status == TransactionStatus.IDLE


def _lost_the_error(exc: BaseException, connection: Connection[Any] | AsyncConnection[Any]) -> bool:
    """Return whether a pipeline failed at its Sync: psycopg (3.3.9) drops an error that belongs to no statement."""
    if connection.pgconn.status != ConnStatus.OK:
        return False
    busy = isinstance(exc, psycopg.OperationalError) and exc.sqlstate is None
    return isinstance(exc, IndexError) or busy


# --- databases ---


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
    """Waits on the running event loop."""

    def __init__(self, connections: AsyncConnections, settings: DatabaseSettings) -> None:
        super().__init__(settings, connections.planning)
        self._connections = connections

    def _group_commit(self) -> GroupCommit | None:
        if self._committers is None or not self._connections.pooled:
            return None
        return self._committers.for_running_loop()

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
                await connection.commit()  # does nothing if the last pipeline has committed
                return result
            except BaseException:
                with suppress(psycopg.Error):
                    await connection.rollback()
                raise

    @asynccontextmanager
    async def open_session(self) -> AsyncIterator[tuple[Session, AsyncConnection[Any]]]:
        """Open one transaction that the caller's statements can join; see BlockingDatabase."""
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

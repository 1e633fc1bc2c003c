"""Send statements in one transaction, one by one or in a pipeline."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar

import psycopg
from psycopg import AsyncConnection, AsyncCursor, AsyncRawCursor, Connection, Cursor, RawCursor
from psycopg.adapt import AdaptersMap
from psycopg.pq import ConnStatus, ExecStatus, PipelineStatus, TransactionStatus
from psycopg.rows import tuple_row

from langgraph_durable._postgres.faults import was_lost
from langgraph_durable._postgres.statement import Statement, render
from langgraph_durable._postgres.times import ADAPTERS

C = TypeVar("C", Connection[Any], AsyncConnection[Any])
Row = tuple[Any, ...]
Params = Sequence[Any] | Mapping[str, Any] | None
Call = tuple[Statement, Params]


class CommitRefusedError(Exception):
    """An implicit transaction failed at its commit, and psycopg lost the error."""


class Session(ABC):
    """One connection, in one transaction."""

    @abstractmethod
    async def fetch(self, statement: Statement, params: Params = None) -> list[Row]:
        """Run one statement and return its rows. Round trips: 1."""

    @abstractmethod
    async def pipeline(self, *calls: Call, last: bool = False) -> list[list[Row]]:
        """Run several statements and return the rows of each. Round trips: 1.

        Each statement's snapshot is taken after the previous one has ended, so a lock that one takes protects what
        the next one reads. With `last`, the transaction's commit is sent in the same pipeline.
        """

    @abstractmethod
    async def execute_script(self, script: bytes) -> None:
        """Run several statements without parameters, and drop their rows."""

    @abstractmethod
    def was_lost(self, exc: psycopg.Error) -> bool:
        """Return whether the connection or the server failed, not the statement."""

    server_version: int
    """In libpq's format: 150018 is 15.18."""

    client_encoding: str | None
    """As the server or a pooler reports it; None if a pooler does not report it."""


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

"""One connection inside one transaction: how statements are sent, one by one or in a pipeline."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar

import psycopg
from psycopg import AsyncConnection, AsyncCursor, AsyncRawCursor, Connection, Cursor, RawCursor
from psycopg.adapt import AdaptersMap
from psycopg.pq import ConnStatus, ExecStatus, PipelineStatus, TransactionStatus
from psycopg.rows import tuple_row

from langgraph_durable._faults import was_lost
from langgraph_durable._statements import Statement, render
from langgraph_durable._times import ADAPTERS

C = TypeVar("C", Connection[Any], AsyncConnection[Any])
Row = tuple[Any, ...]
Params = Sequence[Any] | Mapping[str, Any] | None
Call = tuple[Statement, Params]


class CommitRefused(Exception):
    """A pipeline that was a transaction of its own failed at its end, and psycopg lost the error."""


class Session(ABC):
    """One connection, inside one transaction."""

    @abstractmethod
    async def fetch(self, statement: Statement, params: Params = None) -> list[Row]:
        """Run one statement and return its rows; none if it gives none."""

    @abstractmethod
    async def pipeline(self, *calls: Call, last: bool = False) -> list[list[Row]]:
        """Run several statements in one round trip and return the rows of each.

        Each statement's snapshot is taken after the one before it ended, so a lock taken by one protects
        what the next one reads. The `last` ones of a transaction take its commit with them.
        """

    @abstractmethod
    async def execute_script(self, script: bytes) -> None:
        """Run several statements without parameters; their rows are dropped."""

    @abstractmethod
    def was_lost(self, exc: psycopg.Error) -> bool:
        """Tell whether an error is of the connection or the whole server, and so of no statement."""

    server_version: int
    """As libpq gives it: 150018 is 15.18."""

    client_encoding: str | None
    """As the server names it, or as it was asked of a pooler; None if what is between does not tell."""


# Cursors are made here, not by the connection: its cursor_factory, row_factory and adapters are the caller's. Raw ones,
# which parse nothing.


class _BlockingCursor(RawCursor[Row]):
    @property
    def adapters(self) -> AdaptersMap:
        return ADAPTERS


class _AsyncCursor(AsyncRawCursor[Row]):
    @property
    def adapters(self) -> AdaptersMap:
        return ADAPTERS


def _gives_rows(cursor: Cursor[Row] | AsyncCursor[Row]) -> bool:
    """Tell whether a statement that ran gives rows; `cursor.description` would make an object for each column."""
    return cursor.pgresult is not None and cursor.pgresult.status == ExecStatus.TUPLES_OK


class _DriverSession(Session, Generic[C]):
    def __init__(self, connection: C, schema: str, *, begins: bool = False) -> None:
        self._connection: C = connection
        self._owns = self._begins = begins  # a transaction, and has not begun it
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
        implicit = _would_be_a_transaction(self._connection)
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
                raise CommitRefused from exc
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
        implicit = _would_be_a_transaction(self._connection)
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
                # Cancelled while it entered the pipeline, psycopg (3.3.9) leaves the connection in it: whatever
                # came next there would get the answers to what came before.
                await self._connection.close()
            if lost:
                raise CommitRefused from exc
            raise
        self._begins = False
        return [await cursor.fetchall() if _gives_rows(cursor) else [] for cursor in cursors]

    async def execute_script(self, script: bytes) -> None:
        async with AsyncCursor(self._connection) as cursor:
            if self._begins:
                await cursor.execute(b"BEGIN", prepare=False)
                self._begins = False
            await cursor.execute(script, prepare=False)


def _would_be_a_transaction(connection: Connection[Any] | AsyncConnection[Any]) -> bool:
    """Tell whether what a pipeline sends without BEGIN would be a transaction: not inside of one."""
    return connection.pgconn.transaction_status == TransactionStatus.IDLE


def _lost_the_error(exc: BaseException, connection: Connection[Any] | AsyncConnection[Any]) -> bool:
    """Tell whether a pipeline failed at its Sync: psycopg (3.3.9) has no statement to give the server's error to."""
    if connection.pgconn.status != ConnStatus.OK:
        return False
    busy = isinstance(exc, psycopg.OperationalError) and exc.sqlstate is None
    return isinstance(exc, IndexError) or busy

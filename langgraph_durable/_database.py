"""The one room that waits for Postgres.

An operation is written once, as a coroutine over a `Database`. `AsyncDatabase` waits as asyncio does.
`BlockingDatabase` has the same coroutine methods, but they block and never suspend, so `run_now` finishes an
operation over it with a single step.

A Database runs each piece of work on one connection, in one transaction, and runs it again when the fault was
transient: the connection died, the server restarts, a deadlock. Everything stored is keyed, so a second run finds
or repeats the first one's rows and doubles none.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, TypeVar

import psycopg
from psycopg import AsyncConnection, Connection

from langgraph_durable._columns import SentRow, gather, text_array
from langgraph_durable._connections import AsyncConnections, BlockingConnections, is_idle
from langgraph_durable._faults import explain, is_transient
from langgraph_durable._group_commit import LOCK_TIMEOUT, BatchRefused, GroupCommit, Write
from langgraph_durable._group_waiting import Groups
from langgraph_durable._metrics import Metrics
from langgraph_durable._sessions import (
    AsyncSession,
    BlockingSession,
    Call,
    CommitRefused,
    Params,
    Row,
    Session,
)
from langgraph_durable._statements import (
    LOCK_THREAD_SHARED_AND_SET_PLANNING,
    LOCK_THREADS_SHARED,
    SET_FOR_BATCH,
    RowsStatement,
    Statement,
)

T = TypeVar("T")

_logger = logging.getLogger("langgraph_durable")

_finishing: set[asyncio.Future[Any]] = set()
"""Operations that nobody may be waiting for any more, kept because a loop alone does not keep its tasks."""

_FIRST_DELAY = 0.02
_LONGEST_DELAY = 1.0


class OperationSuspended(RuntimeError):
    """An operation waited for something other than its database: a fault of this package."""


def run_now(operation: Coroutine[Any, Any, T]) -> T:
    """Finish an operation over a BlockingDatabase, here and now."""
    try:
        operation.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    finally:
        operation.close()
    raise OperationSuspended("an operation waited for something other than its database")


Work = Callable[[Session], Awaitable[T]]


class SchemaCheck:
    """What must hold of the tables before anything else runs: checked once for a saver and its clones."""

    def __init__(self, check: Work[None]) -> None:
        self.check = check
        self.passed = False


class Database(ABC):
    """Where operations run: one schema of one database, reached through connections of one kind."""

    def __init__(
        self,
        schema: str,
        retry_timeout: float,
        schema_check: SchemaCheck,
        groups: Groups | None,
        metrics: Metrics,
        planning: Mapping[str, str | None],
    ) -> None:
        self.schema = schema
        self.retry_timeout = retry_timeout
        self.schema_check = schema_check
        self._groups = groups
        self._metrics = metrics
        self._planning = planning

    async def fetch(self, statement: Statement, params: Params = None) -> list[Row]:
        """Run one statement in a transaction of its own: one round trip."""
        return await self.run(lambda session: session.fetch(statement, params))

    async def pipeline(self, *calls: Call) -> list[Row]:
        """Run statements in a transaction of their own, one round trip, and return the last one's rows."""
        return (await self.run(lambda session: session.pipeline(*calls)))[-1]

    async def write(
        self, thread_id: str, statement: RowsStatement, row: SentRow, *, locks: bool
    ) -> list[Row]:
        """Store a row of one thread, and return what the statement says of it after its commit: one round trip.

        Its statement and transaction are its own, or shared with others that wait at the same time.

        Args:
            thread_id: The thread, whose writes go out in the order in which they were called.
            statement: May be run twice. What it returns begins with a row's number.
            row: What to store.
            locks: Whether to take the thread's lock, shared, in a statement of its own before it.
        """
        write = Write(self, thread_id, statement, row, locks)
        group = self._group()
        return await (group.commit(write) if group is not None else self.write_alone(write))

    async def write_alone(self, write: Write) -> list[Row]:
        """Run a write in a transaction of its own."""
        call = _storing(write.statement, [write.row])
        if not write.locks:
            return await self.fetch(*call)
        lock = (LOCK_THREAD_SHARED_AND_SET_PLANNING, {"thread": write.thread_id, **self._planning})
        waits_first = False

        async def work(session: Session) -> list[Row]:
            nonlocal waits_first
            if waits_first:
                await session.fetch(*lock)
            waits_first = True
            return (await session.pipeline(lock, call))[-1]

        # The server reads no row while it waits for the lock, and after tcp_user_timeout the kernel takes a peer that
        # does not read for one that is gone. So who is cut off waits for the lock before it sends the row again.
        return await self.run(work)

    async def write_together(self, writes: Sequence[Write]) -> list[list[Row]]:
        """Run writes in one transaction, and return the rows of each.

        Raises:
            BatchRefused: One of several failed, and all are undone.
            psycopg.Error: There is no connection, whatever they are; or, of a single one, its own.
        """
        if len(writes) == 1:
            return [await self.write_alone(writes[0])]
        bundles = list(_bundles(writes))
        attempts = 0

        async def work(session: Session) -> list[list[Row]]:
            nonlocal attempts
            attempts += 1
            try:
                settings = {"lock_timeout": f"{LOCK_TIMEOUT * 1000:.0f}ms", **self._planning}
                calls: list[Call] = [(SET_FOR_BATCH, settings)]
                if threads := sorted({write.thread_id for write in writes if write.locks}):
                    calls.append((LOCK_THREADS_SHARED, (text_array(threads),)))
                before = len(calls)
                calls += [
                    _storing(statement, [write.row for write in bundle]) for statement, bundle in bundles
                ]
                return (await session.pipeline(*calls))[before:]
            except CommitRefused:
                raise
            except Exception as exc:
                # The second connection that dies may die of one of these rows.
                if attempts < 2 and isinstance(exc, psycopg.Error) and session.was_lost(exc):
                    raise
                raise BatchRefused from exc

        try:
            answers = await self.run(work)
        except psycopg.Error as exc:
            if attempts and exc.sqlstate is not None and not exc.sqlstate.startswith(("08", "57P")):
                raise BatchRefused from exc  # at its commit
            raise
        found: dict[Write, list[Row]] = {write: [] for write in writes}
        for (_, bundle), rows in zip(bundles, answers, strict=True):
            for row in rows:
                found[bundle[row[0] - 1]].append(row)
        return list(found.values())

    @abstractmethod
    def _group(self) -> GroupCommit | None: ...

    async def run(self, work: Work[T], *, transaction: bool = False) -> T:
        """Run work on one connection, again while it fails from a transient fault.

        Args:
            work: Runs statements on the session it is given; may be called several times.
            transaction: Whether work is more than one `fetch` or one `pipeline` and needs an explicit
                transaction around it.

        Raises:
            SchemaOutOfDate: A table of this package is missing.
            psycopg.Error: What the work raised, when it is not transient or lasted longer than
                `retry_timeout` seconds.
        """
        if not self.schema_check.passed:
            await self.run_unchecked(self.schema_check.check)
            self.schema_check.passed = True
        return await self.run_unchecked(work, transaction=transaction)

    async def run_unchecked(self, work: Work[T], *, transaction: bool = False) -> T:
        """Run work as `run` does, whatever state the schema is in."""
        delay, deadline = _FIRST_DELAY, None
        while True:
            try:
                return await self._attempt(work, transaction)
            except CommitRefused as refused:
                if not self._may_retry():
                    raise psycopg.OperationalError(
                        "the server refused the commit, psycopg lost the reason, and the connection had to be "
                        "closed: with a pool in its place the reason would be told"
                    ) from refused
                transaction = True  # it is undone; why, a commit of its own tells
                continue
            except psycopg.Error as exc:
                if (clearer := explain(exc, self.schema)) is not None:
                    raise clearer from exc
                if self.retry_timeout <= 0 or not is_transient(exc) or not self._may_retry():
                    raise
                if deadline is None:
                    deadline = time.monotonic() + self.retry_timeout
                    _logger.warning("retrying for up to %g s after: %s", self.retry_timeout, exc)
                if time.monotonic() + delay > deadline:
                    raise
            self._metrics.add_retry()
            await self.sleep(delay * random.uniform(0.5, 1))  # noqa: S311 (jitter, not a secret)
            delay = min(delay * 2, _LONGEST_DELAY)

    @abstractmethod
    async def _attempt(self, work: Work[T], transaction: bool) -> T: ...

    @abstractmethod
    def _may_retry(self) -> bool: ...

    @abstractmethod
    async def in_transaction(self) -> bool:
        """Tell whether what is done would be part of a transaction of the caller's."""

    @abstractmethod
    async def sleep(self, seconds: float) -> None:
        """Wait, as this database waits."""

    async def finish(self, operation: Coroutine[Any, Any, T]) -> T:
        """Finish an operation even if whoever waits for it is cancelled meanwhile."""
        return await operation


def _storing(statement: RowsStatement, rows: Sequence[SentRow]) -> Call:
    return (statement.many, gather(rows)) if len(rows) > 1 else (statement.one, rows[0].params())


def _bundles(writes: Iterable[Write]) -> Iterator[tuple[RowsStatement, list[Write]]]:
    """Bundle writes for their statements: a thread's first ones, then its second ones, and so on."""
    rounds: list[dict[RowsStatement, list[Write]]] = []
    counts: Counter[str] = Counter()
    for write in writes:
        number = counts[write.thread_id]
        counts[write.thread_id] += 1
        if number == len(rounds):
            rounds.append({})
        rounds[number].setdefault(write.statement, []).append(write)
    for bundles in rounds:
        for statement, bundle in bundles.items():
            # In one order everywhere, so that two batches that send the same cannot wait for each other.
            yield statement, sorted(bundle, key=lambda write: write.thread_id)


# --- the two drivers ---


class BlockingDatabase(Database):
    """Blocks the calling thread; its coroutine methods never suspend."""

    def __init__(
        self,
        connections: BlockingConnections,
        schema: str,
        retry_timeout: float,
        schema_check: SchemaCheck,
        groups: Groups | None,
        metrics: Metrics,
    ) -> None:
        super().__init__(schema, retry_timeout, schema_check, groups, metrics, connections.planning)
        self._connections = connections

    def _group(self) -> GroupCommit | None:
        return self._groups.blocking if self._groups is not None and self._connections.pooled else None

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
        groups: Groups | None,
        metrics: Metrics,
    ) -> None:
        super().__init__(schema, retry_timeout, schema_check, groups, metrics, connections.planning)
        self._connections = connections

    def _group(self) -> GroupCommit | None:
        return self._groups.of_loop() if self._groups is not None and self._connections.pooled else None

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

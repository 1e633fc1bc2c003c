"""Run database work in transactions, with retries: the same operation over a blocking or an asyncio driver.

`BlockingDatabase` has the same coroutine methods as `AsyncDatabase`, but they block and never suspend, so `run_sync`
finishes an operation with a single step. Writes are idempotent, so retries never duplicate rows.
"""

from __future__ import annotations

import logging
import random
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import psycopg

from langgraph_durable._metrics import Metrics
from langgraph_durable._postgres.conninfo import Planning
from langgraph_durable._postgres.faults import explain, is_transient, shorten
from langgraph_durable._postgres.group_commit import (
    LOCK_TIMEOUT,
    BatchRefusedError,
    GroupCommit,
    QueuedWrite,
)
from langgraph_durable._postgres.group_waiters import GroupCommitters
from langgraph_durable._postgres.locks import SET_FOR_BATCH
from langgraph_durable._postgres.statement import (
    Call,
    Params,
    Row,
    RowsStatement,
    SentRow,
    Statement,
    storing,
)

T = TypeVar("T")

_logger = logging.getLogger("langgraph_durable")

_FIRST_DELAY = 0.02
_LONGEST_DELAY = 1.0


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


Work = Callable[[Session], Awaitable[T]]


# --- operations ---


class OperationSuspendedError(RuntimeError):
    """An operation waited for something other than its database: a bug."""


def run_sync(operation: Coroutine[Any, Any, T]) -> T:
    """Run an operation over a BlockingDatabase to its end."""
    try:
        operation.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    finally:
        operation.close()
    raise OperationSuspendedError("an operation waited for something other than its database")


class SchemaCheck:
    """Checks the tables before the first work runs, once for a saver and its clones."""

    def __init__(self, check: Work[None]) -> None:
        self.check = check
        self.passed = False


@dataclass(frozen=True, slots=True)
class DatabaseSettings:
    """What the two databases of a saver have in common."""

    schema: str
    retry_timeout: float
    """Seconds."""
    schema_check: SchemaCheck
    metrics: Metrics
    committers: GroupCommitters | None
    """None if writes are never grouped."""


class Database(ABC):
    """Runs operations on one schema of one database, over connections of one kind."""

    def __init__(self, settings: DatabaseSettings, planning: Planning) -> None:
        self.schema = settings.schema
        self.retry_timeout = settings.retry_timeout
        self.schema_check = settings.schema_check
        self.metrics = settings.metrics
        self._committers = settings.committers
        self._planning = planning

    @property
    def planning(self) -> Planning:
        """Settings that each write makes for its transaction."""
        return self._planning

    async def fetch(self, statement: Statement, params: Params = None) -> list[Row]:
        """Run one statement. Round trips: 1. Transaction: its own."""
        return await self.run(lambda session: session.fetch(statement, params))

    async def pipeline(self, *calls: Call) -> list[Row]:
        """Run statements and return the last one's rows. Round trips: 1. Transaction: one for all."""
        return (await self.run(lambda session: session.pipeline(*calls)))[-1]

    async def write(self, thread_id: str, statement: RowsStatement, row: SentRow) -> list[Row]:
        """Store a row of one thread; return the statement's rows after the commit.

        Args:
            thread_id: The thread. Its writes are stored in the order of the calls.
            statement: May run twice. Its first column is a row's number.
            row: The row to store.

        Round trips: 1. Transaction: its own, or one for all writes that wait at the same time.
        """
        write = QueuedWrite(self, thread_id, statement, row)
        group = self._group_commit()
        return await (group.commit(write) if group is not None else self.write_alone(write))

    async def write_alone(self, write: QueuedWrite) -> list[Row]:
        """Run a write in a separate transaction."""
        return await self.fetch(*storing(write.statement, [write.row]))

    async def write_together(self, writes: Sequence[QueuedWrite]) -> list[list[Row]]:
        """Run writes in one transaction, and return the rows of each.

        Raises:
            BatchRefusedError: One of several writes failed, and all are rolled back.
            psycopg.Error: No connection could be made; or, if there is only one write, its error.
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
                calls = [storing(statement, [write.row for write in bundle]) for statement, bundle in bundles]
                return (await session.pipeline((SET_FOR_BATCH, settings), *calls))[1:]
            except CommitRefusedError:
                raise
            except Exception as exc:
                # Retried as a batch once only: one of these rows may be what kills the connection.
                if attempts < 2 and isinstance(exc, psycopg.Error) and session.was_lost(exc):
                    raise
                raise BatchRefusedError from exc

        try:
            answers = await self.run(work)
        except psycopg.Error as exc:
            if attempts and exc.sqlstate is not None and not exc.sqlstate.startswith(("08", "57P")):
                raise BatchRefusedError from exc  # at its commit
            raise
        found: dict[QueuedWrite, list[Row]] = {write: [] for write in writes}
        for (_, bundle), rows in zip(bundles, answers, strict=True):
            for row in rows:
                found[bundle[row[0] - 1]].append(row)
        return list(found.values())

    @abstractmethod
    def _group_commit(self) -> GroupCommit | None: ...

    async def run(self, work: Work[T], *, transaction: bool = False) -> T:
        """Run work on one connection, and retry it after transient faults.

        Args:
            work: Runs statements on the session it gets; may be called several times.
            transaction: Whether work is more than one `fetch` or one `pipeline`, so that it needs an explicit
                transaction.

        Raises:
            SchemaOutOfDateError: A table of this package is missing.
            psycopg.Error: The error of the work: not transient, or repeated for `retry_timeout` seconds.
        """
        if not self.schema_check.passed:
            await self.run_unchecked(self.schema_check.check)
            self.schema_check.passed = True
        return await self.run_unchecked(work, transaction=transaction)

    async def run_unchecked(self, work: Work[T], *, transaction: bool = False) -> T:
        """Run work as `run` does, without checking the schema first."""
        delay, deadline = _FIRST_DELAY, None
        while True:
            try:
                return await self._attempt(work, transaction)
            except CommitRefusedError as refused:
                if not self._may_retry():
                    raise psycopg.OperationalError(
                        "the server refused the commit. psycopg lost the reason, and the connection had to be "
                        "closed. Give the saver a pool instead of a connection to see the reason."
                    ) from refused
                transaction = True  # an explicit COMMIT gets the server's error
                continue
            except psycopg.Error as exc:
                shorten(exc)
                if (clearer := explain(exc, self.schema)) is not None:
                    raise clearer from exc
                if self.retry_timeout <= 0 or not is_transient(exc) or not self._may_retry():
                    raise
                if deadline is None:
                    deadline = time.monotonic() + self.retry_timeout
                    _logger.warning("retrying for up to %g s after: %s", self.retry_timeout, exc)
                if time.monotonic() + delay > deadline:
                    raise
            self.metrics.add_retry()
            await self.sleep(delay * random.uniform(0.5, 1))  # noqa: S311 (jitter, not a secret)
            delay = min(delay * 2, _LONGEST_DELAY)

    @abstractmethod
    async def _attempt(self, work: Work[T], transaction: bool) -> T: ...

    @abstractmethod
    def _may_retry(self) -> bool: ...

    @abstractmethod
    async def in_transaction(self) -> bool:
        """Return whether statements would be part of the caller's transaction."""

    @abstractmethod
    async def sleep(self, seconds: float) -> None:
        """Wait: blocks the thread, or suspends the task."""

    async def finish(self, operation: Coroutine[Any, Any, T]) -> T:
        """Run an operation to its end, even if the caller is cancelled meanwhile."""
        return await operation


def _bundles(writes: Iterable[QueuedWrite]) -> Iterator[tuple[RowsStatement, list[QueuedWrite]]]:
    """Group writes by statement: each thread's first ones, then its second ones, and so on."""
    rounds: list[dict[RowsStatement, list[QueuedWrite]]] = []
    counts: Counter[str] = Counter()
    for write in writes:
        number = counts[write.thread_id]
        counts[write.thread_id] += 1
        if number == len(rounds):
            rounds.append({})
        rounds[number].setdefault(write.statement, []).append(write)
    for bundles in rounds:
        for statement, bundle in bundles.items():
            # The same order in every process, so that two batches with the same rows cannot deadlock.
            yield statement, sorted(bundle, key=lambda write: write.thread_id)

"""Group commit: writes of one process that wait at the same time go out together, in one transaction.

Theory: docs/design/group-commit.md. How callers wait: group_waiters.py.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from math import ceil
from typing import Any, Protocol
from weakref import WeakSet

from langgraph_durable._metrics import Metrics
from langgraph_durable._postgres.statement import Row, RowsStatement, SentRow

WRITERS = 2
MOST_ROWS = 128
LEAST_SHARE = 16
"""Writes that go out in one batch even if they are more than a share."""
MOST_BYTES = 4 << 20
LOCK_TIMEOUT = 0.1
"""Seconds that a batch waits for one lock before it is broken up."""
PATIENCE = 0.1
"""Seconds after which a writer that is still running counts as free."""


class BatchRefusedError(Exception):
    """A batch failed because of its contents. Its writes must run alone."""


class WriteState(Enum):
    """Where a write is on its way through the group commit."""

    WAITING = auto()  # in the queue
    RUNNING = auto()  # in a running batch
    LEADING = auto()  # its caller runs the batch
    NEXT = auto()  # its batch was broken up, and an earlier write of its thread is still running
    ALONE = auto()  # its caller runs it in a separate transaction
    DONE = auto()


class Writer(Protocol):
    """Runs writes against the database. A Database is one."""

    async def write_alone(self, write: QueuedWrite) -> list[Row]:
        """Run a write in a separate transaction."""
        ...

    async def write_together(self, writes: Sequence[QueuedWrite]) -> list[list[Row]]:
        """Run writes in one transaction, and return the rows of each."""
        ...


@dataclass(slots=True, eq=False)
class QueuedWrite:
    """One row to store, and its way through the group commit."""

    writer: Writer
    thread_id: str
    statement: RowsStatement
    row: SentRow
    state: WriteState = WriteState.WAITING
    abandoned: bool = False
    """Whether its caller was cancelled."""
    answer: list[Row] = field(default_factory=list)
    error: Exception | None = None
    batch: Batch | None = None
    """Its batch while that runs; then None, since only the garbage collector would free the reference cycle."""
    wakeup: Any = None
    """The event or future that its caller waits for."""


@dataclass(slots=True, eq=False)
class Batch:
    """Writes that run in one transaction."""

    writes: list[QueuedWrite]
    task: asyncio.Task[None] | None = None
    began: float = field(default_factory=time.monotonic)


_committers: WeakSet[GroupCommit] = WeakSet()


def _reset_all() -> None:
    for group in list(_committers):
        group.reset()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_all)  # runs before the child starts threads


class GroupCommit(ABC):
    """The queue of writes in front of one pool."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self.reset()
        _committers.add(self)

    def reset(self) -> None:
        """Start empty, as after a fork: the parent's threads, and their writes, do not exist in the child."""
        self._lock = threading.Lock()
        self._free = WRITERS
        # While a writer is free, only writes of busy threads wait.
        self._waiting: deque[QueuedWrite] = deque()
        self._busy: set[str] = set()
        self._broken: dict[
            str, deque[QueuedWrite]
        ] = {}  # thread -> writes that run alone, in order, after the running one
        self._extra = 0  # writers added because others took long
        self._moved = 0.0

    async def commit(self, write: QueuedWrite) -> list[Row]:
        """Run a write, alone or with others, and return its rows after its commit.

        Raises:
            psycopg.Error: The write's error, or, if its batch could not reach the database, the batch's.
        """
        if not self._free:  # read without the lock: packing only saves the garbage collector work
            write.row.pack()
        with self._lock:
            began = time.monotonic()
            goes_at_once = self._free > 0 and write.thread_id not in self._busy
            if goes_at_once:
                self._free -= 1
                self._busy.add(write.thread_id)
                write.state = WriteState.ALONE
            else:
                self._prepare(write)
                self._waiting.append(write)
        if goes_at_once:
            try:
                return await write.writer.write_alone(write)
            finally:
                self._end([write], began)
        try:
            while True:
                await self._sleep(write)
                if write.state is WriteState.LEADING:
                    assert write.batch is not None  # noqa: S101 (set with the state)
                    await self._lead(write.batch)
                elif write.state is WriteState.ALONE:
                    answer = await write.writer.write_alone(write)
                    self._pass_on(write)
                    return answer
                elif write.state is WriteState.DONE:
                    break
        except BaseException:
            await self._withdraw(write)
            raise
        if write.error is not None:
            raise write.error
        return write.answer

    async def _lead(self, batch: Batch) -> None:
        """Run a batch, and wake its callers."""
        writes = batch.writes
        try:
            answers = await writes[0].writer.write_together(writes)
        except BatchRefusedError:
            self._metrics.add_broken_batch()
            self._break_up(batch)
        except Exception as exc:
            for write in writes:
                write.error = exc
            self._complete(batch)
        except BaseException:
            if batch.task is not None:  # otherwise a caller's thread runs the batch, and withdraws its write
                self._break_up(batch)
            raise
        else:
            for write, answer in zip(writes, answers, strict=True):
                write.answer = answer
            self._complete(batch)

    def _complete(self, batch: Batch) -> None:
        for write in batch.writes:
            write.state, write.batch = WriteState.DONE, None
        self._end(batch.writes, batch.began)
        for write in batch.writes:
            self._wake(write)

    def waiting(self) -> tuple[int, int]:
        """Return how many writes are waiting now, and their approximate bytes."""
        with self._lock:
            return len(self._waiting), sum(write.row.size for write in self._waiting)

    def _end(self, writes: Iterable[QueuedWrite], began: float) -> None:
        """Release a writer, and start other batches."""
        with self._lock:
            self._busy.difference_update(write.thread_id for write in writes)
            self._free_writer(began)
            started = list(self._form_batches())
        for batch in started:
            self._start(batch)

    def _free_writer(self, began: float) -> None:
        self._moved = time.monotonic()
        if self._extra and self._moved - began >= PATIENCE:  # others were added because this one took long
            self._extra -= 1
        else:
            self._free += 1

    def _form_batches(self) -> Iterator[Batch]:
        while self._free and (writes := self._take()):
            self._free -= 1
            self._busy.update(write.thread_id for write in writes)
            self._metrics.add_batch(len(writes))
            batch = Batch(writes)
            for write in writes:
                write.state, write.batch = WriteState.RUNNING, batch
            yield batch

    def _take(self) -> list[QueuedWrite]:
        """Take the next batch's writes from the queue, in order: at most a share, none of a busy thread."""
        taken: list[QueuedWrite] = []
        left: list[QueuedWrite] = []
        size = 0
        share = ceil((len(self._waiting) + len(self._busy)) / (WRITERS + 1))
        most = min(max(share, LEAST_SHARE), MOST_ROWS)
        while self._waiting and len(taken) < most and size < MOST_BYTES:
            write = self._waiting.popleft()
            if write.thread_id in self._busy:
                left.append(write)
            elif taken and size + write.row.size > MOST_BYTES:
                left.append(write)  # so that a row which may be too large for the server runs alone
                break
            else:
                taken.append(write)
                size += write.row.size
        self._waiting.extendleft(reversed(left))
        return taken

    # --- failed batches, cancelled callers, slow writers ---

    def _break_up(self, batch: Batch) -> None:
        """Run a batch's writes alone, each thread's in order. Release its writer."""
        first: list[QueuedWrite] = []
        with self._lock:
            self._busy.difference_update(write.thread_id for write in batch.writes)
            for write in batch.writes:
                write.batch = None
                if write.abandoned:
                    write.state = WriteState.DONE
                elif write.thread_id in self._busy:
                    write.state = WriteState.NEXT
                    self._broken.setdefault(write.thread_id, deque()).append(write)
                else:
                    self._busy.add(write.thread_id)
                    write.state = WriteState.ALONE
                    first.append(write)
            self._free_writer(batch.began)
            started = list(self._form_batches())
        for write in first:
            self._wake(write)
        for other in started:
            self._start(other)

    def _pass_on(self, write: QueuedWrite) -> None:
        """Run the thread's next write alone, or free the thread if this was the last."""
        following: QueuedWrite | None = None
        started: list[Batch] = []
        with self._lock:
            write.state = WriteState.DONE
            others = self._broken.get(write.thread_id, deque())
            while others and following is None:
                following = others.popleft()
                if following.abandoned:
                    following = None
            if following is not None:
                following.state = WriteState.ALONE
            else:
                self._broken.pop(write.thread_id, None)
                self._busy.discard(write.thread_id)
                started = list(self._form_batches())
        if following is not None:
            self._wake(following)
        for batch in started:
            self._start(batch)

    async def _withdraw(self, write: QueuedWrite) -> None:
        """Remove a write whose caller was cancelled, or whose separate transaction failed."""
        with self._lock:
            write.abandoned = True
            state, batch = write.state, write.batch
            if state is WriteState.WAITING:
                self._waiting.remove(write)
                write.state = WriteState.DONE
        if state is WriteState.ALONE:
            self._pass_on(write)
        elif state is WriteState.LEADING and batch is not None:
            self._break_up(batch)
        elif state is WriteState.RUNNING and batch is not None and all(w.abandoned for w in batch.writes):
            await self._cancel(batch)

    def _add_writer(self) -> None:
        """Add a writer if none has ended for PATIENCE seconds."""
        with self._lock:
            if not self._waiting or self._free or time.monotonic() - self._moved < PATIENCE:
                return
            self._moved = time.monotonic()
            self._extra += 1
            self._free += 1
            started = list(self._form_batches())
            if self._free:  # only writes of busy threads wait
                self._extra -= self._free
                self._free = 0
        for batch in started:
            self._start(batch)

    # --- how callers wait ---

    @abstractmethod
    def _prepare(self, write: QueuedWrite) -> None:
        """Create the event or future that a write's caller waits for."""

    @abstractmethod
    async def _sleep(self, write: QueuedWrite) -> None:
        """Wait until the write's state changes to one that its caller acts on."""

    @abstractmethod
    def _wake(self, write: QueuedWrite) -> None:
        """Wake the caller of a write."""

    @abstractmethod
    def _start(self, batch: Batch) -> None:
        """Start a batch."""

    @abstractmethod
    async def _cancel(self, batch: Batch) -> None:
        """Cancel a batch that no caller waits for."""

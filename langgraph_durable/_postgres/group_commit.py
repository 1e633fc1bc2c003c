"""Group commit: writes of one process that wait at the same time go out together, in one transaction.

A commit waits for the disk, and a round trip for the network, however little they carry. So:

- A write that finds a writer free goes out at once, by itself, as if there were no group. Only what finds all writers
  busy waits, and what waits when one ends goes out together: one checkout, one pipeline, one commit. Nothing waits for
  a clock, and batches grow with the load by themselves.
- Many go out in shares: one for each writer, and one for this process to make ready meanwhile. All at once they would
  also come back at once, and the server would wait for this process, and this process for the server, by turns.
- A statement stores any number of rows, of as many threads; for each it does what it does for one alone. A thread's
  second write is in a second statement, which sees what the first has done. The pipeline has no explicit BEGIN: what
  is sent between two Syncs is one transaction.
- A thread's writes never overtake each other. A thread is busy while one of its writes is under way; later ones wait,
  and go out together, in order, in the next batch. (A put that the database asks for more is another write then.)
- A batch must not wait long for anybody: it holds the locks of all its threads, and all its callers wait with it. So
  its lock_timeout is short, which also ends a deadlock with another process's batch or copy before Postgres looks for
  one.
- A batch that fails is undone as a whole, and then its writes go alone, those of one thread one after the other: each
  caller gets its own answer. They need no writer, so a batch that breaks up holds nobody up. But if the connection
  died, the batch is first run once more as a whole; what is stored is keyed, so a second run doubles nothing.
- A writer that takes long, since somebody holds a lock, counts as free until it ends. No thread can block the others.

Who is cancelled leaves: out of the queue, or, once its batch is under way, alone; what others wait for goes on. When
nobody waits for a batch any more it is cancelled too.

How callers wait is in _group_waiting.py: threads sleep, and one of them runs the batch; on an event loop a task does.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum, auto
from math import ceil
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from langgraph_durable._metrics import Metrics
from langgraph_durable._postgres.batch import SentRow
from langgraph_durable._postgres.statement import RowsStatement

if TYPE_CHECKING:
    from langgraph_durable._postgres.database import Database
    from langgraph_durable._postgres.session import Row


WRITERS = 2
MOST_ROWS = 128
LEAST_SHARE = 16
"""Writes that go out together even if they are more than a share."""
MOST_BYTES = 4 << 20
LOCK_TIMEOUT = 0.1
"""Seconds that a batch waits for one lock before it breaks up."""
PATIENCE = 0.1
"""Seconds after which a writer that goes on counts as free."""


class BatchRefused(Exception):
    """A batch failed for what is in it, not for its connection: its writes are to go alone."""


class State(Enum):
    WAITING = auto()  # in the queue
    RUNNING = auto()  # in a batch that runs
    LEADING = auto()  # to run its batch, or running it
    NEXT = auto()  # of a batch that broke up; another of its thread goes before it
    ALONE = auto()  # to run by itself, or running
    DONE = auto()


@dataclass(slots=True, eq=False)
class Write:
    """One statement that changes one thread, and its way through the group."""

    db: Database
    thread_id: str
    statement: RowsStatement
    row: SentRow
    locks: bool
    """Whether it takes the thread's lock, shared, in a statement of its own before it."""
    state: State = State.WAITING
    gone: bool = False
    """Whether nobody waits for it any more."""
    answer: list[Row] = field(default_factory=list)
    error: Exception | None = None
    batch: Batch | None = None
    """The one it is in, as long as that goes: the two would be a cycle, which only the collector of garbage frees."""
    wakeup: Any = None
    """What its caller sleeps on."""


@dataclass(slots=True, eq=False)
class Batch:
    """Writes that go out together."""

    writes: list[Write]
    task: asyncio.Task[None] | None = None
    began: float = field(default_factory=time.monotonic)


_committers: WeakSet[GroupCommit] = WeakSet()


def _reset_all() -> None:
    for group in list(_committers):
        group.reset()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_all)  # before any thread of the child's


class GroupCommit(ABC):
    """The queue in front of one pool, shared by all who write through it."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self.reset()
        _committers.add(self)

    def reset(self) -> None:
        """Begin anew, as in a process just forked, where the parent's threads, and whoever waits, are not."""
        self._lock = threading.Lock()
        self._free = WRITERS
        # If a writer is free, all that wait are of busy threads.
        self._waiting: deque[Write] = deque()
        self._busy: set[str] = set()
        self._broken: dict[str, deque[Write]] = {}  # thread -> what is to go alone after the one that goes
        self._extra = 0  # writers that were added since others took long
        self._moved = 0.0

    async def commit(self, write: Write) -> list[Row]:
        """Run a write, alone or with others, and return its rows after its commit.

        Raises:
            psycopg.Error: What the write itself raised, or what kept its batch from the database.
        """
        if not self._free:  # now, without the lock, this only spares the collector of garbage many lists
            write.row.pack()
        with self._lock:
            began = time.monotonic()
            goes_at_once = self._free > 0 and write.thread_id not in self._busy
            if goes_at_once:
                self._free -= 1
                self._busy.add(write.thread_id)
                write.state = State.ALONE
            else:
                self._prepare(write)
                self._waiting.append(write)
        if goes_at_once:
            try:
                return await write.db.write_alone(write)
            finally:
                self._end([write], began)
        try:
            while True:
                await self._sleep(write)
                if write.state is State.LEADING:
                    assert write.batch is not None  # noqa: S101 (set with the state)
                    await self._lead(write.batch)
                elif write.state is State.ALONE:
                    answer = await write.db.write_alone(write)
                    self._pass_on(write)
                    return answer
                elif write.state is State.DONE:
                    break
        except BaseException:
            await self._withdraw(write)
            raise
        if write.error is not None:
            raise write.error
        return write.answer

    async def _lead(self, batch: Batch) -> None:
        """Run a batch and tell its callers."""
        writes = batch.writes
        try:
            answers = await writes[0].db.write_together(writes)
        except BatchRefused:
            self._metrics.add_broken_batch()
            self._break_up(batch)
        except Exception as exc:
            for write in writes:
                write.error = exc
            self._tell(batch)
        except BaseException:
            if batch.task is not None:  # else it is a caller's thread, which withdraws as a caller
                self._break_up(batch)
            raise
        else:
            for write, answer in zip(writes, answers, strict=True):
                write.answer = answer
            self._tell(batch)

    def _tell(self, batch: Batch) -> None:
        for write in batch.writes:
            write.state, write.batch = State.DONE, None
        self._end(batch.writes, batch.began)
        for write in batch.writes:
            self._wake(write)

    def waiting(self) -> tuple[int, int]:
        """Return how many writes wait just now, and their bytes, about."""
        with self._lock:
            return len(self._waiting), sum(write.row.size for write in self._waiting)

    def _end(self, writes: Iterable[Write], began: float) -> None:
        """Give a writer back, and let others go."""
        with self._lock:
            self._busy.difference_update(write.thread_id for write in writes)
            self._free_writer(began)
            started = list(self._form_batches())
        for batch in started:
            self._start(batch)

    def _free_writer(self, began: float) -> None:
        self._moved = time.monotonic()
        if self._extra and self._moved - began >= PATIENCE:  # one of those that others were added for
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
                write.state, write.batch = State.RUNNING, batch
            yield batch

    def _take(self) -> list[Write]:
        """Take from the queue what may go now: in order, of one schema, and no more than a batch should have."""
        taken: list[Write] = []
        left: list[Write] = []
        size = 0
        share = ceil((len(self._waiting) + len(self._busy)) / (WRITERS + 1))
        most = min(max(share, LEAST_SHARE), MOST_ROWS)
        while self._waiting and len(taken) < most and size < MOST_BYTES:
            write = self._waiting.popleft()
            if write.thread_id in self._busy or (taken and write.db.schema != taken[0].db.schema):
                left.append(write)
            elif taken and size + write.row.size > MOST_BYTES:
                left.append(write)  # what may be too large for the server goes alone
                break
            else:
                taken.append(write)
                size += write.row.size
        self._waiting.extendleft(reversed(left))
        return taken

    # --- what does not go as it should ---

    def _break_up(self, batch: Batch) -> None:
        """Let the writes of a batch go alone, each thread's in their order, and give its writer back."""
        first: list[Write] = []
        with self._lock:
            self._busy.difference_update(write.thread_id for write in batch.writes)
            for write in batch.writes:
                write.batch = None
                if write.gone:
                    write.state = State.DONE
                elif write.thread_id in self._busy:
                    write.state = State.NEXT
                    self._broken.setdefault(write.thread_id, deque()).append(write)
                else:
                    self._busy.add(write.thread_id)
                    write.state = State.ALONE
                    first.append(write)
            self._free_writer(batch.began)
            started = list(self._form_batches())
        for write in first:
            self._wake(write)
        for other in started:
            self._start(other)

    def _pass_on(self, write: Write) -> None:
        """Let the next of a thread go alone, or free the thread if it was the last."""
        following: Write | None = None
        started: list[Batch] = []
        with self._lock:
            write.state = State.DONE
            others = self._broken.get(write.thread_id, deque())
            while others and following is None:
                following = others.popleft()
                if following.gone:
                    following = None
            if following is not None:
                following.state = State.ALONE
            else:
                self._broken.pop(write.thread_id, None)
                self._busy.discard(write.thread_id)
                started = list(self._form_batches())
        if following is not None:
            self._wake(following)
        for batch in started:
            self._start(batch)

    async def _withdraw(self, write: Write) -> None:
        """Take a write out whose caller was cancelled, or failed by itself."""
        with self._lock:
            write.gone = True
            state, batch = write.state, write.batch
            if state is State.WAITING:
                self._waiting.remove(write)
                write.state = State.DONE
        if state is State.ALONE:
            self._pass_on(write)
        elif state is State.LEADING and batch is not None:
            self._break_up(batch)
        elif state is State.RUNNING and batch is not None and all(w.gone for w in batch.writes):
            await self._cancel(batch)

    def _add_writer(self) -> None:
        """Let others go, if no writer has ended for long."""
        with self._lock:
            if not self._waiting or self._free or time.monotonic() - self._moved < PATIENCE:
                return
            self._moved = time.monotonic()
            self._extra += 1
            self._free += 1
            started = list(self._form_batches())
            if self._free:  # all that wait are of busy threads
                self._extra -= self._free
                self._free = 0
        for batch in started:
            self._start(batch)

    # --- how callers wait ---

    @abstractmethod
    def _prepare(self, write: Write) -> None:
        """Make what the caller of a write will sleep on."""

    @abstractmethod
    async def _sleep(self, write: Write) -> None:
        """Wait until the write's state tells its caller to do something."""

    @abstractmethod
    def _wake(self, write: Write) -> None:
        """Wake the caller of a write."""

    @abstractmethod
    def _start(self, batch: Batch) -> None:
        """Have a batch run."""

    @abstractmethod
    async def _cancel(self, batch: Batch) -> None:
        """End a batch that nobody waits for."""

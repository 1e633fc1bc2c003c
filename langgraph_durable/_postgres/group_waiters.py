"""How the callers of a group wait: threads on events, coroutines on futures of their loop.

In threads, the first caller of a batch leads it: it runs it while the others sleep. On an event loop a task does.
"""

from __future__ import annotations

import asyncio
import threading

from langgraph_durable._metrics import Metrics
from langgraph_durable._postgres.group_commit import PATIENCE, Batch, GroupCommit, State, Write


class BlockingGroup(GroupCommit):
    """The group of the threads of a process: the first caller of a batch leads it."""

    def _prepare(self, write: Write) -> None:
        write.wakeup = threading.Event()

    async def _sleep(self, write: Write) -> None:
        while not write.wakeup.wait(PATIENCE):
            self._add_writer()
        write.wakeup.clear()

    def _wake(self, write: Write) -> None:
        write.wakeup.set()

    def _start(self, batch: Batch) -> None:
        with self._lock:
            leader = next((write for write in batch.writes if not write.gone), None)
            if leader is not None:
                leader.state = State.LEADING
        if leader is not None:
            self._wake(leader)
        else:  # all were interrupted
            self._break_up(batch)

    async def _cancel(self, batch: Batch) -> None:
        """A thread cannot be cancelled, and a batch's leader is one of its callers."""


class AsyncGroup(GroupCommit):
    """The group of one event loop: a task runs a batch."""

    def __init__(self, metrics: Metrics) -> None:
        super().__init__(metrics)
        self._timer: asyncio.TimerHandle | None = None

    def _prepare(self, write: Write) -> None:
        loop = asyncio.get_running_loop()
        write.wakeup = loop.create_future()
        if self._timer is None:
            self._timer = loop.call_later(PATIENCE, self._check)

    def _check(self) -> None:
        self._timer = None
        if self._waiting:
            self._add_writer()
            self._timer = asyncio.get_running_loop().call_later(PATIENCE, self._check)

    async def _sleep(self, write: Write) -> None:
        await write.wakeup
        if write.state is not State.DONE:
            write.wakeup = asyncio.get_running_loop().create_future()

    def _wake(self, write: Write) -> None:
        if not write.wakeup.done():
            write.wakeup.set_result(None)

    def _start(self, batch: Batch) -> None:
        batch.task = asyncio.get_running_loop().create_task(self._lead(batch))
        batch.task.add_done_callback(lambda _: self._end_unstarted(batch))

    def _end_unstarted(self, batch: Batch) -> None:
        """Let a batch go whose task was cancelled before its first step."""
        if any(write.state is State.RUNNING for write in batch.writes):
            self._break_up(batch)

    async def _cancel(self, batch: Batch) -> None:
        if batch.task is not None:
            batch.task.cancel()
            await asyncio.wait([batch.task])


class GroupCommitters:
    """The groups of a saver and its clones: one for threads, and one for each event loop, as pools are."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self.blocking = BlockingGroup(metrics)
        # Changed by many threads at once: each change, and each copy, is one step of the interpreter's.
        self._of_loops: dict[asyncio.AbstractEventLoop, AsyncGroup] = {}

    def of_loop(self) -> AsyncGroup:
        """Return the running event loop's group."""
        loop = asyncio.get_running_loop()
        if (group := self._of_loops.get(loop)) is None:
            for other in list(self._of_loops):
                if other.is_closed():
                    self._of_loops.pop(other, None)
            group = self._of_loops[loop] = AsyncGroup(self._metrics)
        return group

    def waiting(self) -> tuple[int, int]:
        """Return how many writes wait just now, and their bytes, about."""
        queues = [group.waiting() for group in (self.blocking, *self._of_loops.copy().values())]
        return sum(writes for writes, _ in queues), sum(size for _, size in queues)

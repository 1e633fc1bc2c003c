"""How the callers of a group commit wait: threads on events, coroutines on futures of their event loop."""

from __future__ import annotations

import asyncio
import threading

from langgraph_durable._metrics import Metrics
from langgraph_durable._postgres.group_commit import PATIENCE, Batch, GroupCommit, QueuedWrite, WriteState


class BlockingGroupCommit(GroupCommit):
    """The group commit of a process's threads: the first caller of a batch runs it while the others sleep."""

    def _prepare(self, write: QueuedWrite) -> None:
        write.wakeup = threading.Event()

    async def _sleep(self, write: QueuedWrite) -> None:
        while not write.wakeup.wait(PATIENCE):
            self._add_writer()
        write.wakeup.clear()

    def _wake(self, write: QueuedWrite) -> None:
        write.wakeup.set()

    def _start(self, batch: Batch) -> None:
        with self._lock:
            leader = next((write for write in batch.writes if not write.abandoned), None)
            if leader is not None:
                leader.state = WriteState.LEADING
        if leader is not None:
            self._wake(leader)
        else:  # all were interrupted
            self._break_up(batch)

    async def _cancel(self, batch: Batch) -> None:
        """Do nothing: a thread cannot be cancelled, and the batch's leader is one of its callers."""


class AsyncGroupCommit(GroupCommit):
    """The group commit of one event loop: a task runs each batch."""

    def __init__(self, metrics: Metrics) -> None:
        super().__init__(metrics)
        self._timer: asyncio.TimerHandle | None = None

    def _prepare(self, write: QueuedWrite) -> None:
        loop = asyncio.get_running_loop()
        write.wakeup = loop.create_future()
        if self._timer is None:
            self._timer = loop.call_later(PATIENCE, self._check)

    def _check(self) -> None:
        self._timer = None
        if self._waiting:
            self._add_writer()
            self._timer = asyncio.get_running_loop().call_later(PATIENCE, self._check)

    async def _sleep(self, write: QueuedWrite) -> None:
        await write.wakeup
        if write.state is not WriteState.DONE:
            write.wakeup = asyncio.get_running_loop().create_future()

    def _wake(self, write: QueuedWrite) -> None:
        if not write.wakeup.done():
            write.wakeup.set_result(None)

    def _start(self, batch: Batch) -> None:
        batch.task = asyncio.get_running_loop().create_task(self._lead(batch))
        batch.task.add_done_callback(lambda _: self._end_unstarted(batch))

    def _end_unstarted(self, batch: Batch) -> None:
        """Break up a batch whose task was cancelled before its first step."""
        if any(write.state is WriteState.RUNNING for write in batch.writes):
            self._break_up(batch)

    async def _cancel(self, batch: Batch) -> None:
        if batch.task is not None:
            batch.task.cancel()
            await asyncio.wait([batch.task])


class GroupCommitters:
    """The group commits of a saver and its clones: one for threads, and one for each event loop, as with pools."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self.blocking = BlockingGroupCommit(metrics)
        # Changed by many threads at once: each change, and each copy, is atomic in the interpreter.
        self._by_loop: dict[asyncio.AbstractEventLoop, AsyncGroupCommit] = {}

    def for_running_loop(self) -> AsyncGroupCommit:
        """Return the running event loop's group commit."""
        loop = asyncio.get_running_loop()
        if (group := self._by_loop.get(loop)) is None:
            for other in list(self._by_loop):
                if other.is_closed():
                    self._by_loop.pop(other, None)
            group = self._by_loop[loop] = AsyncGroupCommit(self._metrics)
        return group

    def waiting(self) -> tuple[int, int]:
        """Return how many writes are waiting now, and their approximate bytes."""
        queues = [group.waiting() for group in (self.blocking, *self._by_loop.copy().values())]
        return sum(writes for writes, _ in queues), sum(size for _, size in queues)

"""What threads are imported from: the interface, and any saver by its public methods."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Protocol, TypeVar

import psycopg
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import WRITES_IDX_MAP, BaseCheckpointSaver, CheckpointTuple, PendingWrite

from langgraph_durable._postgres.database import Database
from langgraph_durable._postgres.drivers import AsyncDatabase
from langgraph_durable._transfer.records import Node, SourceCheckpoint, SourceWrite, parents_first
from langgraph_durable._transfer.store import Batches
from langgraph_durable.errors import CheckpointCorruptedError, DurableError, ImportFailedError

T = TypeVar("T")


class Call(Protocol):
    """Calls a blocking function: at once, or in a thread while the event loop goes on."""

    def __call__(self, function: Callable[..., T], /, *args: Any) -> Awaitable[T]:
        """Return the function's result."""
        ...


async def call_here(function: Callable[..., T], /, *args: Any) -> T:
    """Call a function and block."""
    return function(*args)


def caller(db: Database) -> Call:
    """Return how operations over a database call blocking functions."""
    return asyncio.to_thread if isinstance(db, AsyncDatabase) else call_here


class Source(ABC):
    """Has threads to import."""

    @abstractmethod
    async def thread_ids(self) -> Sequence[str]:
        """Return the ids of all threads."""

    @abstractmethod
    async def read(self, thread_id: str) -> Callable[[], Batches]:
        """Return a function that iterates over a thread's checkpoints: none for an unknown thread.

        It may be called several times. Its iterators raise the same errors.

        Raises:
            CheckpointCorruptedError: Something cannot be decoded; the message names it.
            ImportFailedError: The source cannot be read at all.
        """


class BlockingReader(ABC):
    """Reads threads with blocking calls, for BlockingSource."""

    @abstractmethod
    def thread_ids(self) -> list[str]:
        """Return the ids of all threads."""

    @abstractmethod
    def read(self, thread_id: str) -> Iterator[list[SourceCheckpoint]]:
        """Yield a thread's checkpoints; see `Source.read`."""

    @abstractmethod
    def close(self) -> None:
        """Close what was opened for reading."""


class BlockingSource(Source):
    """A source that a BlockingReader reads."""

    def __init__(self, reader: BlockingReader, call: Call) -> None:
        self._reader = reader
        self._call = call

    async def thread_ids(self) -> Sequence[str]:
        """Return the ids of all threads."""
        return await self._call(self._reader.thread_ids)

    async def read(self, thread_id: str) -> Callable[[], Batches]:
        """Return a function that iterates over a thread's checkpoints, which are read meanwhile."""
        return lambda: self._batches(self._reader.read(thread_id))

    async def _batches(self, batches: Iterator[list[SourceCheckpoint]]) -> Batches:
        def following() -> list[SourceCheckpoint]:
            return next(batches, [])

        while batch := await self._call(following):
            yield batch


class SaverSource(Source):
    """Any saver, read by `list` or `alist`: a thread at a time, held in memory."""

    def __init__(self, saver: BaseCheckpointSaver[Any], db: Database, batch: int) -> None:
        self._saver = saver
        self._batch = batch
        self._call = caller(db)
        self._ids: dict[str, Any] = {}
        """Id as text -> id as the saver has it: some keep numbers."""
        self._asynchronous = isinstance(db, AsyncDatabase) and not is_missing(saver, "alist")

    async def thread_ids(self) -> Sequence[str]:
        """Return the ids of all threads, in order. A saver can list them only with all that they hold."""
        try:
            ids = await self._list(None, lambda found: _configurable(found.config)["thread_id"])
        except DurableError:
            raise
        except Exception as exc:
            raise ImportFailedError(
                f"the threads of {type(self._saver).__name__} cannot be listed: {type(exc).__name__}: {exc}. "
                "Pass thread_ids=, so that each thread is listed separately."
            ) from exc
        self._ids = {str(thread_id): thread_id for thread_id in ids}
        return sorted(self._ids)

    async def read(self, thread_id: str) -> Callable[[], Batches]:
        """Read a thread into memory, and return a function that iterates over its checkpoints.

        It is read before it is stored, so that a pool which both savers use cannot run out of connections.
        """
        config: RunnableConfig = {"configurable": {"thread_id": self._ids.get(thread_id, thread_id)}}
        try:
            listed = await self._list(config, _source_checkpoint)
        except (DurableError, psycopg.OperationalError, OSError):
            raise
        except Exception as exc:
            raise CheckpointCorruptedError(
                f"{type(self._saver).__name__} cannot read thread {thread_id!r}: {type(exc).__name__}: {exc}. "
                "Give that saver the serializer that the thread was written with."
            ) from exc
        return lambda: self._batches(listed)

    async def _batches(self, listed: Sequence[SourceCheckpoint]) -> Batches:
        by_key = {(found.checkpoint_ns, found.checkpoint_id): found for found in listed}
        ordered = parents_first([Node(f.checkpoint_ns, f.checkpoint_id, f.parent_id) for f in listed])
        for start in range(0, len(ordered), self._batch):
            yield [by_key[node[:2]] for node in ordered[start : start + self._batch]]

    async def _list(self, config: RunnableConfig | None, pick: Callable[[CheckpointTuple], T]) -> list[T]:
        """List checkpoints, and keep what `pick` returns of each."""
        if self._asynchronous:
            return [pick(found) async for found in self._saver.alist(config)]
        return await self._call(lambda: [pick(found) for found in self._saver.list(config)])


def is_missing(saver: BaseCheckpointSaver[Any], method: str) -> bool:
    """Return whether a saver lacks a method, such as PostgresSaver the async ones."""
    with suppress(AttributeError):
        return getattr(type(saver), method) is getattr(BaseCheckpointSaver, method)
    return False


def _configurable(config: RunnableConfig) -> dict[str, Any]:
    return config.get("configurable") or {}


def _source_checkpoint(found: CheckpointTuple) -> SourceCheckpoint:
    parent = _configurable(found.parent_config).get("checkpoint_id") if found.parent_config else None
    return SourceCheckpoint(
        checkpoint_ns=_configurable(found.config).get("checkpoint_ns", ""),
        checkpoint_id=found.checkpoint["id"],
        parent_id=parent,
        checkpoint=dict(found.checkpoint),
        metadata=found.metadata,
        writes=_source_writes(found.pending_writes or ()),
    )


def _source_writes(pending: Sequence[PendingWrite]) -> list[SourceWrite]:
    """Return pending writes with the places that keep their order; a CheckpointTuple has no task paths.

    Without paths, writes are ordered by the tasks' ids. If that is another order, made-up paths keep the given one.
    """
    by_task: dict[str, list[tuple[str, Any]]] = {}
    for task_id, channel, value in pending:
        by_task.setdefault(task_id, []).append((channel, value))
    in_order = list(by_task) == sorted(by_task)
    found = []
    for number, (task_id, writes) in enumerate(by_task.items()):
        path = "" if in_order else f"~imported, {number:010}"
        regular = iter(range(len(writes)))
        for channel, value in writes:
            idx = WRITES_IDX_MAP.get(channel)
            place = next(regular) if idx is None else idx
            found.append(SourceWrite(task_id, path, place, channel, value))
    return found

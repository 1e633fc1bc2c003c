"""Checkpoints and writes that this process knows to be stored, so that the effect log can skip a query."""

from __future__ import annotations

import asyncio
import weakref
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.serde.types import RESUME

_GENERATION = 4096

# LangGraph's names in the configurable part of a nested graph's config.
_RUNTIME = "__pregel_runtime"
_SEND = "__pregel_send"


@dataclass(frozen=True, slots=True, eq=False)
class _Retry:
    attempt: int


class NestedAttempts:
    """Which nested graphs were begun by a retry of their node: each retry begins them afresh, in a new namespace.

    An entry lives as long as the retry, whose config a nested graph has when it looks for its last checkpoint.
    """

    def __init__(self) -> None:
        self._attempts: dict[tuple[str, str], _Retry] = {}

    def note(self, config: RunnableConfig) -> None:
        """Remember the attempt that a nested graph is begun by, if it is not the first."""
        configurable = config.get("configurable") or {}
        execution = getattr(configurable.get(_RUNTIME), "execution_info", None)
        attempt = getattr(execution, "node_attempt", 1)
        if attempt <= 1 and not self._attempts:
            return
        key = (str(configurable.get("thread_id", "")), configurable.get("checkpoint_ns") or "")
        self._attempts.pop(key, None)  # the same node may run again, in another run
        if attempt <= 1:
            return
        retry = self._attempts[key] = _Retry(attempt)
        with suppress(TypeError):  # without it, the entry stays until the node runs again
            weakref.finalize(configurable.get(_SEND), self._forget, key, retry).atexit = False

    def _forget(self, key: tuple[str, str], retry: _Retry) -> None:
        if self._attempts.get(key) is retry:
            del self._attempts[key]

    def of(self, thread_id: str) -> dict[str, int]:
        """Return the nested graphs of a thread that retries began: namespace -> attempt."""
        retries = list(self._attempts.items())
        return {ns: retry.attempt for (thread, ns), retry in retries if thread == thread_id}


class KnownCheckpoints:
    """A bounded set of checkpoints that this process put or read; safe across threads.

    A race may drop a key. Then the database is asked.
    """

    def __init__(self) -> None:
        self._older: dict[tuple[str, str, str], None] = {}
        self._newer: dict[tuple[str, str, str], None] = {}
        self.in_flight: dict[tuple[str, str], asyncio.AbstractEventLoop] = {}
        """(thread, namespace) -> the event loop that is putting one of its checkpoints."""
        self.attempts = NestedAttempts()
        self.writes = KnownWrites()

    def add(self, thread_id: str, checkpoint_ns: str, checkpoint_id: str) -> None:
        """Remember a stored checkpoint."""
        self._newer[thread_id, checkpoint_ns, checkpoint_id] = None
        if len(self._newer) >= _GENERATION:
            self._older, self._newer = self._newer, {}

    def __contains__(self, key: tuple[str, str, str]) -> bool:
        return key in self._newer or key in self._older


NULL_TASK_ID = "00000000-0000-0000-0000-000000000000"
"""LangGraph's task of the writes that a run is given: a Command's updates and answers."""


class WritesKey(NamedTuple):
    """The task whose pending writes are meant, and the checkpoint that they are stored with."""

    thread_id: str
    checkpoint_ns: str
    checkpoint_id: str
    task_id: str


class _Stored(NamedTuple):
    channels: tuple[str, ...]
    answers: tuple[Any, ...]
    """A human's answers among the values. The only values kept, because later ones replace those before."""


class KnownWrites:
    """A bounded set of pending writes that this process put or read, and those that it puts now; safe across threads.

    A race may drop a key. Then the database is asked.
    """

    def __init__(self) -> None:
        self._older: dict[WritesKey, _Stored] = {}
        self._newer: dict[WritesKey, _Stored] = {}
        self._in_flight: dict[object, WritesKey] = {}

    def begin(self, key: WritesKey) -> object:
        """Note that a task's writes are on their way; return the token for `end`."""
        token = object()
        self._in_flight[token] = key
        return token

    def end(self, token: object) -> None:
        """Note that a put ended, whether or not it stored anything."""
        self._in_flight.pop(token, None)

    def add(self, key: WritesKey, writes: Iterable[tuple[str, Any]]) -> None:
        """Remember the last stored writes of a task."""
        channels: list[str] = []
        answers: tuple[Any, ...] = ()
        for channel, value in writes:
            channels.append(channel)
            if channel == RESUME:  # a task has a list of them, which grows; a run is resumed with one value
                is_list = isinstance(value, list) and key.task_id != NULL_TASK_ID
                answers = tuple(value) if is_list else (value,)
        self._newer[key] = _Stored(tuple(channels), answers)
        if len(self._newer) >= _GENERATION:
            self._older, self._newer = self._newer, {}

    def add_read(self, checkpoint: tuple[str, str, str], writes: Sequence[tuple[str, str, Any]]) -> None:
        """Remember the writes that were read with a checkpoint, each with its task."""
        by_task: dict[str, list[tuple[str, Any]]] = {}
        for task_id, channel, value in writes:
            by_task.setdefault(task_id, []).append((channel, value))
        for task_id, of_task in by_task.items():
            self.add(WritesKey(*checkpoint, task_id), of_task)

    def has(self, key: WritesKey, channels: Sequence[str]) -> bool:
        """Return whether writes to these channels are known to be stored."""
        stored = self._newer.get(key) or self._older.get(key)
        return stored is not None and not Counter(channels) - Counter(stored.channels)

    def answers(self, key: WritesKey) -> tuple[Any, ...]:
        """Return the answers of humans that are known to be stored as a task's."""
        stored = self._newer.get(key) or self._older.get(key)
        return stored.answers if stored is not None else ()

    def is_in_flight(self, key: WritesKey) -> bool:
        """Return whether this process is putting writes of the task."""
        return key in list(self._in_flight.values())

    def any_in_flight(self, thread_id: str) -> bool:
        """Return whether this process is putting writes of the thread."""
        return any(key.thread_id == thread_id for key in list(self._in_flight.values()))

"""Checkpoints that this process knows to be stored, so that the effect log can skip a query."""

from __future__ import annotations

import asyncio
import weakref
from contextlib import suppress
from dataclasses import dataclass

from langchain_core.runnables import RunnableConfig

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

    def add(self, thread_id: str, checkpoint_ns: str, checkpoint_id: str) -> None:
        """Remember a stored checkpoint."""
        self._newer[thread_id, checkpoint_ns, checkpoint_id] = None
        if len(self._newer) >= _GENERATION:
            self._older, self._newer = self._newer, {}

    def __contains__(self, key: tuple[str, str, str]) -> bool:
        return key in self._newer or key in self._older

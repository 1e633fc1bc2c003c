"""Things to store, and one way to call either half of a saver."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import psycopg
import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    empty_checkpoint,
)
from langgraph.checkpoint.base.id import uuid6

from langgraph_durable import DurableSaver

WRITES: Sequence[tuple[str, Any]] = [("messages", "first"), ("messages", {"second": [2]})]
LARGE = list(range(100))
"""A value that is stored in a separate row."""

_DEADLINE = 30.0


def without_slowness(errors: str) -> str:
    """Drop what asyncio's debug mode says of a machine that is busy."""
    return re.sub(r"^Executing <.*> took \d+\.\d+ seconds\n", "", errors, flags=re.MULTILINE)


def config(
    thread_id: str = "thread", checkpoint_id: str | None = None, checkpoint_ns: str = ""
) -> RunnableConfig:
    configurable = {"thread_id": thread_id, "checkpoint_ns": checkpoint_ns}
    if checkpoint_id is not None:
        configurable["checkpoint_id"] = checkpoint_id
    return {"configurable": configurable}


def checkpoint(values: Mapping[str, Any] | None = None, checkpoint_id: str | None = None) -> Checkpoint:
    """A checkpoint of the time it is made at."""
    made = empty_checkpoint()
    made["id"] = checkpoint_id or str(uuid6())
    made["channel_values"] = dict(values if values is not None else {"messages": LARGE, "count": 1})
    made["channel_versions"] = dict.fromkeys(made["channel_values"], f"{1:032}.{0.5}")
    return made


def a_put(
    thread_id: str = "thread",
    values: Mapping[str, Any] | None = None,
    *,
    checkpoint_id: str | None = None,
    parent_id: str | None = None,
    step: int = 0,
) -> tuple[RunnableConfig, Checkpoint, CheckpointMetadata, ChannelVersions]:
    """The arguments of a `put` of a new checkpoint."""
    made = checkpoint(values, checkpoint_id)
    metadata: CheckpointMetadata = {"source": "loop", "step": step, "parents": {}}
    return config(thread_id, parent_id), made, metadata, made["channel_versions"]


class Driver:
    """Calls a saver's methods by their sync names: in a thread, or as coroutines on the loop."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    async def __call__(self, saver: DurableSaver, name: str, *args: Any, **kwargs: Any) -> Any:
        if self.kind == "sync":
            return await asyncio.to_thread(self._call, saver, name, *args, **kwargs)
        if name == "list":
            return [found async for found in saver.alist(*args, **kwargs)]
        return await getattr(saver, f"a{name}")(*args, **kwargs)

    @staticmethod
    def _call(saver: DurableSaver, name: str, *args: Any, **kwargs: Any) -> Any:
        result = getattr(saver, name)(*args, **kwargs)
        return list(result) if name == "list" else result


OPERATIONS: Mapping[str, Callable[[], tuple[Any, ...]]] = {
    "put": a_put,
    "put_writes": lambda: (config(checkpoint_id=str(uuid6())), WRITES, "task"),
    "get_tuple": lambda: (config(),),
    "get": lambda: (config(),),
    "get_ulid": lambda: (config(),),
    "list": lambda: (None,),
    "delete_thread": lambda: ("thread",),
}
"""Every operation's sync name, and arguments for it."""


# --- waiting on conditions ---


def wait_until(condition: Callable[[], Any], what: str) -> None:
    """Wait for a condition; fail if it does not come true in time."""
    deadline = time.monotonic() + _DEADLINE
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"waited in vain for {what}")
        time.sleep(0.01)


async def await_until(condition: Callable[[], Any], what: str) -> None:
    """Wait for a condition as asyncio does; fail if it does not come true in time."""
    deadline = time.monotonic() + _DEADLINE
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"waited in vain for {what}")
        await asyncio.sleep(0.01)


class Observer:
    """Watches, and troubles, the other connections to a database over a separate connection."""

    def __init__(self, conninfo: str) -> None:
        self.connection = psycopg.connect(conninfo, autocommit=True, application_name="observer")
        self._lock = threading.Lock()

    def close(self) -> None:
        self.connection.close()

    def rows(self, query: Any, params: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with self._lock:
            cursor = self.connection.execute(query, params or None)
            return cursor.fetchall() if cursor.description else []

    def value(self, query: Any, params: Sequence[Any] = ()) -> Any:
        [(value,)] = self.rows(query, params)
        return value

    def backends(self, condition: str = "true") -> list[int]:
        """The process ids of the other clients' backends that a condition on pg_stat_activity holds for."""
        found = self.rows(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database() "
            f"AND backend_type = 'client backend' AND application_name <> 'observer' AND ({condition})"
        )
        return [pid for (pid,) in found]

    def blocked(self) -> list[int]:
        return self.backends("wait_event_type = 'Lock'")

    def terminate(self, pids: Sequence[int]) -> None:
        self.rows("SELECT pg_terminate_backend(pid) FROM unnest(%s::int[]) AS pid", [list(pids)])

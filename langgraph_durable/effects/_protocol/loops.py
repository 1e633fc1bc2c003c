"""LangGraph's loops around a running task, as far as they can be reached.

They are internal to LangGraph, so every step may find something else than expected. Checked with langgraph 1.2.22:
a task's config has a function that runs other tasks, and that function has a bound method of the loop.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from inspect import iscoroutinefunction
from typing import Any

from langgraph.checkpoint.serde.types import INTERRUPT, RESUME

from langgraph_durable._checkpoints.known import NULL_TASK_ID, WritesKey

_CALL = "__pregel_call"


@dataclass(frozen=True, slots=True)
class TaskWrites:
    """The pending writes of one task that a call may depend on."""

    key: WritesKey
    writes: list[tuple[str, Any]]
    path: Any
    """The task's path; None for the writes that a run is given."""

    @property
    def channels(self) -> list[str]:
        return [channel for channel, _ in self.writes]


class Loop:
    """One of LangGraph's loops: the run of one graph."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        configurable = inner.config["configurable"]
        self._thread_id = str(configurable.get("thread_id", ""))
        self._ns = configurable.get("checkpoint_ns") or ""
        # Read later, and expected now, so that a LangGraph without them is noticed here.
        _ = inner.checkpoint["id"], inner.checkpoint_pending_writes, inner.tasks

    @property
    def has_checkpointer(self) -> bool:
        """Whether the graph stores checkpoints."""
        return getattr(self._inner, "checkpointer", True) is not None

    @property
    def is_async(self) -> bool:
        """Whether the graph runs on an event loop."""
        return iscoroutinefunction(getattr(self._inner, "_checkpointer_put_after_previous", None)) or (
            type(self._inner).__name__.startswith("Async")
        )

    def key(self, task_id: str) -> WritesKey:
        """Return how a task's writes are stored."""
        return WritesKey(self._thread_id, self._ns, self._inner.checkpoint["id"], task_id)

    def path_of(self, task_id: str) -> Any:
        """Return a task's path, by which LangGraph orders the writes of tasks."""
        task = self._inner.tasks.get(task_id)
        return task.path if task is not None else None

    def tasks_in(self, task_ns: str) -> Iterator[Any]:
        """Yield this graph's tasks that a task's namespace names, innermost first: itself, and those that called it."""
        for part in reversed(task_ns.split("|")):
            task = self._inner.tasks.get(part.rpartition(":")[2])
            if task is not None:
                yield task

    def depended_on(self) -> Iterator[TaskWrites]:
        """Yield the pending writes that a call in this graph may depend on.

        These are what the run was given, and the results of the tasks that were called as functions. The other tasks
        of the step are unknown to the call. Human answers are left out: those that the task used are asked separately.
        """
        pending = list(self._inner.checkpoint_pending_writes)
        by_task: dict[str, list[tuple[str, Any]]] = {}
        for task_id, channel, value in pending:
            if channel not in (RESUME, INTERRUPT) and not self._is_untracked(channel):
                by_task.setdefault(task_id, []).append((channel, value))
        for task_id, writes in by_task.items():
            path = self.path_of(task_id)
            if task_id == NULL_TASK_ID or (path is not None and path[-1] is True):
                yield TaskWrites(self.key(task_id), writes, path)

    def _is_untracked(self, channel: str) -> bool:
        if not getattr(self._inner, "_has_untracked_channels", False):
            return False
        from langgraph.channels.untracked_value import UntrackedValue

        return isinstance(self._inner.specs.get(channel), UntrackedValue)


def find_loops(call: Any) -> list[Loop]:
    """Return the loops around a task, innermost first; none if LangGraph's internals are not as expected.

    Args:
        call: The function in the task's config that runs other tasks.
    """
    found: list[Any] = []
    try:
        while (inner := _loop_of(call)) is not None and not any(inner is other for other in found):
            found.append(inner)
            call = inner.config["configurable"].get(_CALL)
        return [Loop(inner) for inner in found]
    except (AttributeError, KeyError, TypeError):
        return []


def _loop_of(call: Any) -> Any:
    if call is None:
        return None
    if not isinstance(call, functools.partial):  # a node with a timeout= wraps it
        cells = getattr(call, "__closure__", None) or ()
        call = next((c.cell_contents for c in cells if isinstance(c.cell_contents, functools.partial)), None)
    return call.keywords["schedule_task"].__self__ if call is not None else None


def path_text(path: Any) -> str | None:
    """Return a task's path as LangGraph stores it; None if it is not known how."""
    if path is None:
        return ""
    try:
        from langgraph.pregel._algo import task_path_str
    except ImportError:
        return None
    return task_path_str(path)

"""Where in a running graph a call comes from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import var_child_runnable_config

from langgraph_durable.effects._identity.execution import Execution, Executions

# LangGraph's names in the configurable part of a running task's config.
_CALL = "__pregel_call"
_CHECKPOINTER = "__pregel_checkpointer"
_DURABILITY = "__pregel_durability"
_READ = "__pregel_read"
_RESUMING = "__pregel_resuming"
_RESUME_MAP = "__pregel_resume_map"
_RUNTIME = "__pregel_runtime"
_SCRATCHPAD = "__pregel_scratchpad"
_SEND = "__pregel_send"
_TASK_ID = "__pregel_task_id"


@dataclass(frozen=True, slots=True)
class ToolCall:
    """The tool call that a body runs for."""

    message_id: str | None
    tool_call_id: str
    ordinal: int
    """The position among the message's calls."""
    is_alone: bool = True
    """Whether the message has no other call, so that no other call runs in the same task."""
    name: str | None = None
    """The tool's name as the model knows it; None if the call came without its message."""
    is_stored: bool = True
    """Whether a checkpoint has the message, so that the task finds the same one when it runs again."""
    message: Any = field(default=None, repr=False, compare=False)
    """The message itself, by which an execution recognizes a call that comes again."""


@dataclass(frozen=True, slots=True)
class Place:
    """The position of a call in a running graph."""

    thread_id: str
    checkpoint_ns: str
    task_id: str
    run_id: str | None
    checkpoints: Mapping[str, str]
    """Namespace -> id of the checkpoints that lead here. A resumed run comes here again only if they are stored."""
    durability: str | None
    push: int | None
    """The number of the task among its step's `Send`s, if it is one."""
    saver: Any
    send: Any
    """The function that takes the task's writes."""
    execution: Execution
    runs_again: bool
    """Whether an earlier execution of the task may have made effects: this is a resumed run, or a retry."""
    channels: Mapping[str, Any] | None
    """The graph's state as it was when the step began; None if this version of LangGraph hides it."""
    call: Any = None
    """The function that runs another task of the graph; LangGraph's loop can be reached by it."""

    @property
    def path(self) -> str:
        """The namespace without its ids, which change when a checkpoint is lost, and its counters of nested graphs."""
        return "|".join(part.split(":")[0] for part in self.checkpoint_ns.split("|") if not part.isdigit())

    @property
    def checkpoint_id(self) -> str | None:
        """The checkpoint that the task belongs to."""
        return self.checkpoints.get(parent_ns(self.checkpoint_ns))

    @property
    def checkpoints_json(self) -> str:
        """The checkpoints of the graphs that lead here, as JSON: namespace -> checkpoint id.

        LangGraph's map has an entry for each enclosing task too. It names the checkpoint of the graph that runs the
        task a second time, under a namespace in which it is not stored.
        """
        graphs = {checkpoint_id: ns for ns, checkpoint_id in reversed(sorted_by_depth(self.checkpoints))}
        return json.dumps({ns: checkpoint_id for checkpoint_id, ns in graphs.items()})


def parent_ns(task_ns: str) -> str:
    """Return the namespace of the graph that runs a task, given the task's namespace."""
    return task_ns.rpartition("|")[0]


def sorted_by_depth(checkpoints: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return namespaces and their checkpoints, outermost first."""
    return sorted(checkpoints.items(), key=lambda item: len(item[0]))


_executions = Executions()


def execution_of(configurable: Mapping[str, Any]) -> Execution:
    """Return the execution of a task, given the configurable part of its config."""
    return _executions.of(configurable.get(_SCRATCHPAD), configurable.get(_RESUME_MAP))


def find_place(config: RunnableConfig | None = None) -> Place | None:
    """Return where in a running graph this code runs, or None outside a graph."""
    config = config or var_child_runnable_config.get()
    configurable = (config or {}).get("configurable") or {}
    if _CHECKPOINTER not in configurable or _TASK_ID not in configurable:
        return None
    metadata = (config or {}).get("metadata") or {}
    run_id = metadata.get("run_id") or configurable.get("run_id") or (config or {}).get("run_id")
    return Place(
        thread_id=str(configurable.get("thread_id", "")),
        checkpoint_ns=configurable.get("checkpoint_ns") or "",
        task_id=configurable[_TASK_ID],
        run_id=str(run_id) if run_id is not None else None,
        checkpoints=dict(configurable.get("checkpoint_map") or {}),
        durability=configurable.get(_DURABILITY),
        push=_push_of(metadata.get("langgraph_path")),
        saver=configurable[_CHECKPOINTER],
        send=configurable.get(_SEND),
        execution=execution_of(configurable),
        runs_again=bool(configurable.get(_RESUMING)) or _attempt_number(configurable.get(_RUNTIME)) > 1,
        channels=_channels_of(configurable.get(_READ)),
        call=configurable.get(_CALL),
    )


def _attempt_number(runtime: Any) -> int:
    """Return how often LangGraph has run the node in this run, including this time."""
    return getattr(getattr(runtime, "execution_info", None), "node_attempt", 1)


def _channels_of(read: Any) -> Mapping[str, Any] | None:
    """Return the channels that a task reads its state from.

    LangGraph passes `functools.partial(local_read, scratchpad, channels, ...)`; its ToolNode takes them from there too.
    """
    args: tuple[Any, ...] = getattr(read, "args", ())
    return args[1] if len(args) > 1 and isinstance(args[1], Mapping) else None


def _push_of(path: Any) -> int | None:
    """Return the number of a task among its step's `Send`s, from its path."""
    match path:
        case ["__pregel_push", int(number), *_]:
            return number
    return None

"""Where in a running graph a call comes from, and the identity that follows from it.

docs/effects.md, "Identity of a call", says which ids survive a crash, a resume and a fork.
"""

from __future__ import annotations

import itertools
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import var_child_runnable_config

from langgraph_durable.effects._keys import canonical, digest

# LangGraph's names in the configurable part of a running task's config.
_CALL = "__pregel_call"
_CHECKPOINTER = "__pregel_checkpointer"
_DURABILITY = "__pregel_durability"
_RESUME_MAP = "__pregel_resume_map"
_SCRATCHPAD = "__pregel_scratchpad"
_SEND = "__pregel_send"
_TASK_ID = "__pregel_task_id"
_RESUME = "__resume__"
"""LangGraph's channel of a human's answers."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """The tool call that a body runs for."""

    message_id: str | None
    tool_call_id: str
    ordinal: int
    """The position among the message's calls."""
    is_alone: bool = True
    """Whether the message has no other call, so that no other call runs in the same task."""


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
    call: Any = None
    """The function that runs another task of the graph; LangGraph's loop can be reached by it."""

    @property
    def path(self) -> str:
        """The namespace without its ids, which change when a checkpoint is lost."""
        return "|".join(part.split(":")[0] for part in self.checkpoint_ns.split("|"))

    @property
    def checkpoint_id(self) -> str | None:
        """The checkpoint that the task belongs to."""
        return self.checkpoints.get(parent_ns(self.checkpoint_ns))


def parent_ns(task_ns: str) -> str:
    """Return the namespace of the graph that runs a task, given the task's namespace."""
    return task_ns.rpartition("|")[0]


def sorted_by_depth(checkpoints: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return namespaces and their checkpoints, outermost first."""
    return sorted(checkpoints.items(), key=lambda item: len(item[0]))


class Execution:
    """One execution of one task: counters that restart when the task runs again, and a human's answers to it."""

    def __init__(self, scratchpad: Any = None, resume_map: Mapping[str, Any] | None = None) -> None:
        self._counters: dict[Any, itertools.count[int]] = {}
        self._scratchpad = scratchpad
        self._resume_map = resume_map or {}
        self._answers: list[Any] = []
        self._lock = threading.Lock()
        self.running = 0
        """The number of this execution's calls that have neither ended nor stopped to wait for a human."""

    def count(self, what: Any) -> int:
        """Return how often this was called before for `what`. Atomic in CPython, so safe across threads."""
        return next(self._counters.setdefault(what, itertools.count()))

    @contextmanager
    def one_running(self) -> Iterator[None]:
        """Count a call as running."""
        with self._lock:
            self.running += 1
        try:
            yield
        finally:
            with self._lock:
                self.running -= 1

    def take_answers(self, wanted: Callable[[Any], bool]) -> list[Any]:
        """Take the wanted answers away from LangGraph, so that no `interrupt()` gets one.

        Returns:
            All answers taken so far, newest first.
        """
        pad = self._scratchpad
        if pad is None:
            return []
        with self._lock:
            taken = [answer for answer in pad.resume if wanted(answer)]
            if taken:
                pad.resume[:] = [answer for answer in pad.resume if not wanted(answer)]
            unaddressed = pad.get_null_resume(False)
            if unaddressed is not None and wanted(unaddressed):
                taken.append(pad.get_null_resume(True))
            self._answers[:0] = reversed(taken)
            return list(self._answers)

    def used_answers(self) -> list[Any]:
        """Return the answers that this execution's `interrupt()` calls returned, in their order."""
        return list(self._scratchpad.resume) if self._scratchpad is not None else []

    def is_mapped(self, answer: Any) -> bool:
        """Return whether an answer came by the id of its interrupt; LangGraph stores those only as the task's."""
        return any(answer is mapped for mapped in self._resume_map.values())

    def keep_answers(self, send: Callable[[list[tuple[str, Any]]], object]) -> None:
        """Have LangGraph store the answers that the body has not received yet, as its `interrupt()` would.

        LangGraph drops an answer that no interrupt took when the next one comes.
        """
        pad = self._scratchpad
        if pad is None:
            return
        with self._lock:
            if (answer := pad.get_null_resume(True)) is not None:
                pad.resume.append(answer)
            if pad.resume:
                send([(_RESUME, list(pad.resume))])

    def has_unaddressed_answer(self, checkpoint_ns: str) -> bool:
        """Return whether this run brought an answer that was not taken."""
        from langgraph.types import Interrupt

        if self._scratchpad is not None and self._scratchpad.get_null_resume(False) is not None:
            return True
        return Interrupt.from_ns(None, checkpoint_ns).id in self._resume_map


class _Executions:
    """Finds the Execution of a task by its interrupt counter, which LangGraph creates for each execution."""

    _max_size = 4096

    def __init__(self) -> None:
        self._found: OrderedDict[int, tuple[Any, Execution]] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, scratchpad: Any, resume_map: Mapping[str, Any] | None) -> Execution:
        counter = getattr(scratchpad, "interrupt_counter", None)
        if counter is None:
            return Execution()
        with self._lock:
            _, execution = self._found.setdefault(id(counter), (counter, Execution(scratchpad, resume_map)))
            self._found.move_to_end(id(counter))
            while len(self._found) > self._max_size:
                self._found.popitem(last=False)
            return execution


_executions = _Executions()


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
        execution=_executions.of(configurable.get(_SCRATCHPAD), configurable.get(_RESUME_MAP)),
        call=configurable.get(_CALL),
    )


def _push_of(path: Any) -> int | None:
    """Return the number of a task among its step's `Send`s, from its path."""
    match path:
        case ["__pregel_push", int(number), *_]:
            return number
    return None


def find_tool_call(
    state: Any, tool_call_id: str | None, name: str, args: Any, place: Place
) -> ToolCall | None:
    """Find the model's message that requested a tool call, in the state that the tool receives.

    Providers may use one id for several calls of a message. Those with this name and these arguments are assigned in
    turn: by the task's count, and if each call has a separate task, by the task's number.
    """
    if not tool_call_id:
        return None
    for message in reversed(list(_messages(state))):
        if not isinstance(message, AIMessage):
            continue
        same_id = [i for i, call in enumerate(message.tool_calls) if call["id"] == tool_call_id]
        if not same_id:
            continue
        alike = [i for i in same_id if message.tool_calls[i]["name"] == name] or same_id
        if len(alike) == 1:
            return ToolCall(message.id, tool_call_id, alike[0], is_alone=len(message.tool_calls) == 1)
        fitting = [i for i in alike if _fits(message.tool_calls[i]["args"], args)]
        if len(fitting) == 1:
            return ToolCall(message.id, tool_call_id, fitting[0], is_alone=False)
        turn = place.execution.count((message.id, tool_call_id, canonical(args)))
        taken = fitting or alike
        ordinal = taken[turn % len(taken)]
        if not fitting:  # validation changed the arguments, so the call is identified by the validated ones
            ordinal += int.from_bytes(digest(args)[:6], "big")
        if place.push is not None:
            ordinal += len(message.tool_calls) * (place.push + 1)
        return ToolCall(message.id, tool_call_id, ordinal, is_alone=False)
    return ToolCall(None, tool_call_id, 0)


def _fits(given: Mapping[str, Any], args: Any) -> bool:
    """Return whether a tool's arguments may be those a model gave, with defaults for the rest."""
    return isinstance(args, Mapping) and all(
        name in args and canonical(args[name]) == canonical(value) for name, value in given.items()
    )


def _messages(state: Any) -> Iterator[Any]:
    if isinstance(state, (list, tuple)):
        yield from state
        return
    values = state if isinstance(state, Mapping) else getattr(state, "__dict__", {})
    # find_tool_call reads from the end, so "messages" goes last.
    for name in sorted(values, key=lambda n: n == "messages"):
        if isinstance(values[name], (list, tuple)):
            yield from values[name]


def key_of(scope: str, tool: str, input_hash: bytes, place: Place, call: ToolCall | None) -> bytes:
    """Return the key that identifies a call within its thread."""
    hashed = input_hash.hex()
    if scope in ("global", "thread"):
        identity: list[Any] = [tool, hashed]
    elif scope == "step":
        identity = [place.path, place.checkpoint_id, tool, hashed]
    elif call is not None and call.message_id is not None:
        identity = [place.path, call.message_id, call.tool_call_id, call.ordinal, tool]
    else:
        tool_call_id = call.tool_call_id if call is not None else None
        ordinal = place.execution.count((tool, tool_call_id))
        identity = [place.task_id, tool, tool_call_id, ordinal]
    return digest(scope, *identity)

"""Which call is it? The identity of an effect, found in the running graph.

What LangGraph calls a task, a checkpoint, a step and a run all change in cases where the same effect must be known
again: a checkpoint that was lost with its process, a run resumed at an explicit checkpoint, a fork. What stays is the
model's message. So a tool call is known, within its thread, by the path of its graph (without the ids in it), the
message, and which of the message's calls it is: providers use one tool_call_id twice, across turns and even in one
message.
Code without a message is known by its task, and by counting.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import threading
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import var_child_runnable_config
from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from langgraph_durable.errors import EffectError

# Names of langgraph's own, in the configurable part of a running task's config.
_CHECKPOINTER = "__pregel_checkpointer"
_DURABILITY = "__pregel_durability"
_RESUME_MAP = "__pregel_resume_map"
_SCRATCHPAD = "__pregel_scratchpad"
_SEND = "__pregel_send"
_TASK_ID = "__pregel_task_id"
_RESUME = "__resume__"  # and of the channel of answers

_LEFT_OUT = "<left out>"


@dataclass(frozen=True, slots=True)
class ToolCall:
    """The tool call that a body runs for."""

    message_id: str | None
    tool_call_id: str
    ordinal: int
    """Which of the message's calls."""
    is_alone: bool = True
    """Whether the message has no other: no other runs in the same task then."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where in a running graph a call comes from."""

    thread_id: str
    checkpoint_ns: str
    task_id: str
    run_id: str | None
    checkpoints: Mapping[str, str]
    """Namespace -> id, of the checkpoints that lead here: without them a resumed run does not come here again."""
    durability: str | None
    push: int | None
    """Which of its step's tasks that were asked for one by one this is."""
    saver: Any
    send: Any
    """What takes the task's writes."""
    execution: Execution

    @property
    def path(self) -> str:
        """The namespace without the ids in it, which a lost checkpoint changes."""
        return "|".join(part.split(":")[0] for part in self.checkpoint_ns.split("|"))

    @property
    def checkpoint_id(self) -> str | None:
        """The checkpoint that the task was made from."""
        return self.checkpoints.get(parent_ns(self.checkpoint_ns))


def parent_ns(task_ns: str) -> str:
    """Return the namespace of the graph that a task with this namespace runs in."""
    return task_ns.rpartition("|")[0]


def sorted_by_depth(checkpoints: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return namespaces and their checkpoints, the outermost first."""
    return sorted(checkpoints.items(), key=lambda item: len(item[0]))


class Execution:
    """One execution of one task: what is counted anew when the task runs again, and what a human answered to it."""

    def __init__(self, scratchpad: Any = None, resume_map: Mapping[str, Any] | None = None) -> None:
        self._counters: dict[Any, itertools.count[int]] = {}
        self._scratchpad = scratchpad
        self._resume_map = resume_map or {}
        self._answers: list[Any] = []
        self._lock = threading.Lock()
        self.running = 0
        """Calls of this execution that have neither ended nor come to wait for a human."""

    def count(self, what: Any) -> int:
        """Return how often this was asked before, of `what`: one step of the interpreter's, so safe in threads."""
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
        """Take a kind of answers out of LangGraph's hands, so that no `interrupt()` gets one; newest first."""
        pad = self._scratchpad
        if pad is None:
            return []
        with self._lock:
            taken = [answer for answer in pad.resume if wanted(answer)]
            if taken:
                pad.resume[:] = [answer for answer in pad.resume if not wanted(answer)]
            if wanted(pad.get_null_resume(False)):
                taken.append(pad.get_null_resume(True))
            self._answers[:0] = reversed(taken)
            return list(self._answers)

    def keep_answers(self, send: Callable[[list[tuple[str, Any]]], object]) -> None:
        """Have LangGraph store the answers that the body has yet to get, as its own `interrupt()` would.

        It drops an answer that no interrupt took when the next one comes.
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
        """Tell whether this run came with an answer that was not taken."""
        from langgraph.types import Interrupt

        if self._scratchpad is not None and self._scratchpad.get_null_resume(False) is not None:
            return True
        return Interrupt.from_ns(None, checkpoint_ns).id in self._resume_map


class _Executions:
    """Finds the Execution of a task by an object that LangGraph makes anew for each one, its interrupt counter."""

    _kept = 4096

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
            while len(self._found) > self._kept:
                self._found.popitem(last=False)
            return execution


_executions = _Executions()


def find_place(config: RunnableConfig | None = None) -> Place | None:
    """Return where in a running graph this code runs, or None outside of any."""
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
    )


def _push_of(path: Any) -> int | None:
    """Return which of its step's Sends a task's path is of."""
    match path:
        case ["__pregel_push", int(number), *_]:
            return number
    return None


# --- the message ---


def find_tool_call(
    state: Any, tool_call_id: str | None, name: str, args: Any, place: Place
) -> ToolCall | None:
    """Find the model's message that asked for a tool call in the state that the tool was given.

    Of several calls of one message under one id, those with this name and these arguments are taken in turn: by the
    task's own count, and where each has a task of its own, by the task's number.
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
        if not fitting:  # a schema made others of them: they are told apart by what they are now
            ordinal += int.from_bytes(digest(args)[:6], "big")
        if place.push is not None:
            ordinal += len(message.tool_calls) * (place.push + 1)
        return ToolCall(message.id, tool_call_id, ordinal, is_alone=False)
    return ToolCall(None, tool_call_id, 0)


def _fits(given: Mapping[str, Any], args: Any) -> bool:
    """Tell whether what a model gave may be what a tool got, with defaults for the rest."""
    return isinstance(args, Mapping) and all(
        name in args and canonical(args[name]) == canonical(value) for name, value in given.items()
    )


def _messages(state: Any) -> Iterator[Any]:
    if isinstance(state, (list, tuple)):
        yield from state
        return
    values = state if isinstance(state, Mapping) else getattr(state, "__dict__", {})
    for name in sorted(values, key=lambda n: n == "messages"):  # read from the end: messages come first
        if isinstance(values[name], (list, tuple)):
            yield from values[name]


# --- keys and hashes ---


def canonical(value: Any) -> str:
    """Return a value as JSON with one form: keys sorted, no spaces; whatever JSON has not, as pydantic puts it.

    Raises:
        EffectError: It cannot be put so, or not all that tells it from others would be in it.
    """
    try:
        _require_shown(value)
        plain = to_jsonable_python(
            _in_order(value), serialize_unknown=False, inf_nan_mode="strings", bytes_mode="base64"
        )
        return json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    except Exception as exc:
        raise EffectError(
            f"the arguments of an effect must be plain data, to be told from others: {exc}. Pass plain values, or "
            "give @effect a key=, which leaves out what is not"
        ) from exc


def legible(value: Any) -> Any:
    """Return what can be hashed of the arguments of an effect which its key tells from others."""
    with suppress(EffectError):
        canonical(value)
        return value
    if isinstance(value, dict):
        value = {name: legible(part) for name, part in value.items()}
    elif isinstance(value, (list, tuple)):
        value = [legible(part) for part in value]
    else:
        return _LEFT_OUT
    with suppress(EffectError):
        canonical(value)
        return value
    return _LEFT_OUT


def _require_shown(value: Any) -> None:
    """Refuse a value that hashing would use up, or would make the same as another.

    Raises:
        TypeError: It is, or holds, an iterator, a secret or a model with an excluded field.
    """
    kind = type(value)
    if isinstance(value, (Iterator, AsyncIterator)):
        raise TypeError(f"a {kind.__name__} would be used up by reading it (make it a list)")
    if callable(getattr(kind, "get_secret_value", None)):
        raise TypeError(f"a {kind.__name__} does not show what it holds")
    for name, field in getattr(kind, "__pydantic_fields__", {}).items():
        if field.exclude or getattr(field, "exclude_if", None):
            raise TypeError(f"{kind.__name__} excludes its field {name!r} from what it shows")
    for part in _parts(value):
        _require_shown(part)


def _parts(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return itertools.chain(value, value.values())
    if isinstance(value, (list, tuple, set, frozenset, deque)):
        return value
    if isinstance(value, BaseModel):
        return itertools.chain(vars(value).values(), (value.model_extra or {}).values())
    if is_dataclass(value) and not isinstance(value, type):
        return (getattr(value, field.name, None) for field in fields(value))
    return ()


def _in_order(value: Any) -> Any:
    """Return a value with its sets as sorted lists: the order of a set changes with the process."""
    if isinstance(value, (set, frozenset)):
        return sorted((_in_order(v) for v in value), key=canonical)
    if isinstance(value, dict):
        return {k: _in_order(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_in_order(v) for v in value]
    if isinstance(value, BaseModel):
        dumped = value.model_dump(by_alias=True)
        ordered = _in_order(dumped)
        return value if ordered == dumped else ordered
    return value


def digest(*parts: Any) -> bytes:
    """Return the sha256 of some parts, which no other parts have."""
    return hashlib.sha256(canonical(list(parts)).encode()).digest()


def key_of(scope: str, tool: str, input_hash: bytes, place: Place, call: ToolCall | None) -> bytes:
    """Return the key of a call in a running graph, within its thread: see this module's theory."""
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


def named_key(tool: str, key: str) -> bytes:
    """Return the key of an effect that its caller names."""
    return digest("key", tool, key)


def vendor_key_of(seed: bytes, generation: int) -> str:
    """Return what the vendor gets as idempotency key: 32 hex digits."""
    return hashlib.sha256(seed + b"/%d" % generation).hexdigest()[:32]

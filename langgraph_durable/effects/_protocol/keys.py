"""Which call is it: the message that asked for a call, and the key that names the call when it is repeated.

docs/design/identity.md, "Step 1: the key", says why each part is in a key.
"""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from functools import lru_cache
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage
from pydantic import BaseModel

from langgraph_durable.effects._identity.execution import Calls
from langgraph_durable.effects._identity.hashing import canonical, digest
from langgraph_durable.effects._identity.location import Place, ToolCall
from langgraph_durable.effects._identity.parameters import Arguments
from langgraph_durable.effects._protocol.attempt import Attempt, current_attempt
from langgraph_durable.errors import EffectError

_MESSAGES = "messages"
"""LangGraph's usual name of the messages in a state, which is looked at first."""
_DEPTH = 4
"""How deep in a state messages are looked for: a Send has a state, a state has lists, and lists have messages."""

Names = Callable[[], Collection[str]]
"""Finds the names under which models know a function; only asked if the message leaves it open."""


@dataclass(frozen=True, slots=True)
class Identity:
    """What names a call.

    Attributes:
        key: Within the thread, or everywhere, depending on the scope.
        message_id: Of the message that the key is made from, if it is.
        tool_call_id: As in that message.
        outer_id: The effect whose body makes the call, if the key is made from that one's.
        calls: Where the call was counted, if its arguments are in the key: with other arguments it is another call.
        runs_again: Whether an earlier execution may have made the call with other arguments.
    """

    key: bytes
    message_id: str | None = None
    tool_call_id: str | None = None
    outer_id: uuid.UUID | None = None
    calls: Calls | None = None
    runs_again: bool = False


def identify(
    scope: str, tool: str, input_hash: bytes, place: Place | None, call: ToolCall | None
) -> Identity:
    """Return what identifies a call that has no `key=`.

    Raises:
        EffectError: Nothing does: it is called outside a running graph.
    """
    hashed = input_hash.hex()
    if scope == "call":
        outer = _outer_of(place)
        if place is not None and call is not None and call.is_stored:
            position = [call.tool_call_id, call.ordinal, tool]
            if call.message_id is not None:
                key = digest(scope, place.path, call.message_id, *position)
            else:
                key = digest(scope, "task", place.task_id, *position)
            return Identity(key, call.message_id, call.tool_call_id)
        if outer is not None:
            again = outer.replayed or outer.row.attempts > 1
            parent = ["effect", outer.row.key.hex()]
            counted = _Counted(parent, outer.calls, again, outer.row.effect_id)
            return counted.identity(tool, hashed, call)
        if place is not None:
            counted = _Counted(["code", place.task_id], place.execution.calls, place.runs_again)
            return counted.identity(tool, hashed, call)
    elif place is not None:
        within = [place.path, place.checkpoint_id] if scope == "step" else []
        return Identity(digest(scope, *within, tool, hashed))
    raise EffectError(
        f"{tool!r} was called outside a running graph, so nothing identifies the call. Give @effect a key="
    )


@dataclass(frozen=True, slots=True)
class _Counted:
    """Where calls are identified by their arguments, and counted among those with equal ones."""

    parent: Sequence[str]
    calls: Calls
    runs_again: bool
    outer_id: uuid.UUID | None = None

    def identity(self, tool: str, hashed: str, call: ToolCall | None) -> Identity:
        """Return the identity of a call. Calls with other arguments may come in any order."""
        if (
            call is not None and call.message is not None
        ):  # a retry around the tool comes with the same message
            position = (call.tool_call_id, call.ordinal)
            number = self.calls.number((tool, hashed), call.message, position)
        else:
            number = self.calls.count((tool, hashed))
        key = digest("call", *self.parent, tool, hashed, number)
        self.calls.keys.add(key)
        return Identity(key, outer_id=self.outer_id, calls=self.calls, runs_again=self.runs_again)


def _outer_of(place: Place | None) -> Attempt | None:
    """Return the effect whose body runs here. A graph that the body runs has tasks, which identify its calls."""
    outer = current_attempt()
    if outer is None or (place is not None and outer.row.task_id != place.task_id):
        return None
    return outer


# --- the message that asked for a call ---


def find_tool_call(
    state: Any, tool_call_id: str | None, names: Names, arguments: Arguments, place: Place
) -> ToolCall | None:
    """Find the model's message that requested a tool call, in the state that the tool receives.

    Providers may use one id for several calls of a message. Those with this name and these arguments are assigned in
    turn: by the task's count, and if each call has a separate task, by the task's number.
    """
    if not tool_call_id:
        return None
    for message in _messages_of(state):
        same_id = [i for i, call in enumerate(message.tool_calls) if call["id"] == tool_call_id]
        if same_id:
            position, ordinal = _position(message, same_id, names, arguments, place)
            name = message.tool_calls[position]["name"]
            stored = _is_stored(place, tool_call_id, message)
            return ToolCall(
                message.id,
                tool_call_id,
                ordinal,
                is_alone=len(message.tool_calls) == 1,
                name=name,
                is_stored=stored,
                message=message,
            )
    return ToolCall(None, tool_call_id, 0, is_stored=_is_stored(place, tool_call_id))


def _position(
    message: AIMessage, same_id: Sequence[int], names: Names, arguments: Arguments, place: Place
) -> tuple[int, int]:
    """Return which of a message's calls with one id runs here, and the number that identifies it."""
    if len(same_id) == 1:
        return same_id[0], same_id[0]
    calls = message.tool_calls
    known_as = names()
    alike = [i for i in same_id if calls[i]["name"] in known_as] or same_id
    if len(alike) == 1:
        return alike[0], alike[0]
    fitting = [i for i in alike if _fits(calls[i]["args"], arguments.recorded)]
    if len(fitting) == 1:
        return fitting[0], fitting[0]
    counted = (message.id, calls[alike[0]]["id"], calls[alike[0]]["name"], canonical(arguments.hashed))
    taken = fitting or alike
    position = ordinal = taken[place.execution.calls.count(counted) % len(taken)]
    if not fitting:  # validation changed the arguments, so the call is identified by the validated ones
        ordinal += int.from_bytes(digest(arguments.hashed)[:6], "big")
    if place.push is not None:
        ordinal += len(calls) * (place.push + 1)
    return position, ordinal


def _fits(given: Mapping[str, Any], recorded: Mapping[str, Any]) -> bool:
    """Return whether a tool's arguments may be those a model gave, with defaults for the rest."""
    return all(
        name in recorded and canonical(recorded[name]) == canonical(value) for name, value in given.items()
    )


def _messages_of(state: Any) -> Iterator[AIMessage]:
    """Yield the model's messages in the lists of a state, the last ones first; those in `messages` come first."""
    for value in [state] if isinstance(state, (list, tuple)) else _parts(state):
        if isinstance(value, (list, tuple)):
            yield from (part for part in reversed(value) if _kind_of(part) is _Kind.MODEL_MESSAGE)


def _parts(value: Any) -> list[Any]:
    """Return the values of a mapping, or of an object's fields, the last ones first; `messages` comes first."""
    if isinstance(value, Mapping):
        parts = dict(value)
    elif is_dataclass(value):  # it may have slots, and then no __dict__
        parts = {field.name: getattr(value, field.name, None) for field in fields(value)}
    else:
        slots = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
        parts = {name: getattr(value, name, None) for name in slots} | getattr(value, "__dict__", {})
    names = list(parts)[::-1]
    return [parts[name] for name in sorted(names, key=lambda name: name != _MESSAGES)]


# --- whether a checkpoint has it ---


def _is_stored(place: Place, tool_call_id: str, message: AIMessage | None = None) -> bool:
    """Return whether the state, as it was when the step began, has the message, or the call if it came alone.

    A node that calls its model and then its tools makes a message that no checkpoint has. When the node runs again, the
    model gives another message.
    """
    from langgraph.channels import UntrackedValue

    def is_it(found: Any) -> bool:
        if not isinstance(found, AIMessage):
            return message is None and found.get("id") == tool_call_id
        if message is not None and message.id is not None:
            return found.id == message.id
        return any(call["id"] == tool_call_id for call in found.tool_calls)

    if place.channels is None:
        return True
    channels = sorted(place.channels.items(), key=lambda item: item[0] != _MESSAGES)
    try:
        return any(
            is_it(found)
            for _, channel in channels
            if channel.is_available() and not isinstance(channel, UntrackedValue)
            for found in _find_calls(channel.get(), _DEPTH)
        )
    except Exception:  # a channel of the user's that cannot be read: most messages are stored
        return True


def _find_calls(value: Any, depth: int) -> Iterator[Any]:
    """Yield the model's messages in a value, and single tool calls in the form in which ToolNode takes them."""
    kind = _kind_of(value)
    if kind is _Kind.LEAF:
        return
    if kind is _Kind.MODEL_MESSAGE or (kind is _Kind.MAPPING and value.get("type") == "tool_call"):
        yield value
    elif depth:
        for part in reversed(value) if kind is _Kind.LIST else _parts(value):
            if _kind_of(part) is not _Kind.LEAF:
                yield from _find_calls(part, depth - 1)


class _Kind(Enum):
    """What a type of values means in the search for the model's messages."""

    MODEL_MESSAGE = 1
    LIST = 2
    MAPPING = 3
    FIELDS = 4
    LEAF = 5


def _kind_of(value: Any) -> _Kind:
    kind: Any = type(value)
    return _kind_of_type(kind)


@lru_cache(maxsize=1024)  # isinstance is slow for pydantic's classes, and there may be thousands of messages
def _kind_of_type(kind: type) -> _Kind:
    from langgraph.types import Send

    if issubclass(kind, AIMessage):
        return _Kind.MODEL_MESSAGE
    if issubclass(kind, (list, tuple, deque)):
        return _Kind.LIST
    if issubclass(kind, Mapping):
        return _Kind.MAPPING
    if not issubclass(kind, BaseMessage) and (issubclass(kind, (BaseModel, Send)) or is_dataclass(kind)):
        return _Kind.FIELDS
    return _Kind.LEAF

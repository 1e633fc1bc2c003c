"""Messages that come again in a listing are copied instead of made again.

The checkpoints of a conversation repeat its messages, and to make one from its bytes, through LangChain's constructor,
takes several times as long as to copy it. A copy is what making it again would give:

- Its bytes are the same, and hold nothing but plain data and the name of one of LangChain's own classes, whose
  constructors depend on nothing else and do nothing else. Any other object is made anew each time.
- What is copied is a message that was made for this, and that nobody else ever sees.
- Only what cannot change is shared with it. What can is copied, down to the last, and stands in one place only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import EXT_PYDANTIC_V2, JsonPlusSerializer

_MESSAGES = {
    AIMessage,
    AIMessageChunk,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
}
_UNCHANGING = {str, int, float, bool, bytes, type(None)}
_STATE = {"__dict__", "__pydantic_extra__", "__pydantic_fields_set__", "__pydantic_private__"}

_ROOM = 32 << 20
"""Bytes, about, of what a listing remembers; the oldest messages come first, and most often again."""
_COST = 3000  # bytes, about, that a message takes beside its text and its serialized bytes

Extension = Callable[[int, bytes], Any]
Maker = Callable[[], Any]


def copying_messages(serde: SerializerProtocol) -> SerializerProtocol:
    """Return a serializer that loads what `serde` does, for one listing.

    It is another one only for LangGraph's own classes: one made from them may do more than they. What this returned
    may be given to it again.
    """
    if type(serde) is EncryptedSerializer:
        return EncryptedSerializer(serde.cipher, copying_messages(serde.serde))
    if type(serde) is not JsonPlusSerializer:
        return serde
    # A hook of the caller's may do anything. Should LangGraph rename these attributes, nothing is copied any more.
    make = getattr(serde, "_unpack_ext_hook", None)
    is_custom = getattr(serde, "_custom_unpack_ext_hook", True)
    return serde if make is None or is_custom else _CopyingSerializer(serde, _loader(make))


class _CopyingSerializer(SerializerProtocol):
    def __init__(self, serde: JsonPlusSerializer, load: Extension) -> None:
        self._serde = serde
        self._copying = JsonPlusSerializer(__unpack_ext_hook__=load)

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        return self._serde.dumps_typed(obj)

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        return (self._copying if data[0] == "msgpack" else self._serde).loads_typed(data)


def _loader(make: Extension) -> Extension:
    """Return what loads MessagePack's extensions, which all objects are: as `make` does, or by a copy."""
    makers: dict[bytes, Maker] = {}
    room = _ROOM

    def load(code: int, data: bytes) -> Any:
        nonlocal room
        if code != EXT_PYDANTIC_V2:
            return make(code, data)
        if (maker := makers.get(data)) is not None:
            return maker()
        if room <= 0:
            return make(code, data)
        room -= 2 * len(data) + _COST
        made = make(code, data)
        copier = _copier_of(data, made)
        makers[data] = copier or partial(make, code, data)
        return copier() if copier is not None else made

    return load


# --- copiers ---


class _NotCopied(Exception):
    """A value must be made anew each time."""


def _refuse(code: int, data: bytes) -> Any:
    raise _NotCopied


_PLAIN = JsonPlusSerializer(__unpack_ext_hook__=_refuse)


def _copier_of(data: bytes, made: Any) -> Maker | None:
    """Return what copies the message that was made of serialized bytes; None if it is none, or cannot be copied."""
    if type(made) not in _MESSAGES:
        return None
    try:
        _PLAIN.loads_typed(("msgpack", data))
        return _message_copier(made, set())
    except Exception:  # there is something in it that is made anew each time
        return None


def _message_copier(message: Any, seen: set[int]) -> Maker:
    state = message.__getstate__()
    if state.keys() != _STATE or state["__pydantic_private__"] is not None:
        raise _NotCopied
    kind, new, set_ = type(message), object.__new__, object.__setattr__
    fields, parts = state["__dict__"], _changing_parts(state["__dict__"].items(), seen)
    extra, copy_fields_set = state["__pydantic_extra__"], state["__pydantic_fields_set__"].copy
    copy_extra = _copier(extra, seen) if extra is not None else None

    def copy() -> Any:  # as pydantic's own __copy__ does, which takes longer
        copied = fields.copy()
        for name, copy_part in parts:
            copied[name] = copy_part()
        made = new(kind)
        set_(made, "__dict__", copied)
        set_(made, "__pydantic_extra__", copy_extra() if copy_extra is not None else None)
        set_(made, "__pydantic_fields_set__", copy_fields_set())
        set_(made, "__pydantic_private__", None)
        return made

    return copy


def _changing_parts(places: Iterable[tuple[Any, Any]], seen: set[int]) -> list[tuple[Any, Maker]]:
    """Return what must not be shared of a container: where it is, and what copies it."""
    return [(place, _copier(v, seen)) for place, v in places if type(v) not in _UNCHANGING or v != v]


def _copier(value: Any, seen: set[int]) -> Maker:
    """Return what copies a list or dict.

    Nothing copies a NaN: one that two lists share would make them equal.
    """
    if id(value) in seen:
        raise _NotCopied
    seen.add(id(value))
    if type(value) is list:
        parts = _changing_parts(enumerate(value), seen)
    elif type(value) is dict and all(type(key) in _UNCHANGING for key in value):
        parts = _changing_parts(value.items(), seen)
    else:
        raise _NotCopied
    if not parts:
        copy_flat: Maker = value.copy
        return copy_flat

    def copy() -> Any:
        copied = value.copy()
        for place, copy_part in parts:
            copied[place] = copy_part()
        return copied

    return copy

"""Copy messages that repeat in a listing, instead of constructing each again from its bytes.

When a copy is exactly what the serializer would make: docs/design/segments.md.
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
_IMMUTABLE = {str, int, float, bool, bytes, type(None)}
_STATE = {"__dict__", "__pydantic_extra__", "__pydantic_fields_set__", "__pydantic_private__"}

_CACHE_BYTES = 32 << 20
"""About how many bytes a listing remembers. The oldest messages are in every checkpoint, and come first."""
_MESSAGE_COST = 3000  # approximate bytes of a message besides its text and its serialized bytes

Extension = Callable[[int, bytes], Any]
Maker = Callable[[], Any]


def copying_messages(serde: SerializerProtocol) -> SerializerProtocol:
    """Return a serializer for one listing that loads what `serde` loads, and copies repeated messages.

    A message is copied only if its bytes are the same, hold only plain data, and name one of LangChain's own classes,
    whose constructors depend on nothing else and have no other effects. The copied message is one that the caller
    never sees, and copies share only what is immutable with it.

    Subclasses of LangGraph's serializers are returned unchanged, since they may do more. So is what this function
    returned.
    """
    if type(serde) is EncryptedSerializer:
        return EncryptedSerializer(serde.cipher, copying_messages(serde.serde))
    if type(serde) is not JsonPlusSerializer:
        return serde
    # A caller's hook may do anything. If LangGraph renames these attributes, nothing is copied.
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
    """Return a hook that loads MessagePack extensions, which all objects are: by `make`, or by a copy."""
    makers: dict[bytes, Maker] = {}
    room = _CACHE_BYTES

    def load(code: int, data: bytes) -> Any:
        nonlocal room
        if code != EXT_PYDANTIC_V2:
            return make(code, data)
        if (maker := makers.get(data)) is not None:
            return maker()
        if room <= 0:
            return make(code, data)
        room -= 2 * len(data) + _MESSAGE_COST
        made = make(code, data)
        copier = _copier_of(data, made)
        makers[data] = copier or partial(make, code, data)
        return copier() if copier is not None else made

    return load


# --- copiers ---


class _NotCopyable(Exception):
    """A value must be constructed each time."""


def _refuse(code: int, data: bytes) -> Any:
    raise _NotCopyable


_PLAIN = JsonPlusSerializer(__unpack_ext_hook__=_refuse)


def _copier_of(data: bytes, made: Any) -> Maker | None:
    """Return a function that copies `made`; None if it is not a message, or cannot be copied."""
    if type(made) not in _MESSAGES:
        return None
    try:
        _PLAIN.loads_typed(("msgpack", data))
        return _message_copier(made, set())
    except Exception:  # something in it must be constructed each time
        return None


def _message_copier(message: Any, seen: set[int]) -> Maker:
    state = message.__getstate__()
    if state.keys() != _STATE or state["__pydantic_private__"] is not None:
        raise _NotCopyable
    kind, new, set_ = type(message), object.__new__, object.__setattr__
    fields, parts = state["__dict__"], _mutable_parts(state["__dict__"].items(), seen)
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


def _mutable_parts(places: Iterable[tuple[Any, Any]], seen: set[int]) -> list[tuple[Any, Maker]]:
    """Return the places in a container whose values must not be shared, with functions that copy them."""
    return [(place, _copier(v, seen)) for place, v in places if type(v) not in _IMMUTABLE or v != v]


def _copier(value: Any, seen: set[int]) -> Maker:
    """Return a function that copies a list or dict.

    A NaN is not copyable: if two lists shared it, they would be equal.
    """
    if id(value) in seen:
        raise _NotCopyable
    seen.add(id(value))
    if type(value) is list:
        parts = _mutable_parts(enumerate(value), seen)
    elif type(value) is dict and all(type(key) in _IMMUTABLE for key in value):
        parts = _mutable_parts(value.items(), seen)
    else:
        raise _NotCopyable
    if not parts:
        copy_flat: Maker = value.copy
        return copy_flat

    def copy() -> Any:
        copied = value.copy()
        for place, copy_part in parts:
            copied[place] = copy_part()
        return copied

    return copy

"""Hashes that identify effects: of keys, of arguments, and for the provider."""

from __future__ import annotations

import hashlib
import json
from base64 import b64encode
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import MISSING, fields, is_dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import PurePath
from typing import Any
from uuid import UUID

from pydantic import BaseModel
from pydantic_core import PydanticSerializationError, PydanticUndefined, to_jsonable_python

from langgraph_durable.errors import EffectError

_LEFT_OUT = "<left out>"
_SCALARS = frozenset({str, int, float, bool, type(None)})
"""Types whose values JSON has as they are."""
EMPTY_FACTORIES = (list, dict, set, tuple, frozenset)
"""Default factories that give the same value each time."""


class _RefusedError(TypeError):
    """Hashing would exhaust a value, or its JSON hides a part of it."""


def canonical(value: Any) -> str:
    """Return the canonical JSON of a value: sorted keys, no spaces, and a tag around each kind that JSON lacks.

    Different values have different JSON. Only lists and tuples count as the same, because what is stored as a tuple
    comes back as a list.

    Raises:
        EffectError: The value cannot be converted, or two different values could give the same JSON.
    """
    try:
        return _dump(_encode(value))
    except Exception as exc:
        raise EffectError(
            f"the arguments of an effect must be plain data, because they are hashed: {exc}. Pass plain values, or "
            "give @effect a key=, which leaves the others out"
        ) from exc


def digest(*parts: Any) -> bytes:
    """Return the sha256 of the parts' canonical JSON, 32 bytes."""
    text = _dump(parts) if all(type(part) is str for part in parts) else canonical(list(parts))
    return hashlib.sha256(text.encode()).digest()


def hash_arguments(tool: str, arguments: Any) -> bytes:
    """Return the hash by which a call with other arguments is detected."""
    return digest(tool, canonical(arguments))


def named_key(tool: str, key: str) -> bytes:
    """Return the key of an effect that its caller identifies by `key=`."""
    return digest("key", tool, key)


def idempotency_key_of(seed: bytes, generation: int) -> str:
    """Return the idempotency key for the provider, 32 hex digits."""
    return hashlib.sha256(seed + b"/%d" % generation).hexdigest()[:32]


def drop_unhashable(value: Any) -> Any:
    """Return a value with placeholders for what cannot be hashed, for effects identified by `key=`."""
    if type(value) is dict and all(
        type(name) is str and type(part) in _SCALARS for name, part in value.items()
    ):
        return value
    with suppress(EffectError):
        canonical(value)
        return value
    if isinstance(value, dict):
        value = {name: drop_unhashable(part) for name, part in value.items()}
    elif isinstance(value, (list, tuple)):
        value = [drop_unhashable(part) for part in value]
    else:
        return _LEFT_OUT
    with suppress(EffectError):
        canonical(value)
        return value
    return _LEFT_OUT


def is_same(value: Any, default: Any) -> bool:
    """Return whether an argument is its parameter's default, so that it counts as left out."""
    if value is default:
        return True
    if type(value) is not type(default):
        return False
    with suppress(EffectError):
        return canonical(value) == canonical(default)
    return False


def is_plain(value: Any) -> bool:
    """Return whether a value is data throughout: text, numbers, dates, and lists and dicts of these."""
    if isinstance(value, Mapping):
        return all(is_plain(name) and is_plain(part) for name, part in value.items())
    if isinstance(value, (list, tuple, set, frozenset)):
        return all(map(is_plain, value))
    return value is None or isinstance(value, (str, int, float, bytes, Enum, *_TAGS))


_dump = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode


def _timedelta(value: timedelta) -> list[int]:
    return [value.days, value.seconds, value.microseconds]


_TAGS: dict[type, Callable[[Any], Any]] = {
    Decimal: str,
    datetime: datetime.isoformat,  # before date, which it is a kind of
    date: date.isoformat,
    time: time.isoformat,
    timedelta: _timedelta,
    UUID: str,
    PurePath: str,
}
"""Kinds of values that JSON lacks -> how they are written."""


def _encode(value: Any) -> Any:
    """Return a value as JSON can hold it.

    Raises:
        TypeError: It is or contains an iterator, a secret, a model with an excluded field, or something unknown.
    """
    if type(value) in _SCALARS:
        return value
    _require_transparent(value)
    if isinstance(value, (str, int, float)):
        return value
    if isinstance(value, Mapping):
        return _encode_mapping(value)
    if isinstance(value, (list, tuple, deque)):
        return [_encode(part) for part in value]
    if isinstance(value, (set, frozenset)):  # a set's order differs between processes
        return {"$set": sorted((_encode(part) for part in value), key=_dump)}
    if isinstance(value, (bytes, bytearray, memoryview)):
        return {"$bytes": b64encode(value).decode()}
    if isinstance(value, BaseModel):
        return {"$model": [type(value).__name__, _encode_model(value)]}
    if is_dataclass(value) and not isinstance(value, type):
        return {"$dataclass": [type(value).__name__, _encode_dataclass(value)]}
    if isinstance(value, Enum):
        return {"$enum": [type(value).__name__, _encode(value.value)]}
    for kind, write in _TAGS.items():
        if isinstance(value, kind):
            return {f"${kind.__name__}": write(value)}
    # What pydantic knows: addresses, URLs, patterns, ...
    plain = to_jsonable_python(value, serialize_unknown=False, inf_nan_mode="constants", bytes_mode="base64")
    return {f"${type(value).__name__}": _encode(plain)}


def _encode_mapping(value: Mapping[Any, Any]) -> dict[str, Any]:
    if all(isinstance(name, str) and not name.startswith("$") for name in value):
        return {name: _encode(part) for name, part in value.items()}
    # JSON would write the keys 1 and "1" alike, and keys with $ could look like a tag.
    pairs = [[_encode(name), _encode(part)] for name, part in value.items()]
    return {"$dict": sorted(pairs, key=lambda pair: _dump(pair[0]))}


def _encode_model(value: BaseModel) -> Any:
    """Return a model's fields without those that have their default: a deploy may add optional fields."""
    given: dict[str, Any] = {}
    for name, field in type(value).model_fields.items():
        part = vars(value).get(name)
        if field.default is not PydanticUndefined and is_same(part, field.default):
            continue
        if field.default_factory in EMPTY_FACTORIES and not part and type(part) is field.default_factory:
            continue
        given[name] = part
    try:
        return _encode_mapping(given | (value.model_extra or {}))
    except PydanticSerializationError:  # a field of a type that only the model can serialize
        return value.model_dump(mode="json", warnings=False)


def _encode_dataclass(value: Any) -> dict[str, Any]:
    given: dict[str, Any] = {}
    for field in fields(value):
        part = getattr(value, field.name, None)
        if field.default is not MISSING and is_same(part, field.default):
            continue
        if field.default_factory in EMPTY_FACTORIES and not part and type(part) is field.default_factory:
            continue
        given[field.name] = part
    return _encode_mapping(given)


def _require_transparent(value: Any) -> None:
    """Refuse a value that hashing would exhaust, or whose JSON hides a part of it."""
    kind = type(value)
    if isinstance(value, (Iterator, AsyncIterator)):
        raise _RefusedError(f"a {kind.__name__} would be used up by reading it (make it a list)")
    if callable(getattr(kind, "get_secret_value", None)):
        raise _RefusedError(f"a {kind.__name__} hides its value")
    for name, field in getattr(kind, "__pydantic_fields__", {}).items():
        if field.exclude or getattr(field, "exclude_if", None):
            raise _RefusedError(f"{kind.__name__} excludes its field {name!r} when dumped")

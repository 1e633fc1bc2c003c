"""Hashes that identify effects: of keys, of arguments, and for the provider."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import suppress
from dataclasses import fields, is_dataclass
from typing import Any

from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from langgraph_durable.errors import EffectError

_LEFT_OUT = "<left out>"


def canonical(value: Any) -> str:
    """Return the canonical JSON of a value: sorted keys, no spaces, other types as pydantic dumps them.

    Raises:
        EffectError: The value cannot be converted, or two different values could give the same JSON.
    """
    try:
        _require_transparent(value)
        plain = to_jsonable_python(
            _sort_sets(value), serialize_unknown=False, inf_nan_mode="strings", bytes_mode="base64"
        )
        return json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    except Exception as exc:
        raise EffectError(
            f"the arguments of an effect must be plain data, because they are hashed: {exc}. Pass plain values, or "
            "give @effect a key=, which leaves the others out"
        ) from exc


def digest(*parts: Any) -> bytes:
    """Return the sha256 of the parts' canonical JSON, 32 bytes."""
    return hashlib.sha256(canonical(list(parts)).encode()).digest()


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


def _require_transparent(value: Any) -> None:
    """Refuse a value that hashing would exhaust, or whose JSON hides a part of it.

    Raises:
        TypeError: It is or contains an iterator, a secret, or a model with an excluded field.
    """
    kind = type(value)
    if isinstance(value, (Iterator, AsyncIterator)):
        raise TypeError(f"a {kind.__name__} would be used up by reading it (make it a list)")
    if callable(getattr(kind, "get_secret_value", None)):
        raise TypeError(f"a {kind.__name__} hides its value")
    for name, field in getattr(kind, "__pydantic_fields__", {}).items():
        if field.exclude or getattr(field, "exclude_if", None):
            raise TypeError(f"{kind.__name__} excludes its field {name!r} when dumped")
    for part in _parts(value):
        _require_transparent(part)


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


def _sort_sets(value: Any) -> Any:
    """Return a value with its sets as sorted lists, because a set's order differs between processes."""
    if isinstance(value, (set, frozenset)):
        return sorted((_sort_sets(v) for v in value), key=canonical)
    if isinstance(value, dict):
        return {k: _sort_sets(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_sort_sets(v) for v in value]
    if isinstance(value, BaseModel):
        dumped = value.model_dump(by_alias=True)
        ordered = _sort_sets(dumped)
        return value if ordered == dumped else ordered
    return value

"""TODO."""

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


def named_key(tool: str, key: str) -> bytes:
    """Return the key of an effect that its caller names."""
    return digest("key", tool, key)


def idempotency_key_of(seed: bytes, generation: int) -> str:
    """Return what the vendor gets as idempotency key: 32 hex digits."""
    return hashlib.sha256(seed + b"/%d" % generation).hexdigest()[:32]

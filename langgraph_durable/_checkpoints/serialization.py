"""TODO."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from typing_extensions import TypeIs

from langgraph_durable._checkpoints.rows import (
    Encoded,
)
from langgraph_durable._segments.compression import compress, decompress
from langgraph_durable.errors import CheckpointCorruptedError, UnserializableValueError


def encrypts(serde: SerializerProtocol) -> TypeIs[EncryptedSerializer]:
    """Tell whether a serializer is LangGraph's that encrypts."""
    return _encrypts(type(serde))


@lru_cache
def _encrypts(kind: type[SerializerProtocol]) -> bool:
    # Once for a class: SerializerProtocol is one that asks for each of its methods, at every isinstance.
    return issubclass(kind, EncryptedSerializer)


def encode(serde: SerializerProtocol, value: Any, what: str) -> Encoded:
    """Serialize one value.

    Raises:
        UnserializableValueError: It cannot be; the message names `what` it is.
    """
    try:
        return _encode(serde, value)
    except Exception as exc:
        raise UnserializableValueError(
            f"cannot serialize {what}, a {type(value).__name__}: {exc}. Store plain data, a dataclass or a "
            "pydantic model, or pass the saver a serde that knows the type"
        ) from exc


def _encode(serde: SerializerProtocol, value: Any) -> Encoded:
    try:
        kind, data = serde.dumps_typed(value)
        if not ((_LOSSY_MARK in data or _ENCRYPTED_MARK in kind) and _has_surrogates(value)):
            return _own(kind), data
    except Exception:
        if not _has_surrogates(value):
            raise
    kind, data = serde.dumps_typed(_map_strings(value, _escape))
    return _ESCAPED + _own(kind), data


def _own(kind: str) -> str:
    """Return a serializer's tag so that it cannot be taken for one of the marks made here."""
    return _OWN + kind if kind.startswith((_COMPRESSED, _ESCAPED, _OWN)) else kind


def decode(serde: SerializerProtocol, encoded: Encoded, what: str) -> Any:
    """Load one value.

    Raises:
        CheckpointCorruptedError: Its bytes cannot be read; the message names `what` it is.
    """
    try:
        return _decode(serde, encoded)
    except Exception as exc:
        raise _unreadable(what, exc) from exc


def _decode(serde: SerializerProtocol, encoded: Encoded) -> Any:
    kind, data = encoded
    if kind.startswith(_COMPRESSED):
        kind, data = kind[len(_COMPRESSED) :], decompress(data)
    is_escaped = kind.startswith(_ESCAPED)
    value = serde.loads_typed((kind.removeprefix(_ESCAPED).removeprefix(_OWN), data))
    return _map_strings(value, _unescape) if is_escaped else value


def _pack(encoded: Encoded) -> Encoded:
    """Compress a value that Postgres would compress, and that is not encrypted."""
    kind, data = encoded
    packed = compress(data, _SHORTEST_PACKED) if _ENCRYPTED_MARK not in kind else None
    return encoded if packed is None else (_COMPRESSED + kind, packed)


def _unreadable(what: str, exc: Exception) -> CheckpointCorruptedError:
    return CheckpointCorruptedError(
        f"cannot read {what}: {type(exc).__name__}: {exc}. The row's bytes are damaged, or were written "
        "with another serializer or key than this saver has"
    )


# Lone surrogates (half of an emoji, as models stream them) are no UTF-8, and LangGraph's serializer turns
# each into "?". Where a value may have lost one so, its strings are escaped first, one to one: U+10FFFF, which
# is no character, and four hex digits. Strings inside objects of other types are the serializer's own affair.

_ESCAPED = "escaped:"
_COMPRESSED = "zlib:"  # comes before it
_OWN = "own:"  # comes after it, before a serializer's tag that begins as one of these
_SHORTEST_PACKED = 1000
_LOSSY_MARK = b"?"
_ENCRYPTED_MARK = "+"  # what EncryptedSerializer joins the cipher's name to the type with
_UNSTORABLE = re.compile("[\ud800-\udfff\U0010ffff]")
_ESCAPE = re.compile("\U0010ffff([0-9a-f]{4})")


def _has_surrogates(value: Any) -> bool:
    # Without recursion, and each container once: a serializer that pickles goes deep, and in circles.
    left, seen = [value], set()
    while left:
        value = left.pop()
        kind = type(value)
        if kind is str:
            if not value.isascii() and _is_unencodable(value):
                return True
        elif (kind is list or kind is tuple or kind is dict) and id(value) not in seen:
            seen.add(id(value))
            left += value
            if kind is dict:
                left += value.values()
    return False


def _is_unencodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def _map_strings(value: Any, change: Any) -> Any:
    kind = type(value)
    if kind is str:
        return change(value)
    if kind is dict:
        return {_map_strings(k, change): _map_strings(v, change) for k, v in value.items()}
    if kind is list or kind is tuple:
        return kind(_map_strings(v, change) for v in value)
    return value


def _escape(text: str) -> str:
    return _UNSTORABLE.sub(lambda m: f"\U0010ffff{ord(m[0]) & 0xFFFF:04x}", text)


def _unescape(text: str) -> str:
    return _ESCAPE.sub(lambda m: m[0][0] if m[1] == "ffff" else chr(int(m[1], 16)), text)

"""A saver's serializer: its settings, and single values to bytes and back.

Which values are segmented, compressed or encrypted: docs/design/segments.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from functools import lru_cache, partial
from typing import Any, NamedTuple

from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from typing_extensions import TypeIs

from langgraph_durable._checkpoints.rows import Encoded, StoredValue
from langgraph_durable._segments.cache import SegmentCache
from langgraph_durable._segments.reading import SegmentReader
from langgraph_durable._segments.values import (
    EncodedValue,
    SegmentedValue,
    compress,
    decompress,
    encode_segments,
    join,
)
from langgraph_durable.errors import CheckpointCorruptedError, UnserializableValueError


@lru_cache
def _is_encrypting(kind: type[SerializerProtocol]) -> bool:
    # Cached by class: isinstance on SerializerProtocol, a runtime protocol, checks every method each time.
    return issubclass(kind, EncryptedSerializer)


def encrypts(serde: SerializerProtocol) -> TypeIs[EncryptedSerializer]:
    """Return whether `serde` is an EncryptedSerializer."""
    return _is_encrypting(type(serde))


DEFAULT_INDEXED_METADATA = ("source", "step", "run_id")
"""The metadata that stays readable in the database when the serializer encrypts."""


class Codec(NamedTuple):
    """A saver's serializer, with the settings that decide how values are stored.

    Made for each call, since LangGraph reassigns a saver's serializer.
    """

    serde: SerializerProtocol
    indexed_metadata: Collection[str] | None
    """Metadata keys kept readable in the database; None for the default."""
    segment_key: bytes | None
    """The key of the segments' hashes; None for hashes without a key."""
    segments: SegmentCache
    tuning: bool
    """Whether listings and histories pause the garbage collector, and listings copy repeated messages."""

    @property
    def index_keys(self) -> Collection[str] | None:
        """The metadata keys to keep readable; None for all that jsonb holds exactly."""
        if self.indexed_metadata is None and encrypts(self.serde):
            return DEFAULT_INDEXED_METADATA
        return self.indexed_metadata

    @property
    def reader(self) -> SegmentReader:
        """The settings for reading stored segments."""
        cipher = self.serde.cipher if encrypts(self.serde) else None
        return SegmentReader(self.segments, self.segment_key, cipher)


# --- any value ---


def encode(serde: SerializerProtocol, value: Any, what: str) -> Encoded:
    """Serialize one value.

    Raises:
        UnserializableValueError: The value cannot be serialized; the message names `what` it is.
    """
    try:
        return _dumps(serde, value)
    except Exception as exc:
        raise UnserializableValueError(
            f"cannot serialize {what}, a {type(value).__name__}: {exc}. Store plain data, a dataclass or a "
            "pydantic model, or pass the saver a serde that knows the type."
        ) from exc


def decode(serde: SerializerProtocol, encoded: Encoded, what: object) -> Any:
    """Deserialize one value.

    Raises:
        CheckpointCorruptedError: The bytes cannot be read; the message names `what` they are.
    """
    try:
        return loads(serde, encoded)
    except Exception as exc:
        raise unreadable(what, exc) from exc


def loads(serde: SerializerProtocol, encoded: Encoded) -> Any:
    """Deserialize one value; errors are the serializer's own."""
    kind, data = encoded
    if kind.startswith(_COMPRESSED):
        kind, data = kind[len(_COMPRESSED) :], decompress(data)
    is_escaped = kind.startswith(_ESCAPED)
    value = serde.loads_typed((kind.removeprefix(_ESCAPED).removeprefix(_OWN), data))
    return _map_strings(value, _unescape) if is_escaped else value


def pack(encoded: Encoded) -> Encoded:
    """Compress a value that Postgres would compress too, unless it is encrypted."""
    kind, data = encoded
    packed = compress(data, _SHORTEST_PACKED) if _ENCRYPTED_MARK not in kind else None
    return encoded if packed is None else (_COMPRESSED + kind, packed)


def unreadable(what: object, exc: Exception) -> CheckpointCorruptedError:
    """Return the error for stored bytes that cannot be read."""
    return CheckpointCorruptedError(
        f"cannot read {what}: {type(exc).__name__}: {exc}. The row's bytes are damaged, or were written "
        "with another serializer or key than this saver has."
    )


def _dumps(serde: SerializerProtocol, value: Any) -> Encoded:
    try:
        kind, data = serde.dumps_typed(value)
        if not ((_LOSSY_MARK in data or _ENCRYPTED_MARK in kind) and _has_surrogates(value)):
            return _tag(kind), data
    except Exception:
        if not _has_surrogates(value):
            raise
    kind, data = serde.dumps_typed(_map_strings(value, _escape))
    return _ESCAPED + _tag(kind), data


def _tag(kind: str) -> str:
    """Return a serializer's type tag, marked if it could be mistaken for a mark made here."""
    return _OWN + kind if kind.startswith((_COMPRESSED, _ESCAPED, _OWN)) else kind


# --- channel values ---


def encode_value(serde: SerializerProtocol, segment_key: bytes | None, value: Any, what: str) -> EncodedValue:
    """Serialize a channel's value, and cut it into segments if it is long.

    An encrypted value is cut only if the hashes are keyed, and only for LangGraph's own class: a subclass may do more
    than encrypt.

    Raises:
        UnserializableValueError: The value cannot be serialized; the message names `what` it is.
    """
    if segment_key is not None and type(serde) is EncryptedSerializer:
        kind, data = encode(serde.serde, value, what)
        segmented = encode_segments(kind, kind.removeprefix(_ESCAPED), data, segment_key, serde.cipher)
        if segmented is not None:
            return segmented
        cipher, data = serde.cipher.encrypt(data)
        return EncodedValue(f"{kind}{_ENCRYPTED_MARK}{cipher}", data)
    encoded = encode(serde, value, what)
    return EncodedValue(*encoded) if encrypts(serde) else cut_value(encoded, segment_key)


def cut_value(encoded: Encoded, segment_key: bytes | None) -> EncodedValue:
    """Cut a serialized value that is not encrypted into segments if it is long."""
    kind, data = encoded
    segmented = encode_segments(kind, kind.removeprefix(_ESCAPED), data, segment_key)
    return segmented or EncodedValue(*pack(encoded))


def decode_value(serde: SerializerProtocol, stored: StoredValue, what: str) -> Any:
    """Deserialize a channel's value.

    Raises:
        CheckpointCorruptedError: Its bytes, or those of a segment, are missing or cannot be read.
    """
    if not isinstance(stored, SegmentedValue):
        return decode(serde, stored, what)
    if stored.fault:
        raise CheckpointCorruptedError(f"cannot read {what}: {stored.fault}")
    try:
        kind, _, cipher_name = stored.kind.partition(_ENCRYPTED_MARK)
        if cipher_name and encrypts(serde):
            whole = join(stored, partial(serde.cipher.decrypt, cipher_name))
            return loads(serde.serde, (kind, whole))
        return loads(serde, (stored.kind, join(stored, None)))
    except Exception as exc:
        raise unreadable(what, exc) from exc


# --- lone surrogates ---

# A lone surrogate (half of an emoji, as models stream them) cannot be encoded as UTF-8, and LangGraph's serializer
# turns it into "?". So the strings of a value that may have lost one are escaped first, one to one: U+10FFFF, which is
# not a character, and four hex digits. Strings inside objects of other types are left to the serializer.

_ESCAPED = "escaped:"
_COMPRESSED = "zlib:"  # stands before _ESCAPED
_OWN = "own:"  # stands after _ESCAPED, before a serializer's tag that begins like one of these marks
_SHORTEST_PACKED = 1000
_LOSSY_MARK = b"?"
_ENCRYPTED_MARK = "+"  # between the type and the cipher's name, as in EncryptedSerializer
_UNSTORABLE = re.compile("[\ud800-\udfff\U0010ffff]")
_ESCAPE = re.compile("\U0010ffff([0-9a-f]{4})")


def _has_surrogates(value: Any) -> bool:
    # Not recursive, and each container once: a value that is pickled may be deep or circular.
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


def _map_strings(value: Any, change: Callable[[str], str]) -> Any:
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

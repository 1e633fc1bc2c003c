"""Long values as segments: content-addressed pieces that each thread stores once.

The format, and why it is so: docs/design/segments.md.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

from langgraph.checkpoint.serde.base import CipherProtocol

from langgraph_durable._segments.chunking import cut

HASH_SIZE = 20
"""Bytes of a hash: one for the kind, and 19 of BLAKE2b. The SQL statements use this number, too."""

# The bits of a hash's first byte. A sealed segment is encrypted; an index never is.
_INDEX, _KEYED, _SEALED = 1, 2, 4

_SPLITTABLE = "msgpack"
_SHORTEST_VALUE = 4096
_SMALLEST_INDEX, _LARGEST_INDEX = 8, 256
"""Hashes of an index; 24 on average."""
_SHORTEST_PACKED = 512

# channel_values.data of a segmented value: the whole value's length, a byte for the head's length, the head, the tail.
# 128 is added to the head's length if head and tail are compressed. All but the whole's length may be encrypted.
_SIZE_BYTES = 6
_PACKED = 128


@dataclass(slots=True)
class EncodedValue:
    """A value ready to be stored: whole, or in segments."""

    kind: str
    """The serializer's type tag."""
    data: bytes
    """The whole value, or head and tail."""
    entries: Sequence[bytes] | None = None
    """The hashes of the value's leaves and indexes, in order; None if it is whole."""
    segments: Mapping[bytes, bytes] = field(default_factory=dict)
    """Hash -> bytes, not encrypted, of every leaf and index."""
    seal: Callable[[bytes], bytes] | None = None
    """Encrypts a leaf; None if leaves are not encrypted."""

    def stored(self, hash_: bytes) -> bytes:
        """Return the data of a segment's row.

        A leaf begins with a byte for whether it is compressed, an encrypted one with the cipher's name and a NUL.
        """
        data = self.segments[hash_]
        if is_index(hash_):
            return data
        if self.seal is not None:
            return self.seal(data)
        packed = compress(data, _SHORTEST_PACKED)
        return b"\0" + data if packed is None else b"\1" + packed

    @property
    def leaves(self) -> dict[bytes, bytes]:
        """The segments that are not indexes."""
        return {h: data for h, data in self.segments.items() if not is_index(h)}


@dataclass(slots=True)
class SegmentedValue:
    """A value as stored, with its segments once they are fetched."""

    thread_id: str
    kind: str
    data: bytes
    entries: Sequence[bytes]
    """The hashes of leaves and indexes, in order."""
    indexes: dict[bytes, bytes] = field(default_factory=dict)
    """Hash -> stored data, of the indexes among the entries."""
    fault: str = ""
    """Why the value cannot be read, if so."""
    parts: list[bytes] = field(default_factory=list)
    """The leaves' bytes, not encrypted, in order."""


def is_index(hash_: bytes) -> bool:
    """Return whether a hash is that of an index: a run of hashes."""
    return hash_[:1] in (b"\x01", b"\x03")


# --- storing ---


def encode_segments(
    kind: str, base_kind: str, data: bytes, key: bytes | None, cipher: CipherProtocol | None = None
) -> EncodedValue | None:
    """Cut a serialized value into segments.

    Args:
        kind: The type tag to store, without the cipher's name.
        base_kind: What the serializer called the bytes.
        data: The value's bytes, not encrypted.
        key: The key of the hashes, if any.
        cipher: The cipher, if any; it requires a key.

    Returns:
        None if the value should be stored whole: it is short, or has no elements to cut it between.
    """
    if base_kind != _SPLITTABLE or len(data) < _SHORTEST_VALUE or (found := cut(data)) is None:
        return None
    head, bounds = found
    flags = (_KEYED if key else 0) | (_SEALED if cipher else 0)
    segments: dict[bytes, bytes] = {}
    leaves = []
    start = head
    for end in bounds:
        piece = data[start:end]
        leaf = _digest(piece, flags, key)
        segments[leaf] = piece
        leaves.append(leaf)
        start = end
    entries = _gather(leaves, segments, key)
    size, rest = len(data).to_bytes(_SIZE_BYTES, "big"), data[:head] + data[start:]
    if cipher is None:
        packed = compress(rest, _SHORTEST_PACKED)
        framed = bytes([head]) + rest if packed is None else bytes([head | _PACKED]) + packed
        return EncodedValue(kind, size + framed, entries, segments)
    name, sealed = cipher.encrypt(bytes([head]) + rest)
    return EncodedValue(
        f"{kind}+{name}", size + sealed, entries, segments, lambda piece: _seal(cipher, piece)
    )


def plan_segments(
    values: Iterable[EncodedValue], known: set[bytes]
) -> tuple[dict[bytes, bytes], list[bytes]]:
    """Choose the segments that a put sends, and those that must be stored already.

    As long as an index is stored, what it names is stored.

    Returns:
        Hash -> data of the segments to send, and the hashes to look up.
    """
    sent: dict[bytes, bytes] = {}
    needed: set[bytes] = set()
    for value in values:
        for entry in value.entries or ():
            if entry in known:
                needed.add(entry)
                continue
            sent[entry] = value.stored(entry)
            for leaf in hashes_in(value.segments[entry]) if is_index(entry) else ():
                if leaf in known:
                    needed.add(leaf)
                else:
                    sent[leaf] = value.stored(leaf)
    # Sorted, so that two puts that send the same segments cannot deadlock.
    return dict(sorted(sent.items())), sorted(needed - sent.keys())


def _gather(leaves: Sequence[bytes], segments: dict[bytes, bytes], key: bytes | None) -> list[bytes]:
    """Make indexes of runs of hashes, add them to the segments, and return the entries of the value."""
    entries: list[bytes] = []
    run: list[bytes] = []
    for leaf in leaves:
        run.append(leaf)
        if (len(run) >= _SMALLEST_INDEX and leaf[-1] & 15 == 0) or len(run) == _LARGEST_INDEX:
            joined = b"".join(run)
            index = _digest(joined, _INDEX | (_KEYED if key else 0), key)
            segments[index] = joined
            entries.append(index)
            run = []
    return entries + run


def _digest(data: bytes, flags: int, key: bytes | None) -> bytes:
    return bytes([flags]) + blake2b(data, digest_size=HASH_SIZE - 1, key=key or b"").digest()


def _seal(cipher: CipherProtocol, piece: bytes) -> bytes:
    name, sealed = cipher.encrypt(piece)
    return name.encode() + b"\0" + sealed


# --- reading ---


def hashes_in(index: bytes) -> list[bytes]:
    """Return the hashes that an index holds, in order."""
    return [index[i : i + HASH_SIZE] for i in range(0, len(index), HASH_SIZE)]


def open_segment(hash_: bytes, data: bytes, key: bytes | None, cipher: CipherProtocol | None) -> bytes:
    """Return a stored segment's bytes, decrypted and checked against its hash.

    Raises:
        ValueError: They do not match, or cannot be decrypted; the message says why.
        Exception: The cipher's own errors.
    """
    flags = hash_[0] if hash_ else 0
    if flags & _SEALED:
        if cipher is None:
            raise ValueError("it is encrypted")
        name, _, sealed = data.partition(b"\0")
        data = cipher.decrypt(name.decode(), sealed)
    elif not is_index(hash_):
        data = decompress(data[1:]) if data[:1] == b"\1" else data[1:]
    if flags & _KEYED and key is None:
        raise ValueError("it was written with a segment_key, and this saver has none")
    if hash_ != _digest(data, flags, key if flags & _KEYED else None):
        raise ValueError("its bytes do not match its hash")
    return data


def join(value: SegmentedValue, decrypt: Callable[[bytes], bytes] | None) -> bytes:
    """Return the bytes of a whole value.

    Args:
        value: With its parts.
        decrypt: Decrypts its head and tail; None if they are not encrypted.

    Raises:
        Exception: The bytes cannot be restored; the message says why.
    """
    size, framed = value.data[:_SIZE_BYTES], value.data[_SIZE_BYTES:]
    if decrypt is not None:
        framed = decrypt(framed)
    head, rest = framed[0], framed[1:]
    if head & _PACKED:
        head, rest = head & ~_PACKED, decompress(rest)
    # Checked before they are joined: a damaged list may name one segment a million times.
    if len(rest) + sum(map(len, value.parts)) != int.from_bytes(size, "big"):
        raise ValueError("head, segments and tail do not add up to the whole value")
    return b"".join((rest[:head], *value.parts, rest[head:]))


# --- compression ---

# With zlib. Postgres compresses only rows of more than 2 KB, and with lz4, which gains little on so few bytes: segments
# of 3 KB of prose shrink to three quarters with lz4, to half with zlib, in 60 microseconds. Encrypted data is not
# compressed, since its length would reveal something about its content.

_SAMPLE = 16 << 10
_LEVEL = 6  # for small data; large data gets 1, which is three times as fast
_MOST = 1 << 20  # larger data is left to the server: compression must not block for more than milliseconds


def compress(data: bytes, least: int) -> bytes | None:
    """Return data's length (4 bytes, big-endian) and the data compressed; None if that is not worth it.

    Args:
        data: At least one byte.
        least: Shorter data is not compressed.
    """
    if not least <= len(data) <= _MOST:
        return None
    if len(data) > 2 * _SAMPLE and _is_random(data[_SAMPLE : 2 * _SAMPLE]):
        return None
    level = _LEVEL if len(data) <= 4 * _SAMPLE else 1
    packed = len(data).to_bytes(4, "big") + zlib.compress(data, level)
    return packed if len(packed) < len(data) * 7 // 8 else None


def _is_random(sample: bytes) -> bool:
    return len(zlib.compress(sample, 1)) > len(sample) * 7 // 8


def decompress(packed: bytes) -> bytes:
    """Return the original data.

    Raises:
        ValueError: The data is incomplete.
        zlib.error: The data was not compressed by `compress`.
    """
    length = int.from_bytes(packed[:4], "big")
    if not 0 < length <= _MOST:
        raise ValueError("the compressed data claims a length that is never compressed")
    stream = zlib.decompressobj()
    data = stream.decompress(packed[4:], length + 1)  # bounded, whatever a damaged row expands to
    if not stream.eof or stream.unused_data or len(data) != length:
        raise ValueError("the compressed data has another length than it claims")
    return data

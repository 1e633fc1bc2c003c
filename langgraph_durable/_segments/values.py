"""Segments: long values in pieces that each thread stores once.

A long list grows by a little at every step, and savers store all of it at every step. Here a value is serialized
whole, as ever, and its *bytes* are cut between the elements of the list or dict that they hold. A piece, a segment, is
stored under the hash of its bytes, once per thread; a version of the value is the list of its segments' hashes.

- The law: a value's bytes are its head, its segments and its tail, one after the other. What is loaded is thus what a
  whole-value round trip gives, for any value and any serializer: only where to cut is a guess about the bytes, and
  what does not look like MessagePack is stored whole.
- Where a segment ends depends on the elements near it alone (content-defined chunking). So a list that grew has the
  segments it had, and one that was changed in the middle, or lost its beginning, has most of them.
- The head is what comes before the first element: the number of elements, which changes all the time. The tail is
  what comes after the last segment's end, on average less than one more segment. Both stand in the value's own row:

      channel_values.data = the whole value's length (6 bytes), the head's (1 byte), the head and the tail
      channel_values.segments = hashes, in order

  Head and tail may be compressed: then 128 is added to the head's length. Encrypted is all but the whole's length.

- The list of hashes would itself grow with the square of a conversation's length. So runs of hashes become segments
  too, cut by the same rule: an *index* is the hashes of its leaves, one after the other. There is one level of them.
- A hash is a byte that tells what it is of, and 19 bytes of BLAKE2b, keyed if the saver has a `segment_key`. Under
  encryption a hash without a key would tell equal plaintexts, and let a guessed one be confirmed.
- A stored segment begins with a byte that tells whether it is compressed (1) or not (0); an encrypted one with the
  cipher's name and a NUL. An index is neither. A hash is of the bytes that are neither compressed nor encrypted, and is
  proved when a segment is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from zlib import crc32

from langgraph.checkpoint.serde.base import CipherProtocol

from langgraph_durable._segments.compression import compress, decompress

HASH_SIZE = 20
"""Bytes of a hash. The statements that take indexes apart know it too."""

_INDEX, _KEYED, _SEALED = (
    1,
    2,
    4,
)  # the bits of a hash's first byte; a sealed segment is encrypted, an index never

_SPLITTABLE = "msgpack"
_SHORTEST_VALUE = 4096
_SMALLEST, _TYPICAL, _LARGEST = (
    1024,
    4096,
    65536,
)  # bytes of a segment; an element beyond the largest is one of its own
_RATE = 2**32 // (_TYPICAL - _SMALLEST)
_WINDOW = 64
_SMALLEST_INDEX, _LARGEST_INDEX = 8, 256  # hashes of an index; on average 24
_DEEPEST = 6
_SHORTEST_PACKED = 512
_PACKED = 128
_SIZE_BYTES = 6


@dataclass(slots=True)
class EncodedValue:
    """A value ready to be stored: whole, or in segments."""

    kind: str
    """The serializer's type tag."""
    data: bytes
    """The whole value, or head and tail."""
    entries: Sequence[bytes] | None = None
    """The hashes of the leaves and indexes that the value is made of, in order; None if it is whole."""
    segments: Mapping[bytes, bytes] = field(default_factory=dict)
    """Hash -> bytes, not encrypted, of every leaf and index."""
    seal: Callable[[bytes], bytes] | None = None
    """Encrypts a leaf."""

    def stored(self, hash_: bytes) -> bytes:
        """Return what the row of a segment holds."""
        data = self.segments[hash_]
        if is_index(hash_):
            return data
        if self.seal is not None:
            return self.seal(data)
        packed = compress(data, _SHORTEST_PACKED)
        return b"\0" + data if packed is None else b"\1" + packed

    @property
    def leaves(self) -> dict[bytes, bytes]:
        """The segments that are no indexes."""
        return {h: data for h, data in self.segments.items() if not is_index(h)}


@dataclass(slots=True)
class SegmentedValue:
    """A value as stored, and the segments it is made of, once they are at hand."""

    thread_id: str
    kind: str
    data: bytes
    entries: Sequence[bytes]
    """The hashes of leaves and indexes, in order."""
    indexes: dict[bytes, bytes] = field(default_factory=dict)
    """Hash -> what is stored, of the indexes among them."""
    fault: str = ""
    """Why it cannot be had, if it cannot."""
    parts: list[bytes] = field(default_factory=list)
    """The leaves' bytes, not encrypted, in order."""


def is_index(hash_: bytes) -> bool:
    """Tell whether a hash is of a run of hashes."""
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
        key: What to key hashes with, if with anything.
        cipher: What to encrypt with, if at all; then there must be a key.

    Returns:
        None if the value had better be stored whole: it is short, or has no elements to cut it between.
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
    """Choose what a put sends of values' segments, and what it must see to be stored already.

    What a stored index names is stored, as long as the index is.

    Returns:
        Hash -> data of those to send, and the hashes to look for.
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
    # In one order everywhere, so that two puts that send the same cannot wait for each other.
    return dict(sorted(sent.items())), sorted(needed - sent.keys())


def _gather(leaves: Sequence[bytes], segments: dict[bytes, bytes], key: bytes | None) -> list[bytes]:
    """Make indexes of runs of hashes, add them to the segments, and return what is left to name."""
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
    """Return a stored segment's bytes, decrypted and proved to be those of its hash.

    Raises:
        ValueError: They are not; the message says why.
        Exception: Whatever the cipher raises.
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
        raise ValueError("its bytes are not those of its hash")
    return data


def join(value: SegmentedValue, decrypt: Callable[[bytes], bytes] | None) -> bytes:
    """Return the bytes of a whole value.

    Args:
        value: With its parts.
        decrypt: Decrypts what is encrypted of its data, if anything is.

    Raises:
        Exception: They are not to be had; the message says why.
    """
    size, framed = value.data[:_SIZE_BYTES], value.data[_SIZE_BYTES:]
    if decrypt is not None:
        framed = decrypt(framed)
    head, rest = framed[0], framed[1:]
    if head & _PACKED:
        head, rest = head & ~_PACKED, decompress(rest)
    # Told before they are joined: a damaged list may name one segment a million times.
    if len(rest) + sum(map(len, value.parts)) != int.from_bytes(size, "big"):
        raise ValueError("head, segments and tail do not make up the whole")
    return b"".join((rest[:head], *value.parts, rest[head:]))


# --- where to cut ---


def cut(data: bytes) -> tuple[int, list[int]] | None:
    """Find where the segments of a serialized list or dict end.

    Returns:
        Where the first begins, and where each ends, the last of them before the end of the data, where a tail is left;
        None if there are no elements, or no segment ends, or the data is no MessagePack.
    """
    ends: list[int] = []
    try:
        opened = _open(data, 0)
        if (
            opened is not None and opened[1] is None
        ):  # an object around a list, as delta channels' snapshots are
            opened = _open(data, opened[0])
        if opened is None or opened[1] is None:
            return None
        head, count = opened[0], opened[1]
        _walk(data, head, count, len(data), 1, ends)
    except (IndexError, _Malformed):
        return None
    bounds = _bounds(data, head, ends)
    return (head, bounds) if bounds else None


def _bounds(data: bytes, begin: int, ends: Iterable[int]) -> list[int]:
    """Choose where segments end among where elements do.

    One that could end does so by chance, more likely after a larger element, where the dice are the element itself, or
    the last bytes up to its end if it is tiny.
    """
    bounds: list[int] = []
    start = before = begin
    for end in ends:
        size = end - before
        if (size >= _LARGEST or end - start > _LARGEST) and before > start:
            bounds.append(before)
            start = before
        if end - start >= _SMALLEST:
            window = before if size >= _WINDOW else max(begin, end - _WINDOW)
            if size >= _LARGEST or crc32(data[window:end]) < size * _RATE:
                bounds.append(end)
                start = end
        before = end
    return bounds


# MessagePack, as far as it takes to come from one element to the next. For each first byte: how long the token is, or 0
# if its length follows, in so many bytes; and how many elements follow it.
_SIZES = [1] * 256
_FOLLOWING = [0] * 256
_WIDTHS = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xC7: 1, 0xC8: 2, 0xC9: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}
_COUNT_WIDTHS = {0xDC: 2, 0xDD: 4, 0xDE: 2, 0xDF: 4}
_EXTENSIONS = (0xC7, 0xC8, 0xC9)
for _n in range(16):
    _FOLLOWING[0x80 + _n], _FOLLOWING[0x90 + _n] = 2 * _n, _n
for _n in range(32):
    _SIZES[0xA0 + _n] = 1 + _n
for _first, _size in zip(range(0xCA, 0xD9), (5, 9, 2, 3, 5, 9, 2, 3, 5, 9, 3, 4, 6, 10, 18), strict=True):
    _SIZES[_first] = _size
for _first in (*_WIDTHS, *_COUNT_WIDTHS, 0xC1):
    _SIZES[_first] = 0


class _Malformed(Exception):
    """The data is no MessagePack."""


def _skip(data: bytes, at: int) -> int:
    """Return where the element that begins at `at` ends."""
    left = 1
    while left:
        first = data[at]
        left += _FOLLOWING[first] - 1
        if size := _SIZES[first]:
            at += size
        elif width := _WIDTHS.get(first):
            at += 1 + width + int.from_bytes(data[at + 1 : at + 1 + width], "big") + (first in _EXTENSIONS)
        elif width := _COUNT_WIDTHS.get(first):
            left += _count(data, at, width)
            at += 1 + width
        else:
            raise _Malformed
    return at


def _count(data: bytes, at: int, width: int) -> int:
    count = int.from_bytes(data[at + 1 : at + 1 + width], "big")
    return 2 * count if data[at] >= 0xDE else count


def _open(data: bytes, at: int) -> tuple[int, int | None] | None:
    """Return where a container's first element begins, and how many there are; None if it is no container.

    Their number is None for an extension, which is an element if anything.
    """
    first = data[at]
    if 0x80 <= first <= 0x9F:
        return at + 1, _FOLLOWING[first]
    if width := _COUNT_WIDTHS.get(first):
        return at + 1 + width, _count(data, at, width)
    return (at + 2 + _WIDTHS[first], None) if first in _EXTENSIONS else None


def _walk(data: bytes, at: int, count: int, end: int, depth: int, ends: list[int]) -> None:
    """Append where each of so many elements ends, and, within one that is larger than a segment, each of its own."""
    for _ in range(count):
        after = _skip(data, at)
        if after > end:
            raise _Malformed
        inside = _open(data, at) if after - at > _LARGEST and depth < _DEEPEST else None
        if inside is not None:
            so_far = len(ends)
            ends.append(inside[0])
            try:
                _walk(data, inside[0], 1 if inside[1] is None else inside[1], after, depth + 1, ends)
            except (IndexError, _Malformed):  # an extension of another kind
                del ends[so_far:]
                ends.append(after)
        else:
            ends.append(after)
        at = after
    if at != end:
        raise _Malformed

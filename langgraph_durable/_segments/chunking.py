"""Content-defined chunking: where the bytes of a serialized list or dict are cut into segments.

Why: docs/design/segments.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from zlib import crc32

_SMALLEST, _TYPICAL, _LARGEST = 1024, 4096, 65536
"""Bytes of a segment; an element beyond the largest is a segment by itself."""
_RATE = 2**32 // (_TYPICAL - _SMALLEST)
_WINDOW = 64
_DEEPEST = 6


def cut(data: bytes) -> tuple[int, list[int]] | None:
    """Find where the segments of a serialized list or dict end.

    Returns:
        Where the first segment begins, and where each ends; after the last of them a tail is left. None if there are
        no elements, if no segment ends, or if the data is not MessagePack.
    """
    ends: list[int] = []
    try:
        opened = _open(data, 0)
        if opened is not None and opened[1] is None:
            opened = _open(data, opened[0])  # an object around a list, like a delta channel's snapshot
        if opened is None or opened[1] is None:
            return None
        head, count = opened[0], opened[1]
        _walk(data, head, count, len(data), 1, ends)
    except (IndexError, _Malformed):
        return None
    bounds = _bounds(data, head, ends)
    return (head, bounds) if bounds else None


def _bounds(data: bytes, begin: int, ends: Iterable[int]) -> list[int]:
    """Choose, of the places where elements end, those where segments end.

    A hash of the element decides, or of the last bytes up to its end if it is tiny. The larger the element, the more
    likely a segment ends after it.
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


# --- MessagePack, as far as needed to find where elements end ---

# For each first byte: the length of the token, or 0 if the length follows (in _WIDTHS or _COUNT_WIDTHS bytes); and the
# number of elements that follow the token.
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
    """The data is not MessagePack."""


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
    """Return where a container's first element begins, and how many there are; None if it is not a container.

    The number is None for an extension, whose content may be one element.
    """
    first = data[at]
    if 0x80 <= first <= 0x9F:
        return at + 1, _FOLLOWING[first]
    if width := _COUNT_WIDTHS.get(first):
        return at + 1 + width, _count(data, at, width)
    return (at + 2 + _WIDTHS[first], None) if first in _EXTENSIONS else None


def _walk(data: bytes, at: int, count: int, end: int, depth: int, ends: list[int]) -> None:
    """Append where each of `count` elements ends; in one larger than a segment, also where its elements end."""
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

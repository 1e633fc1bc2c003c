"""Compression of what is stored, by zlib.

Postgres compresses too, but only rows of more than 2 KB, and with lz4, which makes little of so few bytes: prose in
segments of 3 KB shrinks to three quarters with lz4, to a half with zlib, in 60 microseconds. What is encrypted is not
compressed: its length would tell of its contents.
"""

from __future__ import annotations

import zlib

_SAMPLE = 16 << 10
_LEVEL = 6  # of small pieces; of large ones 1, which is three times as fast
_MOST = 1 << 20  # beyond, the server may do it: nobody shall wait here for more than some milliseconds


def compress(data: bytes, least: int) -> bytes | None:
    """Return data's length (4 bytes, big-endian) and the data compressed; None if that is not worth it.

    Args:
        data: At least one byte.
        least: Bytes below which it is not tried.
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
    """Return what was compressed.

    Raises:
        ValueError: It is not whole.
        zlib.error: It was not compressed so.
    """
    length = int.from_bytes(packed[:4], "big")
    if not 0 < length <= _MOST:
        raise ValueError("compressed data of a length that is never compressed")
    stream = zlib.decompressobj()
    data = stream.decompress(packed[4:], length + 1)  # no more, whatever a damaged row would make
    if not stream.eof or stream.unused_data or len(data) != length:
        raise ValueError("compressed data of another length than it says")
    return data

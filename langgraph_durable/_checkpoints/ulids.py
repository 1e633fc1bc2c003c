"""The place of a checkpoint in the order of its thread: ULIDs, and how ids become them.

The rules of the order: docs/design/ordering.md.
"""

from __future__ import annotations

import uuid

from ulid import ULID

_TICKS_PER_MS = 10_000
_TICKS_1582_TO_1970 = 0x01B21DD213814000
_ULID_LENGTH = 26


def derive_ulid(checkpoint_id: str) -> uuid.UUID | None:
    """Return the ULID (as the UUID Postgres stores) that an id holds, or None if it holds no time.

    Without loss and in order: distinct UUIDv6 give distinct ULIDs, which compare as the ids do. UUIDv7 and ULID have
    the form of a ULID. A UUIDv6 has 60 bits of 100 ns ticks since 1582, 14 of clock sequence, 48 of node:

        | milliseconds 48 | ticks within them 14 | clock sequence 14 | node 48 | 0000 |

    The spare bits are the lowest, so the successor of a derived ULID (plus one, in SQL) is not another id's place.
    """
    if len(checkpoint_id) == _ULID_LENGTH:
        return parse_ulid(checkpoint_id)
    try:
        value = uuid.UUID(checkpoint_id).int
    except ValueError:
        return None
    version = value >> 76 & 0xF
    if value >> 62 & 0b11 != 0b10:  # another variant, whose version bits mean nothing
        return None
    if version == 7:
        return uuid.UUID(int=value)
    if version != 6:
        return None
    ticks = (value >> 80 << 12 | value >> 64 & 0xFFF) - _TICKS_1582_TO_1970
    milliseconds, ticks = divmod(ticks, _TICKS_PER_MS)
    if milliseconds < 0:  # before 1970
        return None
    clock_sequence = value >> 48 & 0x3FFF
    node = value & 0xFFFF_FFFF_FFFF
    return uuid.UUID(int=milliseconds << 80 | ticks << 66 | clock_sequence << 52 | node << 4)


def parse_ulid(text: str) -> uuid.UUID | None:
    """Return a 26-character ULID as the UUID Postgres stores, or None if the text is not one."""
    if len(text) != _ULID_LENGTH:
        return None
    try:
        return uuid.UUID(bytes=ULID.from_str(text).bytes)
    except ValueError:
        return None


def format_ulid(stored: uuid.UUID) -> str:
    """Return a stored ULID as its 26 characters of Crockford base32."""
    return str(ULID.from_bytes(stored.bytes))

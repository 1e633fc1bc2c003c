"""Channel versions: a number that sorts as text, and a random part that tells branches apart."""

from __future__ import annotations

import secrets
from typing import Any

_DIGITS = 32


def next_version(current: Any) -> Any:
    """Return the version after `current`: its number plus one, and a random part.

    A first version has 32 digits, as in every other saver, so that threads can move between savers: a shorter number
    would compare as newer than theirs. A thread that began with another width keeps it, and numeric versions stay
    numbers, so that old and new compare.
    """
    if isinstance(current, (int, float)):  # from another saver
        return int(current) + 1 + secrets.randbits(52) / (1 << 52)
    digits = current.partition(".")[0] if current else "0" * _DIGITS
    return f"{int(digits) + 1:0{len(digits)}}.{secrets.randbits(52):013x}"

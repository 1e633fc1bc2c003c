"""Channel versions: a number that sorts as text, and a random part that keeps branches apart."""

from __future__ import annotations

import random
from typing import Any

_DIGITS = 32


def next_version(current: Any) -> Any:
    """Return the version after `current`: its number plus one, and a random part.

    It begins with 32 digits, as in every other saver, so that threads can move between savers. A thread that began
    with another width keeps it, and versions that are numbers stay numbers, so that old and new compare.
    """
    if isinstance(current, (int, float)):  # of a thread from another saver
        return int(current) + 1 + random.random()  # noqa: S311 (unique, not secret)
    digits = current.partition(".")[0] if current else "0" * _DIGITS
    return f"{int(digits) + 1:0{len(digits)}}.{random.getrandbits(52):013x}"

"""Channel versions: a number that sorts as text, and a random part that keeps branches apart."""

from __future__ import annotations

import random
from typing import Any


def next_version(current: Any) -> Any:
    """Return the version after `current`: its number plus one, and a random part.

    A version from another saver keeps its width, or stays a number, so that old and new compare.
    """
    if isinstance(current, (int, float)):  # of a thread from another saver
        return int(current) + 1 + random.random()  # noqa: S311 (unique, not secret)
    digits = current.partition(".")[0] if current else "0000000000"
    return f"{int(digits) + 1:0{len(digits)}}.{random.getrandbits(52):013x}"

"""TODO."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

# --- columns and arrays as Postgres reads them ---


def _array(value: Any) -> str:
    if isinstance(value, int):
        return str(value)
    if not value:
        return "{}"
    first = value[0]
    if first is None:
        first = next((element for element in value if element is not None), None)
    return text_array(value) if isinstance(first, str) else number_array(value)


def text_array(texts: Sequence[str | None]) -> str:
    """Write an array of texts.

    Raises:
        ValueError: One has a NUL, which no text in Postgres can.
    """
    if not texts:
        return "{}"
    if None in texts:
        return "{" + ",".join("NULL" if text is None else text_array([text])[1:-1] for text in texts) + "}"
    joined = "\0".join(cast("Sequence[str]", texts))
    if joined.count("\0") >= len(texts):
        raise ValueError(f"a NUL character cannot be stored in Postgres: {joined!r:.200}")
    escaped = joined.replace("\\", "\\\\").replace('"', '\\"').replace("\0", '","')
    return f'{{"{escaped}"}}'


def number_array(numbers: list[int | None] | list[int]) -> str:
    """Write an array of numbers."""
    return f"{{{str(numbers)[1:-1]}}}".replace("None", "NULL")

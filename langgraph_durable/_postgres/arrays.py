"""Arrays in Postgres's text format: `{1,2}`, `{"a","b"}`.

Written at once, where psycopg's dumper calls another one for each element.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast


def dump_array(value: Any) -> str:
    """Return a number, or a sequence of texts or of numbers, as Postgres reads it."""
    if isinstance(value, int):
        return str(value)
    if not value:
        return "{}"
    first = value[0]
    if first is None:
        first = next((element for element in value if element is not None), None)
    return text_array(value) if isinstance(first, str) else number_array(value)


def text_array(texts: Sequence[str | None]) -> str:
    """Return a `text[]`.

    Raises:
        ValueError: A text contains NUL, which Postgres cannot store.
    """
    if not texts:
        return "{}"
    if None in texts:
        return "{" + ",".join("NULL" if text is None else text_array([text])[1:-1] for text in texts) + "}"
    joined = "\0".join(cast("Sequence[str]", texts))
    if joined.count("\0") >= len(texts):
        raise ValueError(f"Postgres cannot store a NUL character. It is in {joined!r:.200}. Remove it.")
    escaped = joined.replace("\\", "\\\\").replace('"', '\\"').replace("\0", '","')
    return f'{{"{escaped}"}}'


def number_array(numbers: list[int | None] | list[int]) -> str:
    """Return an `int[]` or `bigint[]`."""
    return f"{{{str(numbers)[1:-1]}}}".replace("None", "NULL")

"""Rows as parameters of a statement that stores one row or many (RowsStatement)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import orjson

from langgraph_durable._postgres.arrays import dump_array, number_array
from langgraph_durable._postgres.statement import RowsStatement, Statement

Column = Any
"""A text, a number, None, or a sequence of texts and None, or of numbers and None."""


@dataclass(slots=True)
class SentRow:
    """A row to be sent, alone or in a batch."""

    columns: dict[str, Column] = field(default_factory=dict)
    parts: list[bytes] = field(default_factory=list)
    """The row's bytes, sent as one parameter; columns hold offsets and sizes."""
    size: int = 0
    """Total size of `parts`."""
    packed: bytes = b""
    """The columns as JSON, after `pack`."""

    def add_bytes(self, part: bytes) -> int:
        """Add bytes, and return their offset."""
        at = self.size
        self.parts.append(part)
        self.size += len(part)
        return at

    def add_parts(self, name: str, parts: Sequence[bytes | None]) -> None:
        """Add several; their offsets go into `<name>_ats`, sizes into `<name>_sizes`."""
        self.columns[f"{name}_ats"] = [p if p is None else self.add_bytes(p) for p in parts]
        self.columns[f"{name}_sizes"] = [p if p is None else len(p) for p in parts]

    def pack(self) -> None:
        """Replace the columns by JSON: many waiting rows with many lists slow the garbage collector down."""
        self.packed, self.columns = orjson.dumps(self.columns), {}

    def params(self) -> dict[str, Any]:
        """Return the parameters of a statement for this row alone."""
        columns: dict[str, Column] = orjson.loads(self.packed) if self.packed else self.columns
        params: dict[str, Any] = {
            name: value if value is None or isinstance(value, str) else dump_array(value)
            for name, value in columns.items()
        }
        params["bytes"] = b"".join(self.parts)
        return params


def gather(rows: Sequence[SentRow]) -> dict[str, Any]:
    """Return a statement's parameters for several rows of the same columns."""
    return {
        "rows": f"[{','.join([(row.packed or orjson.dumps(row.columns)).decode() for row in rows])}]",
        "base": number_array([*accumulate([0, *(row.size for row in rows[:-1])])]),
        "bytes": b"".join([part for row in rows for part in row.parts]),
    }


def storing(statement: RowsStatement, rows: Sequence[SentRow]) -> tuple[Statement, dict[str, Any]]:
    """Return the statement that stores one row or several, with its parameters."""
    if len(rows) == 1 and statement.one is not None:
        return statement.one, rows[0].params()
    return statement.many, gather(rows)

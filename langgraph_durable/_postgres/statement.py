"""SQL statements, and the parameters that they are sent with.

Statements are constants, loaded from .sql files, in which only the schema's name is filled in. Rows to be stored are
one set of parameters alone, and another in a batch (RowsStatement).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import resources
from itertools import accumulate, count
from typing import Any, NamedTuple, cast

import orjson
from psycopg import sql
from typing_extensions import LiteralString

Row = tuple[Any, ...]
Params = Sequence[Any] | Mapping[str, Any] | None


class Statement:
    """The text of a SQL statement.

    `{schema}` is the schema's name as an identifier, `{schema_name}` as a literal. Parameters are `%(name)s`, from a
    mapping, or `%s`, from a sequence.
    """

    __slots__ = ("text",)

    def __init__(self, text: LiteralString) -> None:
        self.text: LiteralString = text


Call = tuple[Statement, Params]


class Rendered(NamedTuple):
    """A statement as it is sent, with parameters `$1`, `$2`, ..."""

    query: bytes
    names: tuple[str, ...]
    """The parameters' names in the order of their numbers; empty if they have none."""

    def arguments(self, params: Sequence[Any] | Mapping[str, Any] | None) -> Sequence[Any]:
        """Return the parameters in the order of their numbers."""
        return [params[name] for name in self.names] if isinstance(params, Mapping) else params or ()


_COMMENT_LINE = re.compile(r"^[ \t]*--.*\n", re.MULTILINE)
_PLACEHOLDER = re.compile(r"\{\{(schema|schema_name|given)\}\}")
_PARAMETER = re.compile(r"%(?:\((\w+)\))?s")


@lru_cache(maxsize=4096)
def render(statement: Statement, schema: str) -> Rendered:
    """Return a statement for a schema. Cached: psycopg would parse the text at each call."""
    names: dict[str, int] = {}
    unnamed = count(1)

    def number(match: re.Match[str]) -> str:
        return f"${names.setdefault(match[1], len(names) + 1) if match[1] else next(unnamed)}"

    text = _PARAMETER.sub(number, statement.text)
    return Rendered(_format(cast("Any", text), schema), tuple(names))


def render_script(statement: Statement, schema: str) -> bytes:
    """Return the text of one or several statements without parameters, for a schema."""
    return _format(statement.text, schema)


def _format(text: LiteralString, schema: str) -> bytes:
    return sql.SQL(text).format(schema=sql.Identifier(schema), schema_name=sql.Literal(schema)).as_bytes(None)


# --- statements in .sql files ---


def load(package: str | None, name: str) -> Statement:
    """Return the statement in `sql/<name>.sql` of a package (`__package__`).

    Whole-line comments are removed. `{schema}` and `{schema_name}` are filled in. Other braces are text.
    """
    literal: Any = _read(package, name)  # a file of this package is as literal as its code
    return Statement(literal)


def load_rows(package: str | None, name: str, columns: Mapping[str, str]) -> RowsStatement:
    """Return the statement in `sql/<name>.sql` of a package in both forms; see RowsStatement."""
    return RowsStatement.of_columns(columns, _read(package, name))


def _read(package: str | None, name: str) -> str:
    text = (resources.files(cast("str", package)) / "sql" / f"{name}.sql").read_text(encoding="utf-8")
    text = _COMMENT_LINE.sub("", text).strip()
    for brace in "{}":
        text = text.replace(brace, brace * 2)
    return _PLACEHOLDER.sub(r"{\1}", text)


# --- statements that store rows ---


class RowsStatement:
    """A statement that stores rows.

    `one` takes a row's columns as parameters, `many` takes rows as JSON. Without `one`, a single one does too.
    """

    __slots__ = ("many", "one")

    def __init__(self, one: Statement | None, many: Statement) -> None:
        self.one = one
        self.many = many

    @classmethod
    def of_columns(cls, columns: Mapping[str, str], text: str) -> RowsStatement:
        """Make both forms from a text that begins `WITH given AS {given}`.

        Args:
            columns: The columns of `given`, name -> type. It also has `number`, the row's number from 1, and `base`,
                the offset of the row's bytes in `%(bytes)s`.
            text: The statement.
        """
        one = ", ".join(f"%({name})s::{kind} AS {name}" for name, kind in columns.items())
        # Not materialized, so that the planner inlines the row: a put takes 10 % less in the executor.
        alone = _given(text, f"NOT MATERIALIZED (SELECT 1 AS number, 0 AS base, {one})")
        typed = ", ".join(f"{name} {kind}" for name, kind in columns.items())
        rows = f"ROWS FROM (json_to_recordset(%(rows)s::json) AS ({typed}), unnest(%(base)s::int[]))"
        names = ", ".join(columns)
        many = f"SELECT * FROM {rows} WITH ORDINALITY AS given ({names}, base, number)"  # noqa: S608 (constants)
        return cls(alone, _given(text, f"MATERIALIZED ({many})"))


def _given(text: str, source: str) -> Statement:
    literal: Any = text.replace("{given}", source)  # both are constants of this package
    return Statement(literal)


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


def storing(statement: RowsStatement, rows: Sequence[SentRow]) -> Call:
    """Return the statement that stores one row or several, with its parameters."""
    if len(rows) == 1 and statement.one is not None:
        return statement.one, rows[0].params()
    return statement.many, gather(rows)


# --- arrays ---

# In Postgres's text format: `{1,2}`, `{"a","b"}`. Written at once, where psycopg's dumper calls another one for each
# element.


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

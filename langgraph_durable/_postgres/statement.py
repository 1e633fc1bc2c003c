"""What a SQL statement is here, a constant in which only the schema's name is filled in; and those of locks and schema.

The others are in _put_statements, _get_statements, _retention_statements, _reading_statements (those who wait, the
timeline), _storage_statements and _effect_statements.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib import resources
from itertools import count
from typing import Any, NamedTuple, cast

from psycopg import sql
from typing_extensions import LiteralString


class Statement:
    """A statement's text, with `{schema}` where the schema's name goes and `{schema_name}` for it as text.

    Its parameters are `%(name)s`, taken from a mapping, or `%s`, taken from a sequence.
    """

    __slots__ = ("text",)

    def __init__(self, text: LiteralString) -> None:
        self.text: LiteralString = text


class Rendered(NamedTuple):
    """A statement as Postgres reads it, with `$1` and so on."""

    query: bytes
    names: tuple[str, ...]
    """Of its parameters, in their order; none if they have no names."""

    def arguments(self, params: Sequence[Any] | Mapping[str, Any] | None) -> Sequence[Any]:
        """Return the parameters in the order of their numbers."""
        return [params[name] for name in self.names] if isinstance(params, Mapping) else params or ()


_COMMENT_LINE = re.compile(r"^[ \t]*--.*\n", re.MULTILINE)
_PLACEHOLDER = re.compile(r"\{\{(schema|schema_name|given)\}\}")
_PARAMETER = re.compile(r"%(?:\((\w+)\))?s")


@lru_cache(maxsize=4096)
def render(statement: Statement, schema: str) -> Rendered:
    """Return a statement for a schema, its parameters numbered: done once, where psycopg would at each call."""
    names: dict[str, int] = {}
    unnamed = count(1)

    def number(match: re.Match[str]) -> str:
        return f"${names.setdefault(match[1], len(names) + 1) if match[1] else next(unnamed)}"

    text = _PARAMETER.sub(number, statement.text)
    return Rendered(_format(cast("Any", text), schema), tuple(names))


def render_script(statement: Statement, schema: str) -> bytes:
    """Return the text of a statement without parameters, or of several, for a schema."""
    return _format(statement.text, schema)


def _format(text: LiteralString, schema: str) -> bytes:
    return sql.SQL(text).format(schema=sql.Identifier(schema), schema_name=sql.Literal(schema)).as_bytes(None)


class RowsStatement:
    """A statement that stores rows: `one` takes a row whose columns are parameters, `many` takes rows as JSON."""

    __slots__ = ("many", "one")

    def __init__(self, columns: Mapping[str, str], text: str) -> None:
        """Make both forms of a text that begins `WITH given AS {given}`.

        Args:
            columns: The columns of `given`, name -> type. It also has a row's number, counted from 1, and `base`,
                the place in `%(bytes)s` at which the row's bytes begin.
            text: The statement.
        """
        one = ", ".join(f"%({name})s::{kind} AS {name}" for name, kind in columns.items())
        # Not materialized: one row's columns go where they are used, which spares the executor 10 % of a put.
        self.one = _given(text, f"NOT MATERIALIZED (SELECT 1 AS number, 0 AS base, {one})")
        typed = ", ".join(f"{name} {kind}" for name, kind in columns.items())
        rows = f"ROWS FROM (json_to_recordset(%(rows)s::json) AS ({typed}), unnest(%(base)s::int[]))"
        names = ", ".join(columns)
        many = f"SELECT * FROM {rows} WITH ORDINALITY AS given ({names}, base, number)"
        self.many = _given(text, f"MATERIALIZED ({many})")


def _given(text: str, source: str) -> Statement:
    literal: Any = text.replace("{given}", source)  # both are constants of this package
    return Statement(literal)


# --- statements in .sql files ---


def load(package: str | None, name: str) -> Statement:
    """Return the statement in `sql/<name>.sql` of a package, as it is in the file but for whole-line comments.

    `{schema}` and `{schema_name}` are filled in as in any Statement; other braces stand for themselves.
    """
    literal: Any = _read(package, name)  # a file of this package is as literal as its code
    return Statement(literal)


def load_rows(package: str | None, name: str, columns: Mapping[str, str]) -> RowsStatement:
    """Return the statement in `sql/<name>.sql` of a package that stores one row or many; see RowsStatement."""
    return RowsStatement(columns, _read(package, name))


def _read(package: str | None, name: str) -> str:
    text = (resources.files(cast("str", package)) / "sql" / f"{name}.sql").read_text(encoding="utf-8")
    text = _COMMENT_LINE.sub("", text).strip()
    for brace in "{}":
        text = text.replace(brace, brace * 2)
    return _PLACEHOLDER.sub(r"{\1}", text)

"""SQL statements: constants, loaded from .sql files, in which only the schema's name is filled in."""

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
    """The text of a SQL statement.

    `{schema}` is the schema's name as an identifier, `{schema_name}` as a literal. Parameters are `%(name)s`, from a
    mapping, or `%s`, from a sequence.
    """

    __slots__ = ("text",)

    def __init__(self, text: LiteralString) -> None:
        self.text: LiteralString = text


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

"""What a SQL statement is here, a constant in which only the schema's name is filled in; and those of locks and schema.

The others are in _put_statements, _get_statements, _retention_statements, _reading_statements (those who wait, the
timeline), _storage_statements and _effect_statements.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
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
    """A statement that stores rows: one row, whose columns are its parameters, or any number, as JSON."""

    __slots__ = ("many", "one")

    def __init__(self, columns: Mapping[LiteralString, LiteralString], *text: LiteralString) -> None:
        """Make both from the text that follows `WITH given AS (...)`, whose rows have a number, a base and columns."""
        one = ", ".join([f"%({name})s::{kind} AS {name}" for name, kind in columns.items()])
        typed = ", ".join([f"{name} {kind}" for name, kind in columns.items()])
        names = ", ".join(columns)
        # One row's columns are put where they are used, which spares the executor 10 % of a put.
        self.one = Statement(
            "".join(["WITH given AS NOT MATERIALIZED (SELECT 1 AS number, 0 AS base, ", one, ")", *text])
        )
        rows = ("ROWS FROM (json_to_recordset(%(rows)s::json) AS (", typed, "), unnest(%(base)s::int[]))")
        given = ("SELECT * FROM ", *rows, " WITH ORDINALITY AS given (", names, ", base, number)")
        self.many = Statement("".join(("WITH given AS MATERIALIZED (", *given, ")", *text)))


# --- locks: transaction-scoped only, so that they hold behind pgbouncer and go with their transaction ---

LOCK_SETUP = Statement("SELECT pg_advisory_xact_lock(hashtextextended('setup ' || {schema_name}, 0))")

LOCK_THREADS_SHARED = Statement("""
SELECT pg_advisory_xact_lock_shared(hashtextextended({schema_name} || ' ' || t, 0)) FROM unnest(%s::text[]) AS t
""")

# As the startup options of our own connections do, which a pooler may refuse or drop. A batch's rows the planner even
# takes for so many that it would compile the statement, and plan it anew each time. NULL leaves a setting as it is.
_SET_PLANNING: LiteralString = """set_config('jit', coalesce(%(jit)s::text, current_setting('jit')), true),
    set_config('plan_cache_mode', coalesce(%(plan_cache_mode)s::text, current_setting('plan_cache_mode')), true)
"""

SET_FOR_BATCH = Statement("SELECT set_config('lock_timeout', %(lock_timeout)s::text, true), " + _SET_PLANNING)

LOCK_THREAD_SHARED_AND_SET_PLANNING = Statement(
    "SELECT pg_advisory_xact_lock_shared(hashtextextended({schema_name} || ' ' || %(thread)s::text, 0)), "
    + _SET_PLANNING
)

LOCK_THREAD = Statement("SELECT pg_advisory_xact_lock(hashtextextended({schema_name} || ' ' || %s::text, 0))")


# --- schema ---

# Not to_regnamespace and to_regclass: in a transaction that waited for an advisory lock, their caches still hold
# what was there before. The cast to name cuts a long name as CREATE does.
FIND_SCHEMA = Statement(
    "SELECT EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = {schema_name}::name)"
)

FIND_MIGRATIONS_TABLE = Statement("""
SELECT EXISTS (
    SELECT FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = {schema_name}::name AND c.relname = 'schema_migrations'
)
""")

CREATE_SCHEMA = Statement("CREATE SCHEMA {schema}")

CREATE_MIGRATIONS_TABLE = Statement("""
CREATE TABLE {schema}.schema_migrations (
    version integer PRIMARY KEY,
    name text NOT NULL,
    checksum text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now()
)
""")

LIST_MIGRATIONS = Statement("SELECT version, name, checksum FROM {schema}.schema_migrations ORDER BY version")

RECORD_MIGRATION = Statement(
    "INSERT INTO {schema}.schema_migrations (version, name, checksum) VALUES (%s, %s, %s)"
)

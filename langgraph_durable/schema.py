"""The database schema: its default name, and the SQL of its migrations."""

from __future__ import annotations

from psycopg.sql import SQL, Identifier, Literal

from langgraph_durable._postgres.migrate import (
    CREATE_MIGRATIONS_TABLE,
    CREATE_SCHEMA,
    RECORD_MIGRATION,
    REQUIRE_VERSION,
    Migration,
    migrations,
)
from langgraph_durable._postgres.statement import Statement, render_script
from langgraph_durable._validation import require_schema
from langgraph_durable.errors import InvalidConfigError

__all__ = ["DEFAULT_SCHEMA", "schema_sql"]

DEFAULT_SCHEMA = "langgraph_durable"


def schema_sql(schema: str = DEFAULT_SCHEMA, *, from_version: int | None = None) -> str:
    """Return the SQL that `setup` runs, to be run by another role.

    Args:
        schema: The schema's name.
        from_version: The migration that the database has, for an upgrade; None for an empty database. The SQL fails,
            and changes nothing, unless it is the last one applied.

    Raises:
        InvalidConfigError: `schema` is not a valid schema name, or there is no such migration.
    """
    schema = require_schema(schema)
    newest = migrations()[-1].version
    if from_version is None:
        parts = [
            "-- langgraph_durable: run once, as a role that may create schemas.\nBEGIN;\n"
            f"{_text(CREATE_SCHEMA, schema)};\n{_text(CREATE_MIGRATIONS_TABLE, schema)};\n"
        ]
    elif (
        isinstance(from_version, bool) or not isinstance(from_version, int) or not 1 <= from_version <= newest
    ):
        raise InvalidConfigError(
            f"from_version must be a migration of this package, 1 to {newest}, got {from_version!r:.100}"
        )
    else:
        parts = [
            f"-- langgraph_durable: from migration {from_version} to {newest}, as the owner of the tables.\nBEGIN;\n"
            f"{_filled_in(REQUIRE_VERSION, schema, [from_version, from_version])};\n"
        ]
    for migration in migrations():
        if migration.version > (from_version or 0):
            parts.append(f"{_text(migration.statement, schema)}\n{_record(migration, schema)};\n")
    return "\n".join(parts) + "COMMIT;\n"


def _text(statement: Statement, schema: str) -> str:
    return render_script(statement, schema).decode().strip()


def _record(migration: Migration, schema: str) -> str:
    return _filled_in(RECORD_MIGRATION, schema, [migration.version, migration.name, migration.checksum])


def _filled_in(statement: Statement, schema: str, values: list[int | str]) -> str:
    template = SQL(statement.text.replace("%s", "{}"))
    return template.format(*map(Literal, values), schema=Identifier(schema)).as_string(None).strip()

"""The database schema: its default name, and the SQL of its migrations."""

from __future__ import annotations

from psycopg.sql import SQL, Identifier, Literal

from langgraph_durable._postgres.migrate import (
    CREATE_MIGRATIONS_TABLE,
    CREATE_SCHEMA,
    RECORD_MIGRATION,
    Migration,
    migrations,
)
from langgraph_durable._postgres.statement import Statement, render_script
from langgraph_durable._validation import require_schema

__all__ = ["DEFAULT_SCHEMA", "schema_sql"]

DEFAULT_SCHEMA = "langgraph_durable"


def schema_sql(schema: str = DEFAULT_SCHEMA) -> str:
    """Return the SQL that `setup` runs on an empty database, to be run by another role.

    Raises:
        InvalidConfigError: `schema` is not a valid schema name.
    """
    schema = require_schema(schema)
    parts = [
        f"-- langgraph_durable: run once, as a role that may create schemas.\nBEGIN;\n"
        f"{_text(CREATE_SCHEMA, schema)};\n{_text(CREATE_MIGRATIONS_TABLE, schema)};\n"
    ]
    for migration in migrations():
        parts.append(f"{_text(migration.statement, schema)}\n{_record(migration, schema)};\n")
    return "\n".join(parts) + "COMMIT;\n"


def _text(statement: Statement, schema: str) -> str:
    return render_script(statement, schema).decode().strip()


def _record(migration: Migration, schema: str) -> str:
    values = [Literal(value) for value in (migration.version, migration.name, migration.checksum)]
    template = SQL(RECORD_MIGRATION.text.replace("%s", "{}"))
    return template.format(*values, schema=Identifier(schema)).as_string(None)

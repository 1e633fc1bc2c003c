"""The database schema: its migrations, applied, verified and printed.

Migrations are the numbered SQL files in `migrations/`. Each is applied once, in order, and recorded with its
checksum; a landed one is never edited. All of it happens in one transaction under an advisory lock, so any number
of processes may set up at once, and a set-up inside a caller's transaction is the caller's to commit.
"""

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

DEFAULT_SCHEMA = "langgraph_durable"


def schema_sql(schema: str = DEFAULT_SCHEMA) -> str:
    """Return the SQL that `setup` would run on an empty database, for roles that may not create.

    Raises:
        InvalidConfigError: `schema` cannot be a schema's name.
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

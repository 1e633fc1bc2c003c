"""The database schema: its migrations, applied, verified and printed.

Migrations are the numbered SQL files in `migrations/`. Each is applied once, in order, and recorded with its
checksum; a landed one is never edited. All of it happens in one transaction under an advisory lock, so any number
of processes may set up at once, and a set-up inside a caller's transaction is the caller's to commit.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from typing import Any

from psycopg.errors import DuplicateSchema, DuplicateTable, UniqueViolation
from psycopg.sql import SQL, Identifier, Literal

from langgraph_durable import _statements as sql
from langgraph_durable._config import require_schema
from langgraph_durable._database import Database
from langgraph_durable._sessions import Session
from langgraph_durable._statements import Statement, render_script
from langgraph_durable.errors import InvalidConfig, SchemaOutOfDate

DEFAULT_SCHEMA = "langgraph_durable"

_OLDEST_SERVER = 140000


@dataclass(frozen=True, slots=True)
class Migration:
    """One numbered step of the schema."""

    version: int
    name: str
    statement: Statement

    @property
    def checksum(self) -> str:
        """The sha256 of its text, in hex, before the schema's name is filled in."""
        return hashlib.sha256(self.statement.text.encode()).hexdigest()


@lru_cache(maxsize=1)
def migrations() -> tuple[Migration, ...]:
    """Return this package's migrations, oldest first."""
    found = []
    for file in resources.files("langgraph_durable").joinpath("migrations").iterdir():
        if match := re.fullmatch(r"(\d{4})_(\w+)\.sql", file.name):
            # A file of this package is as literal as its code.
            text: Any = file.read_text(encoding="utf-8")
            found.append(Migration(int(match[1]), match[2], Statement(text)))
    return tuple(sorted(found, key=lambda m: m.version))


def schema_sql(schema: str = DEFAULT_SCHEMA) -> str:
    """Return the SQL that `setup` would run on an empty database, for roles that may not create.

    Raises:
        InvalidConfig: `schema` cannot be a schema's name.
    """
    schema = require_schema(schema)
    parts = [
        f"-- langgraph_durable: run once, as a role that may create schemas.\nBEGIN;\n"
        f"{_text(sql.CREATE_SCHEMA, schema)};\n{_text(sql.CREATE_MIGRATIONS_TABLE, schema)};\n"
    ]
    for migration in migrations():
        parts.append(f"{_text(migration.statement, schema)}\n{_record(migration, schema)};\n")
    return "\n".join(parts) + "COMMIT;\n"


def _text(statement: Statement, schema: str) -> str:
    return render_script(statement, schema).decode().strip()


def _record(migration: Migration, schema: str) -> str:
    values = [Literal(value) for value in (migration.version, migration.name, migration.checksum)]
    template = SQL(sql.RECORD_MIGRATION.text.replace("%s", "{}"))
    return template.format(*values, schema=Identifier(schema)).as_string(None)


async def set_up(db: Database) -> None:
    """Create or migrate the tables; does nothing, and needs no rights, if they are current.

    Raises:
        SchemaOutOfDate: They are newer than this package, or were made by something else.
    """

    async def work(session: Session) -> None:
        _require_server(session)
        _require_encoding(session)
        if _missing(await _applied(session), db.schema):
            await session.fetch(sql.LOCK_SETUP)
            await _migrate(session, db.schema)

    try:
        await db.run_unchecked(work, transaction=True)
    except (DuplicateSchema, DuplicateTable, UniqueViolation):
        # Where transactions are repeatable read or stricter by default, what another process made while this
        # one waited for the lock is seen by the next transaction only.
        await db.run_unchecked(work, transaction=True)


async def verify(db: Database) -> None:
    """Check that the tables are those of this package.

    Raises:
        SchemaOutOfDate: They are not; the message names the remedy.
    """
    await db.run_unchecked(lambda session: check_schema(session, db.schema))


async def check_schema(session: Session, schema: str) -> None:
    """Check, on a session, that the tables are those of this package.

    Raises:
        SchemaOutOfDate: They are not; the message names the remedy.
        InvalidConfig: The server is too old, or the connection cannot carry all text.
    """
    _require_server(session)
    _require_encoding(session)
    applied = await _applied(session)
    if applied is None:
        raise SchemaOutOfDate(
            f"schema {schema!r} is not set up for langgraph_durable: call saver.setup() (or asetup()) once, or "
            "apply the SQL that `python -m langgraph_durable schema` prints"
        )
    if missing := _missing(applied, schema):
        raise SchemaOutOfDate(
            f"schema {schema!r} lacks migration {missing[0].version} ({missing[0].name}) of langgraph_durable: "
            "call saver.setup() (or asetup()) once to apply it"
        )


async def _applied(session: Session) -> dict[int, tuple[str, str]] | None:
    """Return version -> (name, checksum) of what is applied, or None if nothing ever was."""
    [(found,)] = await session.fetch(sql.FIND_MIGRATIONS_TABLE)
    if not found:
        return None
    return {version: (name, checksum) for version, name, checksum in await session.fetch(sql.LIST_MIGRATIONS)}


def _missing(applied: dict[int, tuple[str, str]] | None, schema: str) -> list[Migration]:
    applied = applied or {}
    ours = migrations()
    if applied and max(applied) > ours[-1].version:
        raise SchemaOutOfDate(
            f"schema {schema!r} is at migration {max(applied)}, newer than this langgraph_durable, which knows "
            f"{ours[-1].version}: upgrade the package (pip install -U langgraph-durable)"
        )
    for migration in ours:
        if applied.get(migration.version, ("", migration.checksum))[1] != migration.checksum:
            raise SchemaOutOfDate(
                f"migration {migration.version} ({migration.name}) was applied to schema {schema!r} from another "
                "text than this package's: point schema= at one that this package made"
            )
    return [migration for migration in ours if migration.version not in applied]


async def _migrate(session: Session, schema: str) -> None:
    # Asked again under the lock: another process may have been first.
    applied = await _applied(session)
    if applied is None:
        [(found,)] = await session.fetch(sql.FIND_SCHEMA)
        if not found:
            await session.fetch(sql.CREATE_SCHEMA)
        await session.fetch(sql.CREATE_MIGRATIONS_TABLE)
    for migration in _missing(applied, schema):
        await session.execute_script(render_script(migration.statement, schema))
        await session.fetch(sql.RECORD_MIGRATION, (migration.version, migration.name, migration.checksum))


def _require_server(session: Session) -> None:
    if session.server_version < _OLDEST_SERVER:
        raise InvalidConfig(
            f"the server is Postgres {session.server_version // 10000}: langgraph_durable needs 14 or newer"
        )


def _require_encoding(session: Session) -> None:
    if (session.client_encoding or "UTF8").upper() not in ("UTF8", "UTF-8"):
        raise InvalidConfig(
            f"the connection's client_encoding is {session.client_encoding}, which cannot carry all text: put "
            "client_encoding=utf8 into the connection string of the pool or connection given to the saver"
        )

"""Migrations: numbered SQL files, applied in order, each recorded with its checksum.

All of it happens in one transaction under an advisory lock, so any number of processes may set up at once.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from typing import Any, NamedTuple

from psycopg.errors import DuplicateSchema, DuplicateTable, UniqueViolation

from langgraph_durable._metrics import measured
from langgraph_durable._postgres.database import Database, Session
from langgraph_durable._postgres.statement import Statement, load, render_script
from langgraph_durable.errors import ConnectionFailedError, InvalidConfigError, SchemaOutOfDateError

_OLDEST_SERVER = 140000

CREATE_SCHEMA = load(__package__, "create_schema")
CREATE_MIGRATIONS_TABLE = load(__package__, "create_migrations_table")
RECORD_MIGRATION = load(__package__, "record_migration")
_LOCK_SETUP = load(__package__, "lock_setup")
_FIND_SCHEMA = load(__package__, "find_schema")
_FIND_MIGRATIONS_TABLE = load(__package__, "find_migrations_table")
_LIST_MIGRATIONS = load(__package__, "list_migrations")


@dataclass(frozen=True, slots=True)
class Migration:
    """One numbered migration."""

    version: int
    name: str
    statement: Statement

    @property
    def makes_functions(self) -> bool:
        """Whether the migration only makes functions, so that it may run again."""
        return self.name.startswith("functions")

    @property
    def checksum(self) -> str:
        """The sha256 of the file's text, in hex, before the schema's name is filled in."""
        return hashlib.sha256(self.statement.text.encode()).hexdigest()


class _Applied(NamedTuple):
    recorded: dict[int, tuple[str, str]]
    """Version -> (name, checksum)."""
    renamed: bool
    """Whether the schema's functions name another schema: it was renamed since they were made."""


@lru_cache(maxsize=1)
def migrations() -> tuple[Migration, ...]:
    """Return this package's migrations, oldest first."""
    found = []
    for file in resources.files("langgraph_durable").joinpath("migrations").iterdir():
        if match := re.fullmatch(r"(\d{4})_(\w+)\.sql", file.name):
            text: Any = file.read_text(encoding="utf-8")  # a file of this package is as literal as its code
            found.append(Migration(int(match[1]), match[2], Statement(text)))
    return tuple(sorted(found, key=lambda m: m.version))


@measured("setup")
async def set_up(db: Database, *, verify_only: bool) -> None:
    """Create or migrate the tables, or, with `verify_only`, only check them; see DurableSaver.setup."""
    await (verify(db) if verify_only else _apply(db))


async def _apply(db: Database) -> None:
    """Create or migrate the tables. Needs no privileges if they are current.

    Raises:
        SchemaOutOfDateError: The tables are newer than this package, or another package made them.
    """

    async def work(session: Session) -> None:
        _require_server(session)
        _require_encoding(session)
        if _missing(await _applied(session), db.schema):
            await session.fetch(_LOCK_SETUP)
            await _migrate(session, db.schema)

    try:
        await db.run_unchecked(work, transaction=True)
    except (DuplicateSchema, DuplicateTable, UniqueViolation):
        # If transactions are repeatable read by default, only the next one sees what another process created
        # while this one waited for the lock.
        await db.run_unchecked(work, transaction=True)


async def verify(db: Database) -> None:
    """Check that the tables match this package.

    Raises:
        SchemaOutOfDateError: They do not.
    """
    await db.run_unchecked(lambda session: check_schema(session, db.schema))


async def check_schema(session: Session, schema: str) -> None:
    """Check on a session that the tables match this package.

    Raises:
        SchemaOutOfDateError: They do not.
        ConnectionFailedError: The server is too old.
        InvalidConfigError: The connection's encoding is not UTF-8.
    """
    _require_server(session)
    _require_encoding(session)
    applied = await _applied(session)
    if applied is None:
        raise SchemaOutOfDateError(
            f"schema {schema!r} is not set up for langgraph_durable. Call saver.setup() (or asetup()) once, or "
            "apply the SQL that `python -m langgraph_durable schema` prints."
        )
    missing = _missing(applied, schema)
    if applied.renamed:
        raise SchemaOutOfDateError(
            f"schema {schema!r} was renamed, and its functions still name the former schema. Call saver.setup() (or "
            "asetup()) once to make them again."
        )
    if missing:
        raise SchemaOutOfDateError(
            f"schema {schema!r} lacks migration {missing[0].version} ({missing[0].name}) of langgraph_durable. "
            "Call saver.setup() (or asetup()) once to apply it."
        )


async def _applied(session: Session) -> _Applied | None:
    """Return which migrations were applied; None if there is no table of them."""
    [(found, renamed)] = await session.fetch(_FIND_MIGRATIONS_TABLE)
    if not found:
        return None
    rows = await session.fetch(_LIST_MIGRATIONS)
    return _Applied({version: (name, checksum) for version, name, checksum in rows}, renamed)


def _missing(applied: _Applied | None, schema: str) -> list[Migration]:
    """Return the migrations to run. Those of functions run again after the schema was renamed."""
    recorded, renamed = applied or _Applied({}, renamed=False)
    ours = migrations()
    if recorded and max(recorded) > ours[-1].version:
        raise SchemaOutOfDateError(
            f"schema {schema!r} is at migration {max(recorded)}, newer than this langgraph_durable, which knows "
            f"{ours[-1].version}. Upgrade the package: pip install -U langgraph-durable."
        )
    for migration in ours:
        if recorded.get(migration.version, ("", migration.checksum))[1] != migration.checksum:
            raise SchemaOutOfDateError(
                f"migration {migration.version} ({migration.name}) was applied to schema {schema!r} from another "
                "text than this package's. Use a schema= that this package created."
            )
    return [m for m in ours if m.version not in recorded or (renamed and m.makes_functions)]


async def _migrate(session: Session, schema: str) -> None:
    # Read again under the lock, since another process may have been first.
    applied = await _applied(session)
    if applied is None:
        [(found,)] = await session.fetch(_FIND_SCHEMA)
        if not found:
            await session.fetch(CREATE_SCHEMA)
        await session.fetch(CREATE_MIGRATIONS_TABLE)
    for migration in _missing(applied, schema):
        await session.execute_script(render_script(migration.statement, schema))
        if applied is None or migration.version not in applied.recorded:
            await session.fetch(RECORD_MIGRATION, (migration.version, migration.name, migration.checksum))


def _require_server(session: Session) -> None:
    if session.server_version < _OLDEST_SERVER:
        raise ConnectionFailedError(
            f"the server is Postgres {session.server_version // 10000}: langgraph_durable needs 14 or newer. "
            "Upgrade the server."
        )


def _require_encoding(session: Session) -> None:
    if (session.client_encoding or "UTF8").upper() not in ("UTF8", "UTF-8"):
        raise InvalidConfigError(
            f"the connection's client_encoding is {session.client_encoding}, which cannot represent all text. Put "
            "client_encoding=utf8 into the connection string of the pool or connection given to the saver."
        )

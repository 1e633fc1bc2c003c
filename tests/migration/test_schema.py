"""The schema: set up, verified, printed; by many processes, by roles that may not create, under any name."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import psycopg
import pytest
from langgraph.checkpoint.postgres import PostgresSaver
from psycopg import AsyncConnection, sql
from psycopg.conninfo import make_conninfo

from langgraph_durable import DurableSaver
from langgraph_durable._postgres.migrate import migrations
from langgraph_durable.errors import ConnectionFailedError, SchemaOutOfDateError
from langgraph_durable.schema import DEFAULT_SCHEMA, schema_sql
from tests.conftest import Databases
from tests.samples import OPERATIONS, WRITES, Driver, a_put, config, without_slowness

CHECKSUMS = Path(__file__).with_name("checksums.txt")

NAMES = [
    "Durable",
    "with space",
    'double"quote',
    "it's",
    "back\\slash",
    "schéma_日本",
    "a.b",
    "select",
    "100%",
    "%s %(x)s",
    "{schema}",
    "$1;--",
]

# What a schema consists of, in words that do not depend on oids.
CATALOG = {
    "columns": """
        SELECT c.relname, a.attnum, a.attname, format_type(a.atttypid, a.atttypmod), l.collname, a.attnotnull,
            a.attcompression, a.attstorage, pg_get_expr(d.adbin, d.adrelid)
        FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
        LEFT JOIN pg_collation l ON l.oid = a.attcollation
        LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
        WHERE c.relnamespace = to_regnamespace(quote_ident(%s)) ORDER BY 1, 2
    """,
    "tables": """
        SELECT relname, relkind, relpersistence, reloptions FROM pg_class
        WHERE relnamespace = to_regnamespace(quote_ident(%s)) ORDER BY 1
    """,
    "indexes": "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = %s ORDER BY 1",
    "functions": """
        SELECT proname, pg_get_functiondef(oid), proacl FROM pg_proc
        WHERE pronamespace = to_regnamespace(quote_ident(%s)) ORDER BY 1
    """,
    "constraints": """
        SELECT conname, contype, pg_get_constraintdef(oid) FROM pg_constraint
        WHERE connamespace = to_regnamespace(quote_ident(%s)) ORDER BY 1
    """,
}

# Eight processes, let go at the same moment; every other one over asyncio.
SET_UP_AT_ONCE = """
import asyncio, os, sys
from langgraph_durable import DurableSaver

gate, opened = os.pipe()
children = []
for number in range(8):
    if (pid := os.fork()) == 0:
        os.close(opened)
        os.read(gate, 1)
        saver = DurableSaver.from_conn_string(sys.argv[1])
        if number % 2:
            asyncio.run(saver.asetup())
        else:
            saver.setup()
        saver.close()
        sys.exit()
    children.append(pid)
os.close(opened)
print([os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children])
"""


@pytest.fixture(params=["sync", "async"])
def drive(request: pytest.FixtureRequest) -> Driver:
    return Driver(request.param)


def catalog(conninfo: str, schema: str = DEFAULT_SCHEMA) -> dict[str, list[tuple[Any, ...]]]:
    with psycopg.connect(conninfo) as connection:
        return {what: connection.execute(query, [schema]).fetchall() for what, query in CATALOG.items()}


def applied(conninfo: str, schema: str = DEFAULT_SCHEMA) -> list[tuple[Any, ...]]:
    with psycopg.connect(conninfo) as connection:
        query = sql.SQL("SELECT version, name, checksum FROM {}.schema_migrations ORDER BY 1")
        return connection.execute(query.format(sql.Identifier(schema))).fetchall()


def tables(conninfo: str) -> list[tuple[str, str]]:
    """Every table there is."""
    with psycopg.connect(conninfo) as connection:
        return connection.execute(
            "SELECT schemaname, tablename FROM pg_tables "
            "WHERE schemaname NOT IN ('pg_catalog', 'information_schema') ORDER BY 1, 2"
        ).fetchall()


def stored_rows(conninfo: str) -> int:
    with psycopg.connect(conninfo) as connection:
        counts = [
            connection.execute(sql.SQL("SELECT count(*) FROM {}").format(sql.Identifier(*table))).fetchone()
            for table in tables(conninfo)
            if table[1] != "schema_migrations"
        ]
    return sum(count[0] for count in counts if count is not None)


def execute(conninfo: str, statement: Any) -> None:
    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute(statement)


# --- set up ---


async def test_setup_makes_the_tables_once(empty_conninfo: str, drive: Driver) -> None:
    async with DurableSaver.from_conn_string(empty_conninfo) as saver:
        await drive(saver, "setup")
        first, first_applied = catalog(empty_conninfo), applied(empty_conninfo)
        await drive(saver, "setup")
    assert first["columns"]
    assert first["indexes"]
    assert first_applied == [(m.version, m.name, m.checksum) for m in migrations()]
    assert catalog(empty_conninfo) == first
    assert applied(empty_conninfo) == first_applied


@pytest.mark.parametrize("isolation", ["read committed", "serializable"])
def test_eight_processes_set_up_at_once(empty_conninfo: str, isolation: str) -> None:
    option = isolation.replace(" ", "\\ ")
    conninfo = make_conninfo(empty_conninfo, options=f"-c default_transaction_isolation={option}")
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-c", SET_UP_AT_ONCE, conninfo],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.stdout.strip(), without_slowness(done.stderr)) == (str([0] * 8), "")
    assert [version for version, *_ in applied(empty_conninfo)] == [m.version for m in migrations()]


@pytest.mark.parametrize("autocommit", [True, False])
@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_setup_belongs_to_the_callers_transaction(empty_conninfo: str, autocommit: bool, end: str) -> None:
    with psycopg.connect(empty_conninfo, autocommit=autocommit) as connection:
        if autocommit:
            connection.execute("BEGIN")
        else:
            connection.execute("SELECT 1")
        saver = DurableSaver(connection)
        saver.setup()
        saver.put(*a_put())
        assert saver.get_tuple(config()) is not None
        assert tables(empty_conninfo) == []
        connection.execute(end)
    assert bool(tables(empty_conninfo)) is (end == "commit")


@pytest.mark.parametrize("end", ["commit", "rollback"])
async def test_asetup_belongs_to_the_callers_transaction(empty_conninfo: str, end: str) -> None:
    async with await AsyncConnection.connect(empty_conninfo) as connection:
        await connection.execute("SELECT 1")
        saver = DurableSaver(async_pool=connection)
        await saver.asetup()
        await saver.aput(*a_put())
        assert tables(empty_conninfo) == []
        await (connection.commit() if end == "commit" else connection.rollback())
    assert bool(tables(empty_conninfo)) is (end == "commit")


# --- verify ---


async def test_verify_only_on_an_empty_database_raises_and_makes_nothing(
    empty_conninfo: str, drive: Driver
) -> None:
    async with DurableSaver.from_conn_string(empty_conninfo) as saver:
        with pytest.raises(SchemaOutOfDateError, match=r"saver\.setup\(\)"):
            await drive(saver, "setup", verify_only=True)
    assert tables(empty_conninfo) == []


async def test_verify_only_accepts_what_setup_made(conninfo: str, drive: Driver) -> None:
    before = applied(conninfo)
    async with DurableSaver.from_conn_string(conninfo) as saver:
        await drive(saver, "setup", verify_only=True)
    assert applied(conninfo) == before


def make_newer(conninfo: str) -> None:
    execute(
        conninfo,
        "INSERT INTO langgraph_durable.schema_migrations (version, name, checksum) VALUES (9999, 'later', '')",
    )


def alter_checksum(conninfo: str) -> None:
    execute(conninfo, "UPDATE langgraph_durable.schema_migrations SET checksum = 'other' WHERE version = 1")


@pytest.mark.parametrize("verify_only", [True, False])
async def test_a_newer_schema_asks_for_a_newer_package(
    conninfo: str, drive: Driver, verify_only: bool
) -> None:
    make_newer(conninfo)
    async with DurableSaver.from_conn_string(conninfo) as saver:
        with pytest.raises(SchemaOutOfDateError, match="Upgrade the package"):
            await drive(saver, "setup", verify_only=verify_only)


@pytest.mark.parametrize("verify_only", [True, False])
async def test_another_text_of_a_migration_is_refused(
    conninfo: str, drive: Driver, verify_only: bool
) -> None:
    alter_checksum(conninfo)
    async with DurableSaver.from_conn_string(conninfo) as saver:
        with pytest.raises(SchemaOutOfDateError, match="from another text"):
            await drive(saver, "setup", verify_only=verify_only)


async def test_a_migration_that_is_missing_is_named(conninfo: str, drive: Driver) -> None:
    execute(conninfo, "DELETE FROM langgraph_durable.schema_migrations WHERE version = 1")
    async with DurableSaver.from_conn_string(conninfo) as saver:
        with pytest.raises(SchemaOutOfDateError, match=r"lacks migration 1 \(initial\).*saver\.setup\(\)"):
            await drive(saver, "setup", verify_only=True)


async def test_operations_without_tables_name_the_remedy(empty_conninfo: str, drive: Driver) -> None:
    async with DurableSaver.from_conn_string(empty_conninfo) as saver:
        for operation, arguments in OPERATIONS.items():
            with pytest.raises(SchemaOutOfDateError, match=r"saver\.setup\(\)"):
                await drive(saver, operation, *arguments())
            assert tables(empty_conninfo) == [], operation


async def test_operations_on_newer_tables_name_the_remedy(conninfo: str, drive: Driver) -> None:
    make_newer(conninfo)
    async with DurableSaver.from_conn_string(conninfo) as saver:
        for operation, arguments in OPERATIONS.items():
            with pytest.raises(SchemaOutOfDateError, match="Upgrade the package"):
                await drive(saver, operation, *arguments())
            assert stored_rows(conninfo) == 0, operation


async def test_operations_after_the_tables_went_name_the_remedy(conninfo: str, drive: Driver) -> None:
    async with DurableSaver.from_conn_string(conninfo) as saver:
        for operation, arguments in OPERATIONS.items():
            await drive(saver, operation, *arguments())
            execute(conninfo, "DROP SCHEMA langgraph_durable CASCADE")
            with pytest.raises(SchemaOutOfDateError, match=r"saver\.setup\(\)"):
                await drive(saver, operation, *arguments())
            await drive(saver, "setup")
            await drive(saver, operation, *arguments())


async def test_a_saver_goes_on_once_the_tables_are_there(empty_conninfo: str, drive: Driver) -> None:
    async with DurableSaver.from_conn_string(empty_conninfo) as saver:
        with pytest.raises(SchemaOutOfDateError):
            await drive(saver, "get_tuple", config())
        await drive(saver, "setup")
        stored = await drive(saver, "put", *a_put())
        assert (await drive(saver, "get_tuple", config())).config == stored


async def test_a_server_too_old_is_refused(
    conninfo: str, drive: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(psycopg.ConnectionInfo, "server_version", 130012)
    async with DurableSaver.from_conn_string(conninfo) as saver:
        for name, args in [("setup", ()), ("put", a_put())]:
            with pytest.raises(ConnectionFailedError, match="Postgres 13: langgraph_durable needs 14"):
                await drive(saver, name, *args)


# --- printed ---


def run_sql(client: str, conninfo: str, script: str) -> None:
    if client == "psycopg":
        execute(conninfo, script.encode())
        return
    if (psql := shutil.which("psql")) is None:
        pytest.skip("psql is not on PATH")
    command = [psql, "-X", "-q", "-v", "ON_ERROR_STOP=1", conninfo]
    done = subprocess.run(command, input=script, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("client", ["psycopg", "psql"])
def test_printed_sql_makes_what_setup_makes(empty_conninfo: str, databases: Databases, client: str) -> None:
    other = databases.create()
    other_conninfo = databases.conninfo(other)
    for schema in [DEFAULT_SCHEMA, *NAMES]:
        run_sql(client, empty_conninfo, schema_sql(schema))
        with DurableSaver.from_conn_string(empty_conninfo, schema=schema) as saver:
            saver.setup(verify_only=True)
            saver.setup()
            assert saver.get_tuple(saver.put(*a_put())) is not None
        with DurableSaver.from_conn_string(other_conninfo, schema=schema) as saver:
            saver.setup()
        assert catalog(empty_conninfo, schema) == catalog(other_conninfo, schema)
        assert applied(empty_conninfo, schema) == applied(other_conninfo, schema)
    databases.drop(other)


# --- roles ---


@pytest.fixture
def role(server: str, conninfo: str) -> Iterator[str]:
    """A role that may use the set-up tables and create nothing."""
    name = f"durable_user_{psycopg.conninfo.conninfo_to_dict(conninfo)['dbname']}"
    names = {"role": sql.Identifier(name), "schema": sql.Identifier(DEFAULT_SCHEMA)}
    execute(server, sql.SQL("CREATE ROLE {role} LOGIN PASSWORD 'secret'").format(**names))
    execute(
        conninfo,
        sql.SQL(
            "REVOKE CREATE ON SCHEMA public FROM PUBLIC; GRANT USAGE ON SCHEMA {schema} TO {role}; "
            "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {role}"
        ).format(**names),
    )
    yield name
    execute(conninfo, sql.SQL("DROP OWNED BY {role}").format(**names))
    execute(server, sql.SQL("DROP ROLE {role}").format(**names))


async def test_a_role_that_may_not_create_uses_the_tables(conninfo: str, role: str, drive: Driver) -> None:
    theirs = make_conninfo(conninfo, user=role, password="secret")
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        execute(theirs, "CREATE SCHEMA forbidden")
    async with DurableSaver.from_conn_string(theirs) as saver:
        await drive(saver, "setup")
        await drive(saver, "setup", verify_only=True)
        stored = await drive(saver, "put", *a_put())
        await drive(saver, "put_writes", stored, WRITES, "task")
        found = await drive(saver, "get_tuple", config())
        assert [value for _, _, value in found.pending_writes] == [value for _, value in WRITES]
        await drive(saver, "delete_thread", "thread")
        assert await drive(saver, "list", None) == []


async def test_a_role_that_may_not_create_is_told_so_by_postgres(
    conninfo: str, role: str, drive: Driver
) -> None:
    theirs = make_conninfo(conninfo, user=role, password="secret")
    async with DurableSaver.from_conn_string(theirs, schema="another") as saver:
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            await drive(saver, "setup")


async def test_a_role_that_may_only_read_reads(conninfo: str, role: str, drive: Driver) -> None:
    execute(
        conninfo,
        sql.SQL("REVOKE INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA langgraph_durable FROM {}").format(
            sql.Identifier(role)
        ),
    )
    with DurableSaver.from_conn_string(conninfo) as owner:
        stored = owner.put(*a_put())
    async with DurableSaver.from_conn_string(make_conninfo(conninfo, user=role, password="secret")) as saver:
        assert (await drive(saver, "get_tuple", config())).config == stored
        assert len(await drive(saver, "list", None)) == 1
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            await drive(saver, "put", *a_put())


# --- names ---


async def test_any_name_of_a_schema(empty_conninfo: str, drive: Driver) -> None:
    for number, schema in enumerate(NAMES, 1):
        async with DurableSaver.from_conn_string(empty_conninfo, schema=schema) as saver:
            with pytest.raises(SchemaOutOfDateError):
                await drive(saver, "setup", verify_only=True)
            await drive(saver, "setup")
            await drive(saver, "setup")
            stored = await drive(saver, "put", *a_put())
            await drive(saver, "put_writes", stored, WRITES, "task")
            found = await drive(saver, "get_tuple", stored)
            assert len(found.pending_writes) == len(WRITES)
            assert len(await drive(saver, "list", config(), filter={"step": 0})) == 1
            await drive(saver, "delete_thread", "thread")
        assert {name for name, _ in tables(empty_conninfo)} == set(NAMES[:number])


async def test_two_schemas_in_one_database_are_independent(conninfo: str, drive: Driver) -> None:
    async with (
        DurableSaver.from_conn_string(conninfo) as one,
        DurableSaver.from_conn_string(conninfo, schema="Another") as other,
    ):
        with pytest.raises(SchemaOutOfDateError, match="'Another'"):
            await drive(other, "get_tuple", config())
        await drive(other, "setup")
        in_one = await drive(one, "put", *a_put())
        assert await drive(other, "list", None) == []
        in_other = await drive(other, "put", *a_put())
        await drive(one, "delete_thread", "thread")
        assert await drive(one, "get_tuple", in_one) is None
        assert (await drive(other, "get_tuple", config())).config == in_other


async def test_the_official_savers_tables_do_not_interfere(empty_conninfo: str, drive: Driver) -> None:
    arguments = a_put()
    with PostgresSaver.from_conn_string(empty_conninfo) as official:
        official.setup()
        official.put(*arguments)
        async with DurableSaver.from_conn_string(empty_conninfo) as saver:
            with pytest.raises(SchemaOutOfDateError):
                await drive(saver, "get_tuple", config())
            await drive(saver, "setup")
            assert await drive(saver, "list", None) == []
            await drive(saver, "put", *a_put("ours"))
            await drive(saver, "delete_thread", "thread")
        assert [found.checkpoint["id"] for found in official.list(None)] == [arguments[1]["id"]]


@pytest.mark.parametrize("name", ["Another", "it's", "x" * 70])
async def test_a_renamed_schema_needs_setup(conninfo: str, drive: Driver, name: str) -> None:
    """Its functions name the former schema, and would use the tables of one that is made under that name."""
    rename = "ALTER SCHEMA langgraph_durable RENAME TO {}"
    async with DurableSaver.from_conn_string(conninfo) as saver:
        before = await drive(saver, "put", *a_put())
    execute(conninfo, sql.SQL(rename).format(sql.Identifier(name)))
    async with (
        DurableSaver.from_conn_string(conninfo, schema=name) as renamed,
        DurableSaver.from_conn_string(conninfo) as successor,
    ):
        await drive(successor, "setup")
        for _ in range(2):
            with pytest.raises(SchemaOutOfDateError, match=r"was renamed.*saver\.setup\(\)"):
                await drive(renamed, "put", *a_put())
            with pytest.raises(SchemaOutOfDateError, match="was renamed"):
                await drive(renamed, "setup", verify_only=True)
        await drive(renamed, "setup")
        after = await drive(renamed, "put", *a_put(step=1))
        assert [found.config for found in await drive(renamed, "list", None)] == [after, before]
        assert (await drive(renamed, "get_tuple", config())).config == after
        assert await drive(successor, "list", None) == []
    assert [version for version, *_ in applied(conninfo, name[:63])] == [m.version for m in migrations()]
    assert catalog(conninfo, name[:63])["columns"] == catalog(conninfo)["columns"]


# --- landed migrations ---


def test_landed_migrations_are_never_edited() -> None:
    """A new migration adds a line to checksums.txt; no line there ever changes."""
    landed = [line.split() for line in CHECKSUMS.read_text().splitlines()]
    assert [[f"{m.version:04}_{m.name}.sql", m.checksum] for m in migrations()] == landed


def test_every_file_of_migrations_is_one() -> None:
    files = sorted(f.name for f in resources.files("langgraph_durable").joinpath("migrations").iterdir())
    assert [f"{m.version:04}_{m.name}.sql" for m in migrations()] == files
    assert [m.version for m in migrations()] == list(range(1, len(files) + 1))

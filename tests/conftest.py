"""A real Postgres for every test: a database cloned from a migrated template, dropped afterwards.

`DATABASE_URL` names a server where databases may be created; without it the embedded one is started.
"""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from langgraph_durable import DurableSaver, embedded
from tests.drivers import Saver, SyncDriver

_numbers = itertools.count()


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    """Conninfo of a role that may create databases."""
    # Nothing here outlives the run, so the disk need not be waited for: what is killed in the tests is processes, and
    # what those have written stays with the operating system. Without autovacuum, whose launcher sleeps through the
    # barrier that DROP DATABASE waits at, for up to a minute.
    with ExitStack() as stack:
        with directory_in_memory():
            database = embedded.database(fsync=False, settings={"autovacuum": "off"})
            conninfo = stack.enter_context(database)
        yield conninfo


@contextmanager
def directory_in_memory() -> Iterator[None]:
    """Let temporary directories be in memory, if there is room: a database is 300 files, and each test makes one."""
    memory, before = Path("/dev/shm"), tempfile.tempdir  # where Linux has it
    if memory.is_dir() and shutil.disk_usage(memory).free > 2 << 30:
        tempfile.tempdir = str(memory)
    try:
        yield
    finally:
        tempfile.tempdir = before


class Databases:
    """Makes databases, and drops them all in the end."""

    def __init__(self, server: str) -> None:
        self.server = server
        self.names: list[str] = []

    def create(self, template: str | None = None, *, encoding: str | None = None) -> str:
        name = f"durable_test_{os.getpid()}_{next(_numbers)}"
        statement = sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name))
        if template is not None:
            statement += sql.SQL(" TEMPLATE {}").format(sql.Identifier(template))
        if encoding is not None:
            statement += sql.SQL(" ENCODING {} LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0").format(
                encoding
            )
        with psycopg.connect(self.server, autocommit=True) as connection:
            connection.execute(statement)
        self.names.append(name)
        return name

    def conninfo(self, name: str) -> str:
        return make_conninfo(self.server, dbname=name)

    def drop(self, name: str) -> None:
        with psycopg.connect(self.server, autocommit=True) as connection:
            connection.execute(
                sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name))
            )
        self.names.remove(name)


@pytest.fixture(scope="session")
def databases(server: str) -> Iterator[Databases]:
    made = Databases(server)
    yield made
    for name in list(made.names):
        made.drop(name)


@pytest.fixture(scope="session")
def template(databases: Databases) -> str:
    name = databases.create()
    with DurableSaver.from_conn_string(databases.conninfo(name)) as saver:
        saver.setup()
    return name


@pytest.fixture
def conninfo(databases: Databases, template: str) -> Iterator[str]:
    """A database of the test's own, set up."""
    name = databases.create(template)
    yield databases.conninfo(name)
    databases.drop(name)


@pytest.fixture
def empty_conninfo(databases: Databases) -> Iterator[str]:
    """A database of the test's own, with nothing in it."""
    name = databases.create()
    yield databases.conninfo(name)
    databases.drop(name)


@pytest.fixture
def saver(conninfo: str) -> Iterator[DurableSaver]:
    """A saver on a database of the test's own."""
    with DurableSaver.from_conn_string(conninfo) as made:
        yield made


@pytest.fixture(params=["sync", "async"])
async def driven(request: pytest.FixtureRequest, conninfo: str) -> AsyncIterator[Saver]:
    """A saver reached by async methods, behind which are its sync ones in one half of the tests."""
    async with DurableSaver.from_conn_string(conninfo) as made:
        yield SyncDriver(made) if request.param == "sync" else made

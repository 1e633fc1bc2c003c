"""Databases for tests: each cloned from a template with the tables, in some 20 ms."""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo
from typing_extensions import Self

from langgraph_durable import embedded
from langgraph_durable.saver import DurableSaver

_numbers = itertools.count()

_RETIRED = 8
"""Dropped databases that still exist.

The server processes of a saver end shortly after it is closed. DROP DATABASE waits 100 ms if one is left.
"""


@contextmanager
def server() -> Iterator[str]:
    """Yield the connection string of a server where databases may be created: DATABASE_URL, or an embedded one.

    The embedded server is fast, not durable: nothing in it outlives the tests. A crash of your processes loses nothing.

    Raises:
        EmbeddedPostgresError: No binaries were found, or the server did not start.
    """
    # Without autovacuum, whose launcher sleeps through the barrier that DROP DATABASE waits at, for up to a minute.
    with ExitStack() as stack:
        with _directory_in_memory():
            database = embedded.database(fsync=False, settings={"autovacuum": "off"})
            conninfo = stack.enter_context(database)
        yield conninfo


@contextmanager
def _directory_in_memory() -> Iterator[None]:
    """Let temporary directories be in memory, if there is room: a database is 300 files, and each test makes one."""
    memory, before = Path("/dev/shm"), tempfile.tempdir  # noqa: S108 (where Linux has it)
    if memory.is_dir() and shutil.disk_usage(memory).free > 2 << 30:
        tempfile.tempdir = str(memory)
    try:
        yield
    finally:
        tempfile.tempdir = before


class Databases:
    """Makes databases on a server, and drops them all when it closes. For one thread."""

    def __init__(self, conninfo: str) -> None:
        """Use a server.

        Args:
            conninfo: A connection string of a role that may create databases.
        """
        self._server = conninfo
        self._connection: psycopg.Connection[Any] | None = None
        self._names: list[str] = []
        self._retired: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @cached_property
    def template(self) -> str:
        """The name of a database with the tables of the default schema, made once. Do not connect to it."""
        name = self.create()
        with DurableSaver.from_conn_string(self.conninfo(name)) as saver:
            saver.setup()
        return name

    def create(self, template: str | None = None, *, encoding: str | None = None) -> str:
        """Create a database.

        Args:
            template: The database to clone; None for an empty one. `databases.template` has the tables.
            encoding: Its encoding, if not the server's default.

        Returns:
            Its name.
        """
        name = f"durable_test_{os.getpid()}_{next(_numbers)}"
        statement = sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name))
        if template is not None:
            statement += sql.SQL(" TEMPLATE {}").format(sql.Identifier(template))
        if encoding is not None:
            statement += sql.SQL(" ENCODING {} LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0").format(
                encoding
            )
        self._execute(statement)
        self._names.append(name)
        return name

    def conninfo(self, name: str) -> str:
        """Return the connection string of a database."""
        return make_conninfo(self._server, dbname=name)

    def drop(self, name: str) -> None:
        """Drop a database. It is dropped a little later, and its connections are ended then."""
        self._names.remove(name)
        self._retired.append(name)
        if len(self._retired) > _RETIRED:
            self._drop_now(self._retired.pop(0))

    def close(self) -> None:
        """Drop every database that is left."""
        for name in [*self._retired, *self._names]:
            self._drop_now(name)
        self._retired.clear()
        self._names.clear()
        self.__dict__.pop("template", None)
        if self._connection is not None:
            self._connection.close()

    def _drop_now(self, name: str) -> None:
        self._execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))

    def _execute(self, statement: sql.Composed) -> None:
        if self._connection is not None:
            try:
                self._connection.execute(statement)
                return
            except psycopg.OperationalError:
                if not self._connection.closed:
                    raise
        # The first statement, or the server was restarted by a test.
        self._connection = psycopg.connect(self._server, autocommit=True)
        self._connection.execute(statement)

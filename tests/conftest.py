"""A real Postgres for every test: a database cloned from a migrated template, dropped afterwards.

`DATABASE_URL` names a server where databases may be created; without it the embedded one is started.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from langgraph_durable import DurableSaver
from langgraph_durable.testing import Databases
from tests.drivers import Saver, SyncDriver

__all__ = ["Databases"]

pytest_plugins = ["langgraph_durable.testing.plugin"]


@pytest.fixture(scope="session")
def server(durable_server: str) -> str:
    """Conninfo of a role that may create databases."""
    return durable_server


@pytest.fixture(scope="session")
def databases(durable_databases: Databases) -> Databases:
    return durable_databases


@pytest.fixture(scope="session")
def template(databases: Databases) -> str:
    return databases.template


@pytest.fixture
def conninfo(durable_conninfo: str) -> str:
    """A database of the test's own, set up."""
    return durable_conninfo


@pytest.fixture
def empty_conninfo(databases: Databases) -> Iterator[str]:
    """A database of the test's own, with nothing in it."""
    name = databases.create()
    yield databases.conninfo(name)
    databases.drop(name)


@pytest.fixture
def saver(conninfo: str) -> Iterator[DurableSaver]:
    """A saver on the database of `conninfo`, which modules may fill."""
    with DurableSaver.from_conn_string(conninfo) as made:
        yield made


@pytest.fixture(params=["sync", "async"])
async def driven(request: pytest.FixtureRequest, conninfo: str) -> AsyncIterator[Saver]:
    """A saver reached by async methods, behind which are its sync ones in one half of the tests."""
    async with DurableSaver.from_conn_string(conninfo) as made:
        yield SyncDriver(made) if request.param == "sync" else made

"""pytest fixtures; in conftest.py: `pytest_plugins = ["langgraph_durable.testing.plugin"]`."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator

import pytest

from langgraph_durable.saver import DurableSaver
from langgraph_durable.testing.databases import Databases, server
from langgraph_durable.testing.vendor import FakeVendor, fake_vendor

# The processes of crash_at are forked from one that has imported what they need, instead of importing it each time.
multiprocessing.get_context("forkserver").set_forkserver_preload(
    ["langgraph.graph", "langgraph_durable.testing.crashes"]
)


@pytest.fixture(scope="session")
def durable_server() -> Iterator[str]:
    """A connection string of a server where databases may be created: DATABASE_URL, or an embedded one."""
    with server() as conninfo:
        yield conninfo


@pytest.fixture(scope="session")
def durable_databases(durable_server: str) -> Iterator[Databases]:
    """The databases of the tests on that server."""
    with Databases(durable_server) as databases:
        yield databases


@pytest.fixture
def durable_conninfo(durable_databases: Databases) -> Iterator[str]:
    """A connection string of a database of the test's own, with empty tables."""
    name = durable_databases.create(durable_databases.template)
    yield durable_databases.conninfo(name)
    durable_databases.drop(name)


@pytest.fixture
def durable_saver(durable_conninfo: str) -> Iterator[DurableSaver]:
    """A saver on a database of the test's own."""
    with DurableSaver.from_conn_string(durable_conninfo) as saver:
        yield saver


@pytest.fixture(scope="session")
def durable_vendor() -> Iterator[FakeVendor]:
    """A payment vendor that counts what it was paid."""
    with fake_vendor() as vendor:
        yield vendor

"""Databases of other savers, with threads in them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from langgraph.checkpoint.postgres import PostgresSaver

from tests.conftest import Databases
from tests.transfer.threads import BUILDERS, thread_names, write_thread

THREADS = [*thread_names(len(BUILDERS)), "chat 1", "ask 1", "frequent 1"]
"""A thread of each kind; those with an odd number are forked."""


@pytest.fixture(scope="session")
def written(databases: Databases) -> str:
    """A database that PostgresSaver wrote: tests clone it."""
    name = databases.create()
    with PostgresSaver.from_conn_string(databases.conninfo(name)) as saver:
        saver.setup()
        for thread_id in THREADS:
            write_thread(saver, thread_id)
    return name


@pytest.fixture
def source_conninfo(databases: Databases, written: str) -> Iterator[str]:
    """A database of the test's own, which PostgresSaver wrote."""
    name = databases.create(written)
    yield databases.conninfo(name)
    databases.drop(name)


@pytest.fixture
def peer(source_conninfo: str) -> Iterator[PostgresSaver]:
    """PostgresSaver on that database."""
    with PostgresSaver.from_conn_string(source_conninfo) as saver:
        yield saver


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave slow tests out, unless the markers on the command line ask for them."""
    if "slow" in config.option.markexpr:
        return
    for item in items:
        if item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.skip("slow: make nightly, or pytest -m slow"))

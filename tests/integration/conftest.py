"""Both halves of a saver, and what watches and troubles their connections."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.proxy import Proxy
from tests.samples import Driver, Observer


@pytest.fixture(params=["sync", "async"])
def drive(request: pytest.FixtureRequest) -> Driver:
    """Calls the methods of one half of a saver."""
    return Driver(request.param)


@pytest.fixture
def observer(conninfo: str) -> Iterator[Observer]:
    """A connection of the test's own to its database."""
    made = Observer(conninfo)
    yield made
    made.close()


@pytest.fixture
def proxy(conninfo: str) -> Iterator[Proxy]:
    """Stands between the test's database and those who use its conninfo."""
    with Proxy(conninfo) as made:
        yield made

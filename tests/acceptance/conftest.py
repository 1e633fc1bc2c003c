"""Each graph test runs sync and async."""

from __future__ import annotations

import sys

import pytest

from tests.acceptance.driving import Drive
from tests.acceptance.effect_graphs import World


@pytest.fixture(params=["sync", "async"])
def drive(request: pytest.FixtureRequest) -> Drive:
    return Drive(asynchronous=request.param == "async")


@pytest.fixture
def world() -> World:
    return World()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out what LangGraph itself cannot do: see the marker `context`."""
    if sys.version_info >= (3, 11):
        return
    why = "before Python 3.11 LangGraph gives the nodes of async runs no context"
    for item in items:
        parameters = (
            item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
        )
        if item.get_closest_marker("context") and parameters.get("drive") != "sync":
            item.add_marker(pytest.mark.skip(why))

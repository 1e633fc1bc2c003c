"""Each graph test runs sync and async."""

from __future__ import annotations

import pytest

from tests.acceptance.driving import Drive


@pytest.fixture(params=["sync", "async"])
def drive(request: pytest.FixtureRequest) -> Drive:
    return Drive(asynchronous=request.param == "async")

"""LangGraph's own conformance suite, over both drivers; nothing may be missing or skipped."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import pytest
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.checkpoint.conformance.capabilities import ALL_CAPABILITIES

from langgraph_durable import DurableSaver
from tests.drivers import SyncDriver

REQUIRED = {c.value for c in ALL_CAPABILITIES}


@pytest.mark.parametrize("driver", ["sync", "async"])
async def test_conformance(driver: str, conninfo: str, capsys: pytest.CaptureFixture[str]) -> None:
    async def savers() -> AsyncGenerator[BaseCheckpointSaver[Any], None]:
        async with DurableSaver.from_conn_string(conninfo) as saver:
            yield SyncDriver(saver) if driver == "sync" else saver

    report = await validate(checkpointer_test(name=f"DurableSaver, {driver}")(savers))
    with capsys.disabled():
        report.print_report()
    passed = {name for name, result in report.results.items() if result.passed}
    failures = [f for result in report.results.values() for f in result.failures]
    assert not failures
    assert passed >= REQUIRED
    assert all(report.results[name].tests_passed > 0 for name in REQUIRED)
    assert all(report.results[name].tests_skipped == 0 for name in REQUIRED)

"""`setup` on an event loop, as code written for AsyncPostgresSaver calls it."""

from __future__ import annotations

import pytest

from langgraph_durable import DurableSaver
from tests.checkpoints import config_for


async def test_awaiting_setup_names_asetup(empty_conninfo: str) -> None:
    async with DurableSaver.from_conn_string(empty_conninfo) as saver:
        with pytest.raises(TypeError, match=r"await saver\.asetup\(\)"):
            await saver.setup()  # type: ignore[func-returns-value, misc]
        await saver.asetup(verify_only=True)  # the tables are there all the same


async def test_setup_on_an_event_loop_works_if_it_is_not_awaited(empty_conninfo: str) -> None:
    async with DurableSaver.from_conn_string(empty_conninfo) as saver:
        saver.setup()
        assert await saver.aget_tuple(config_for("t")) is None


def test_setup_without_an_event_loop_returns_none(empty_conninfo: str) -> None:
    with DurableSaver.from_conn_string(empty_conninfo) as saver:
        assert saver.setup() is None  # type: ignore[func-returns-value]

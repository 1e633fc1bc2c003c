"""Process-wide tuning: the pause of the garbage collector, and the copies of repeated messages."""

from __future__ import annotations

import gc
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from langgraph_durable import DurableSaver
from langgraph_durable._checkpoints import decoding, history
from tests.checkpoints import checkpoint_with, config_for
from tests.drivers import Saver


class Seen:
    """What a saver's reads did: whether the collector was enabled as they decoded, and with which serializers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.enabled: set[bool] = set()
        self.copied = False
        for module, name in ((decoding, "decode"), (history, "loads")):
            monkeypatch.setattr(module, name, self._spy(getattr(module, name)))

    def _spy(self, decode: Any) -> Any:
        def spy(serde: Any, *args: Any) -> Any:
            self.enabled.add(gc.isenabled())
            self.copied |= type(serde) is not JsonPlusSerializer
            return decode(serde, *args)

        return spy


async def read_everything(saver: Saver) -> None:
    """Put two checkpoints with one message, list them, and read a delta channel's history."""
    config: Any = config_for("t")
    for step in range(2):
        checkpoint = checkpoint_with({"messages": [HumanMessage("hello", id="1")]})
        config = await saver.aput(
            config, checkpoint, {"source": "loop", "step": step}, checkpoint["channel_versions"]
        )
        await saver.aput_writes(config, [("d", step)], "task")
    assert len([t async for t in saver.alist(config_for("t"))]) == 2
    found = await saver.aget_delta_channel_history(config=config, channels=["d"])
    assert [value for _, _, value in found["d"]["writes"]] == [0]


async def test_it_is_on_by_default(driven: Saver, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = Seen(monkeypatch)
    await read_everything(driven)
    assert seen.enabled == {False}
    assert seen.copied


async def test_a_keyword_switches_it_off(conninfo: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = Seen(monkeypatch)
    async with DurableSaver.from_conn_string(conninfo, tuning=False) as saver:
        await read_everything(saver)
    assert seen.enabled == {True}
    assert not seen.copied


async def test_a_keyword_switches_it_off_on_given_pools(
    conninfo: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = Seen(monkeypatch)
    options = {"autocommit": True}
    with ConnectionPool(conninfo, kwargs=options, open=True, min_size=1) as pool:
        async with AsyncConnectionPool(conninfo, kwargs=options, open=False, min_size=1) as async_pool:
            await read_everything(DurableSaver(pool, async_pool=async_pool, tuning=False))
    assert seen.enabled == {True}
    assert not seen.copied


@pytest.mark.parametrize(("value", "tuned"), [("off", False), ("OFF", False), ("on", True), ("", True)])
async def test_an_environment_variable_switches_it_off(
    conninfo: str, monkeypatch: pytest.MonkeyPatch, value: str, tuned: bool
) -> None:
    monkeypatch.setenv("LANGGRAPH_DURABLE_TUNING", value)
    seen = Seen(monkeypatch)
    async with DurableSaver.from_conn_string(conninfo, tuning=True) as saver:
        await read_everything(saver)
    assert seen.enabled == {not tuned}
    assert seen.copied is tuned

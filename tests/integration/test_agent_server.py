"""The checkpointer of the Agent Server, without the server: its settings, and how it answers."""

from __future__ import annotations

import asyncio
import secrets

import pytest
from langgraph.graph import START, StateGraph
from typing_extensions import TypedDict

from langgraph_durable import DurableSaver, effect
from langgraph_durable.agent_server import AgentServerSaver, checkpointer
from langgraph_durable.errors import (
    CheckpointCorruptedError,
    EffectUnresolvedError,
    InvalidConfigError,
    SchemaOutOfDateError,
)
from tests.checkpoints import config_for, get_values, listed_ids, put

PREFIX = "LANGGRAPH_DURABLE_"
VARIABLES = ("DSN", "SCHEMA", "MIN_SIZE", "MAX_SIZE", "SEGMENT_KEY", "SETUP", "ON_DELETE")


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, empty_conninfo: str) -> pytest.MonkeyPatch:
    for name in VARIABLES:
        monkeypatch.delenv(PREFIX + name, raising=False)
    for name in ("DATABASE_URL", "LANGGRAPH_AES_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(PREFIX + "DSN", empty_conninfo)
    return monkeypatch


async def test_the_tables_are_set_up_at_start(environment: pytest.MonkeyPatch) -> None:
    for _ in range(2):
        async with checkpointer() as saver:
            assert isinstance(saver, DurableSaver)
            assert saver.schema == "langgraph_durable"
            await put(saver, config_for("t"), {"n": 1})


async def test_every_variable_is_read(environment: pytest.MonkeyPatch, empty_conninfo: str) -> None:
    environment.delenv(PREFIX + "DSN")
    environment.setenv("DATABASE_URL", empty_conninfo)
    environment.setenv(PREFIX + "SCHEMA", "agents")
    environment.setenv(PREFIX + "MIN_SIZE", "0")
    environment.setenv(PREFIX + "MAX_SIZE", "2")
    environment.setenv(PREFIX + "SEGMENT_KEY", secrets.token_hex(32))
    environment.setenv("LANGGRAPH_AES_KEY", "0123456789abcdef")
    environment.setenv(PREFIX + "ON_DELETE", "force")
    long = ["a secret sentence " * 20] * 40
    async with checkpointer() as saver:
        assert saver.schema == "agents"
        await asyncio.gather(*(put(saver, config_for(f"t{n}"), {"n": long}) for n in range(20)))
        assert await get_values(saver, config_for("t3")) == {"n": long}
        assert saver.force_delete
        own = saver.durable_context.own_pools
        assert own is not None
        assert own.asynchronous.pool_stats()["pool_max"] == 2
    environment.setenv(PREFIX + "SETUP", "verify")
    async with checkpointer() as saver:
        assert await get_values(saver, config_for("t3")) == {"n": long}
    environment.delenv("LANGGRAPH_AES_KEY")
    async with checkpointer() as saver:
        with pytest.raises(CheckpointCorruptedError, match="another serializer or key"):
            await get_values(saver, config_for("t3"))


async def test_verify_creates_nothing(environment: pytest.MonkeyPatch) -> None:
    environment.setenv(PREFIX + "SETUP", "verify")
    with pytest.raises(SchemaOutOfDateError):
        async with checkpointer():
            pass


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (PREFIX + "DSN", ""),
        (PREFIX + "DSN", "nonsense"),
        (PREFIX + "MAX_SIZE", "many"),
        (PREFIX + "MAX_SIZE", "0"),
        (PREFIX + "MIN_SIZE", "17"),
        (PREFIX + "SEGMENT_KEY", "short"),
        (PREFIX + "SEGMENT_KEY", "abcd"),
        (PREFIX + "SCHEMA", "\udcff"),
        (PREFIX + "SETUP", "yes"),
        (PREFIX + "ON_DELETE", "maybe"),
        ("LANGGRAPH_AES_KEY", "short"),
    ],
)
async def test_an_invalid_variable_is_named(environment: pytest.MonkeyPatch, name: str, value: str) -> None:
    environment.setenv(name, value)
    with pytest.raises(InvalidConfigError, match=name) as raised:
        async with checkpointer():
            pass
    if name.endswith("KEY"):
        assert repr(value) not in str(raised.value)


class Nothing(TypedDict, total=False):
    nothing: str


async def leave_unresolved(saver: DurableSaver) -> None:
    """Leave an effect of thread `t` with an unknown outcome."""

    @effect(name="pay")
    async def pay() -> None:
        raise TimeoutError

    async def node(state: Nothing) -> None:
        await pay()

    builder = StateGraph(Nothing)
    builder.add_node("node", node)
    builder.add_edge(START, "node")
    with pytest.raises(TimeoutError):
        await builder.compile(checkpointer=saver).ainvoke({}, config_for("t"))


@pytest.mark.context
async def test_a_thread_with_unresolved_effects_is_a_conflict(environment: pytest.MonkeyPatch) -> None:
    async with checkpointer() as saver:
        await leave_unresolved(saver)
        with pytest.raises(EffectUnresolvedError, match="langgraph-durable effects resolve"):
            await saver.adelete_thread("t")
        assert await listed_ids(saver, config_for("t"))


@pytest.mark.context
async def test_a_server_may_delete_threads_with_unresolved_effects(environment: pytest.MonkeyPatch) -> None:
    environment.setenv(PREFIX + "ON_DELETE", "force")
    async with checkpointer() as saver:
        assert isinstance(saver, AgentServerSaver)
        await leave_unresolved(saver)
        await saver.adelete_thread("t")
        assert not await listed_ids(saver, config_for("t"))
        assert len([record async for record in saver.effects.alist()]) == 1  # the fact is kept

"""Databases and environments with other encodings than UTF8: what is text stays text."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import AsyncExitStack
from typing import Annotated, Any

import psycopg
import pytest
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.checkpoint.conformance.capabilities import ALL_CAPABILITIES
from langgraph.graph import END, START, StateGraph
from psycopg import AsyncConnection
from psycopg.conninfo import make_conninfo
from psycopg_pool import AsyncConnectionPool, ConnectionPool
from typing_extensions import TypedDict

from langgraph_durable import DurableSaver, InvalidConfig
from tests.conftest import Databases
from tests.drivers import SyncDriver
from tests.samples import WRITES, Driver, a_put, config

TEXT = "Größe 東京 😀"


@pytest.fixture(params=["SQL_ASCII", "environment", "options"])
def odd_conninfo(
    request: pytest.FixtureRequest, databases: Databases, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """A database where text is bytes to a client that says nothing of encodings."""
    name = databases.create(encoding="SQL_ASCII" if request.param == "SQL_ASCII" else "UTF8")
    conninfo = databases.conninfo(name)
    if request.param == "environment":
        monkeypatch.setenv("PGCLIENTENCODING", "SQL_ASCII")
    elif request.param == "options":
        conninfo = make_conninfo(conninfo, options="-c client_encoding=SQL_ASCII")
    with psycopg.connect(conninfo) as connection:
        assert connection.info.parameter_status("client_encoding") == "SQL_ASCII"
    yield conninfo
    databases.drop(name)


class State(TypedDict):
    trail: Annotated[list[str], lambda left, right: left + right]


async def test_graphs_run_with_any_text(odd_conninfo: str, drive: Driver) -> None:
    async with DurableSaver.from_conn_string(odd_conninfo) as saver:
        await drive(saver, "setup")
        await drive(saver, "setup", verify_only=True)
        builder: Any = StateGraph(State)
        builder.add_node(TEXT, lambda state: {"trail": [TEXT]})
        builder.add_edge(START, TEXT)
        builder.add_edge(TEXT, END)
        graph = builder.compile(checkpointer=saver)

        async def run(number: int) -> None:
            thread: Any = {"configurable": {"thread_id": f"{TEXT} {number}"}, "metadata": {TEXT: TEXT}}
            if drive.kind == "async":
                await graph.ainvoke({"trail": [TEXT]}, thread)
            else:
                await asyncio.to_thread(graph.invoke, {"trail": [TEXT]}, thread)
            found = await drive(saver, "get_tuple", thread)
            assert found.config["configurable"]["thread_id"] == f"{TEXT} {number}"
            assert found.checkpoint["channel_values"] == {"trail": [TEXT, TEXT]}
            assert found.metadata[TEXT] == TEXT
            await drive(saver, "put_writes", found.config, [(TEXT, TEXT)], TEXT)
            assert (await drive(saver, "get_tuple", thread)).pending_writes == [(TEXT, TEXT, TEXT)]

        await asyncio.gather(*(run(number) for number in range(20)))
        assert len(await drive(saver, "list", None, filter={TEXT: TEXT, "source": "loop"})) == 40
        for number in range(20):
            await drive(saver, "delete_thread", f"{TEXT} {number}")
        assert await drive(saver, "list", None) == []


@pytest.mark.parametrize("driver", ["sync", "async"])
async def test_conformance_on_bytes(driver: str, databases: Databases) -> None:
    name = databases.create(encoding="SQL_ASCII")

    async def savers() -> AsyncGenerator[BaseCheckpointSaver[Any], None]:
        async with DurableSaver.from_conn_string(databases.conninfo(name)) as saver:
            await saver.asetup()
            yield SyncDriver(saver) if driver == "sync" else saver

    report = await validate(checkpointer_test(name=f"DurableSaver, SQL_ASCII, {driver}")(savers))
    assert not [f for result in report.results.values() for f in result.failures]
    assert {n for n, r in report.results.items() if r.passed} >= {c.value for c in ALL_CAPABILITIES}
    databases.drop(name)


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1"])
@pytest.mark.parametrize("source", ["pool", "connection", "conninfo"])
async def test_another_encoding_of_the_callers_own_names_the_remedy(
    conninfo: str, drive: Driver, source: str, encoding: str
) -> None:
    other = make_conninfo(conninfo, client_encoding=encoding)
    async with AsyncExitStack() as stack:
        if source == "conninfo":
            saver = await stack.enter_async_context(DurableSaver.from_conn_string(other))
        elif drive.kind == "sync":
            given: Any = ConnectionPool(other, min_size=1) if source == "pool" else psycopg.connect(other)
            saver = DurableSaver(stack.enter_context(given))
        else:
            pool = AsyncConnectionPool[Any](other, min_size=1, open=False)
            given = pool if source == "pool" else await AsyncConnection.connect(other)
            saver = DurableSaver(async_pool=await stack.enter_async_context(given))
        for operation, arguments in (("get_tuple", (config(),)), ("put", a_put()), ("setup", ())):
            with pytest.raises(InvalidConfig, match=f"client_encoding is {encoding}.*client_encoding=utf8"):
                await drive(saver, operation, *arguments)


async def test_text_that_a_database_cannot_hold_is_refused(databases: Databases, drive: Driver) -> None:
    name = databases.create(encoding="LATIN1")
    async with DurableSaver.from_conn_string(databases.conninfo(name)) as saver:
        await drive(saver, "setup")
        stored = await drive(saver, "put", *a_put("Größe", {"messages": TEXT}))
        assert (await drive(saver, "get", stored))["channel_values"] == {"messages": TEXT}
        with pytest.raises(InvalidConfig, match="ENCODING 'UTF8'"):
            await drive(saver, "put", *a_put(TEXT))
        with pytest.raises(InvalidConfig, match="ENCODING 'UTF8'"):
            await drive(saver, "put_writes", stored, WRITES, TEXT)
        puts = [drive(saver, "put", *a_put(f"{'Größe' if n % 2 else TEXT} {n}")) for n in range(40)]
        ends = await asyncio.gather(*puts, return_exceptions=True)
        assert [isinstance(end, InvalidConfig) for end in ends] == [n % 2 == 0 for n in range(40)]
    databases.drop(name)

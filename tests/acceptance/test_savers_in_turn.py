"""A thread goes from saver to saver: whichever continues it takes its input, and answers its interrupts."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command

from langgraph_durable import DurableSaver
from tests.acceptance.driving import Drive, thread
from tests.acceptance.graphs import Graph, Saver, Sparse, Steps, asking, ignore, step
from tests.adapter import Adapter
from tests.conftest import Databases
from tests.drivers import SyncDriver

SAVERS = ("durable", "memory", "postgres")
SERVED = (*SAVERS, "agent server")


class OldVersions(DurableSaver):
    """A saver whose threads begin with versions of 10 digits, as this package's once did."""

    def get_next_version(self, current: Any, channel: None) -> Any:
        return super().get_next_version(current or f"{0:010}", channel)


def graph_of(saver: Saver, state: type[Any]) -> Graph:
    builder = StateGraph(state)
    builder.add_sequence(
        [("before", step("before", ignore)), ("ask", asking("ask", ignore)), ("after", step("after", ignore))]
    )
    builder.add_edge(START, "before")
    return builder.compile(checkpointer=saver)


@pytest.fixture(scope="module")
def names(databases: Databases, template: str) -> Iterator[list[str]]:
    """Databases for the savers of all tests here, whose threads are each their own."""
    made = [databases.create(template), databases.create(template), databases.create()]
    with PostgresSaver.from_conn_string(databases.conninfo(made[2])) as official:
        official.setup()
    yield made
    for name in made:
        databases.drop(name)


@pytest.fixture
async def savers(databases: Databases, names: list[str]) -> AsyncIterator[dict[str, dict[bool, Saver]]]:
    """Savers by name, and by whether their async methods are called."""
    own, served, official = (databases.conninfo(name) for name in names)
    async with AsyncExitStack() as stack:
        memory = InMemorySaver()
        durable = await stack.enter_async_context(DurableSaver.from_conn_string(own, max_size=2))
        behind = await stack.enter_async_context(DurableSaver.from_conn_string(served, max_size=2))
        old = await stack.enter_async_context(OldVersions.from_conn_string(own, max_size=2))
        sync = stack.enter_context(PostgresSaver.from_conn_string(official))
        asynchronous = await stack.enter_async_context(AsyncPostgresSaver.from_conn_string(official))
        yield {
            "durable": {False: durable, True: durable},
            "old": {False: old, True: old},
            "memory": {False: memory, True: memory},
            "postgres": {False: sync, True: asynchronous},
            "agent server": {True: Adapter(behind)},
        }


async def move(source: Any, target: Any, config: RunnableConfig) -> None:
    """Copy a thread by the interface that all savers have, oldest checkpoint first."""
    for found in reversed([t async for t in source.alist(config)]):
        parent = found.parent_config or config
        versions = found.checkpoint["channel_versions"]
        stored = await target.aput(parent, found.checkpoint, found.metadata, versions)
        by_task: dict[str, list[tuple[str, Any]]] = {}
        for task_id, channel, value in found.pending_writes or []:
            by_task.setdefault(task_id, []).append((channel, value))
        for task_id, writes in by_task.items():
            await target.aput_writes(stored, writes, task_id)


def by_async_names(saver: BaseCheckpointSaver[Any], drive: Drive) -> Any:
    return saver if drive.asynchronous else SyncDriver(saver)  # type: ignore[arg-type]


async def take_turns(
    savers: dict[str, dict[bool, Saver]], drive: Drive, order: tuple[str, ...], state: type[Any]
) -> None:
    """Let each saver answer the question that the one before it left, and ask another."""
    config = thread(f"{order} {state.__name__} {drive.asynchronous}", checkpoint_ns="")
    expected: list[str] = []
    for turn, name in enumerate(order):
        saver = savers[name][drive.asynchronous]
        if turn:
            before = savers[order[turn - 1]][drive.asynchronous]
            await move(by_async_names(before, drive), by_async_names(saver, drive), config)
        graph = graph_of(saver, state)
        if turn:
            resumed = await drive.invoke(graph, Command(resume=name), config)
            expected += [f"ask: {name}", "after"]
            assert resumed == {"trail": expected}, name
        for number in range(2):
            if number:
                await drive.invoke(graph, Command(resume="own"), config)
                expected += ["ask: own", "after"]
            await drive.invoke(graph, {"trail": [f"input {turn} {number}"]}, config)
            expected += [f"input {turn} {number}", "before"]
        found = await drive.state(graph, config)
        assert found.values == {"trail": expected}, name
        assert found.next == ("ask",), name


@pytest.mark.parametrize("state", [Steps, Sparse])
@pytest.mark.context
async def test_no_input_is_dropped_in_any_order_of_savers(
    savers: dict[str, dict[bool, Saver]], drive: Drive, state: type[Any]
) -> None:
    known = SERVED if drive.asynchronous else SAVERS
    for first, second, third in itertools.product(known, repeat=3):
        if first != second != third:
            await take_turns(savers, drive, (first, second, third), state)


@pytest.mark.parametrize("state", [Steps, Sparse])
@pytest.mark.context
async def test_a_thread_that_began_with_ten_digits_goes_on(
    savers: dict[str, dict[bool, Saver]], drive: Drive, state: type[Any]
) -> None:
    order = ("old", "durable", "old", "durable")
    await take_turns(savers, drive, order, state)
    config = thread(f"{order} {state.__name__} {drive.asynchronous}")
    found = savers["durable"][False].get_tuple(config)
    assert found is not None
    assert {len(str(v).partition(".")[0]) for v in found.checkpoint["channel_versions"].values()} == {10}


def test_versions_compare_with_those_of_other_savers(saver: DurableSaver) -> None:
    others: list[Saver] = [InMemorySaver(), PostgresSaver(None), Adapter(saver)]  # type: ignore[arg-type]
    version = saver.get_next_version(None, None)
    for other in others * 4:
        for one in (other, saver):
            later = one.get_next_version(version, None)
            assert later > version
            version = later
    assert int(version.partition(".")[0]) == 25

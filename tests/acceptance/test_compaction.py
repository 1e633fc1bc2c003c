"""Compaction folds delta channels with the graph's own reducers and leaves the state unchanged."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
import psycopg
import pytest
from langchain_core.messages import HumanMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.types import interrupt
from typing_extensions import TypedDict

from langgraph_durable import DurableSaver
from langgraph_durable.errors import CompactionRefusedError, InvalidConfigError, PruneFailedError
from tests.acceptance.driving import Drive, thread


def append(state: list[Any], writes: list[Any]) -> list[Any]:
    return [*state, *(item for write in writes for item in write)]


class State(TypedDict):
    log: Annotated[list[Any], DeltaChannel(append, snapshot_frequency=1000)]
    rare: Annotated[list[Any], DeltaChannel(append, snapshot_frequency=3)]
    plain: int


def count(state: Any, writes: list[Any]) -> tuple[Any, ...]:
    return (*(state or ()), *writes)  # a tuple, which is stored as a list


class Counted(TypedDict):
    kept: Annotated[tuple[Any, ...], DeltaChannel(count, snapshot_frequency=1000)]


REFUSED: set[str] = set()


def strict(state: list[Any], writes: list[Any]) -> list[Any]:
    if any(item in REFUSED for write in writes for item in write):
        raise LookupError("no such item")
    return append(state, writes)


class Strict(TypedDict):
    log: Annotated[list[Any], DeltaChannel(strict, snapshot_frequency=1000)]


def build(saver: Any, *, asks: bool = False) -> Any:
    def step(state: State) -> dict[str, Any]:
        number = state.get("plain", 0) + 1
        return {"log": [HumanMessage(f"step {number}", id=str(number))], "rare": [number], "plain": number}

    def ask(state: State) -> dict[str, Any]:
        return {"log": [interrupt("go on?")]} if asks else {"log": ["done"]}

    builder = StateGraph(State)
    builder.add_node("step", step)
    builder.add_node("ask", ask)
    builder.add_edge(START, "step")
    builder.add_edge("step", "ask")
    return builder.compile(checkpointer=saver)


async def compact(saver: DurableSaver, drive: Drive, graph: Any, *threads: str) -> Any:
    if drive.asynchronous:
        return await saver.acompact(graph, threads)
    return saver.compact(graph, threads)


def rows(conninfo: str, table: str) -> int:
    with psycopg.connect(conninfo) as connection:
        row = connection.execute(f"SELECT count(*) FROM langgraph_durable.{table}").fetchone()
        assert row is not None
        return int(row[0])


@pytest.mark.parametrize("asks", [False, pytest.param(True, marks=pytest.mark.context)])
async def test_compaction_leaves_one_checkpoint_with_the_same_state(
    saver: DurableSaver, conninfo: str, drive: Drive, asks: bool
) -> None:
    graph, config = build(saver, asks=asks), thread()
    for number in range(4):
        await drive.invoke(graph, {"log": [f"input {number}"]}, config)
    before = await drive.state(graph, config)
    assert len(before.values["log"]) >= 8
    report = await compact(saver, drive, graph, "thread")
    assert report.threads["thread"].rows["checkpoints"] > 5
    after = await drive.state(graph, config)
    assert after.values == before.values
    assert (after.next, after.metadata, after.tasks) == (before.next, before.metadata, before.tasks)
    assert (rows(conninfo, "checkpoints"), rows(conninfo, "ancestors")) == (1, 0)
    assert not (await compact(saver, drive, graph, "thread", "unknown")).threads
    # Further runs behave as on a thread that was never compacted.
    reference = build(InMemorySaver(), asks=asks)
    for number in range(5):
        await drive.invoke(reference, {"log": [f"input {number}"]}, config)
    await drive.invoke(graph, {"log": ["input 4"]}, config)
    assert (await drive.state(graph, config)).values == (await drive.state(reference, config)).values


async def test_subgraphs_are_compacted(saver: DurableSaver, conninfo: str, drive: Drive) -> None:
    builder = StateGraph(State)
    builder.add_node("sub", build(True))
    builder.add_edge(START, "sub")
    graph, config = builder.compile(checkpointer=saver), thread()
    for number in range(3):
        await drive.invoke(graph, {"log": [f"input {number}"]}, config)
    sub = thread(checkpoint_ns="sub")
    before = [(await drive.state(graph, c)).values for c in (config, sub)]
    await compact(saver, drive, graph, "thread")
    assert [(await drive.state(graph, c)).values for c in (config, sub)] == before
    assert (rows(conninfo, "checkpoints"), rows(conninfo, "ancestors")) == (2, 0)


async def test_namespace_of_an_unknown_subgraph_keeps_its_ancestors(
    saver: DurableSaver, conninfo: str, drive: Drive
) -> None:
    builder = StateGraph(State)
    builder.add_node("sub", build(True))
    builder.add_edge(START, "sub")
    graph, config = builder.compile(checkpointer=saver), thread()
    for number in range(3):
        await drive.invoke(graph, {"log": [f"input {number}"]}, config)
    sub = thread(checkpoint_ns="sub")
    before = (await drive.state(graph, sub)).values
    await compact(saver, drive, build(saver), "thread")
    assert rows(conninfo, "ancestors") > 0
    assert (await drive.state(graph, sub)).values == before


async def test_other_threads_are_compacted_if_one_fails(
    saver: DurableSaver, drive: Drive, monkeypatch: pytest.MonkeyPatch
) -> None:
    builder = StateGraph(Strict)
    builder.add_node("step", lambda _: {"log": ["step"]})
    builder.add_edge(START, "step")
    graph = builder.compile(checkpointer=saver)
    for thread_id in ("bad", "good"):
        await drive.invoke(graph, {"log": [thread_id]}, thread(thread_id))
    with monkeypatch.context() as patched, pytest.raises(PruneFailedError) as failure:
        patched.setitem(globals(), "REFUSED", {"bad"})
        await compact(saver, drive, graph, "bad", "good")
    assert list(failure.value.report.threads) == ["good"]
    [(name, why)] = failure.value.failures.items()
    assert name == "bad"
    assert isinstance(why, CompactionRefusedError)
    assert isinstance(why.__cause__, LookupError)
    assert (await drive.state(graph, thread("bad"))).values == {"log": ["bad", "step"]}


async def test_state_that_serialization_would_change_is_refused(
    saver: DurableSaver, conninfo: str, drive: Drive
) -> None:
    graph, config = build(saver), thread()
    await drive.invoke(graph, {"log": [np.array([1.0, 2.0]), {1, 2}]}, config)
    await drive.invoke(
        graph, {"log": [("a tuple",)]}, config
    )  # comes back as a list from its write: no change
    await compact(saver, drive, graph, "thread")
    assert rows(conninfo, "checkpoints") == 1

    builder = StateGraph(Counted)
    builder.add_node("n", lambda _: {"kept": 1})
    builder.add_edge(START, "n")
    other = builder.compile(checkpointer=saver)
    await drive.invoke(other, {"kept": 0}, thread("other"))
    held = rows(conninfo, "checkpoints")
    with pytest.raises(PruneFailedError, match="does not survive"):
        await compact(saver, drive, other, "other")
    assert rows(conninfo, "checkpoints") == held


async def test_graph_of_another_saver_is_refused(saver: DurableSaver, conninfo: str, drive: Drive) -> None:
    for graph in (
        build(None),
        build(InMemorySaver()),
        build(DurableSaver.from_conn_string(conninfo)),
        object(),
    ):
        with pytest.raises(InvalidConfigError, match="compiled with this saver"):
            await compact(saver, drive, graph, "thread")
    with pytest.raises(TypeError):
        await saver.acompact(build(saver), "thread")

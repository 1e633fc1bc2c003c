"""Two graphs on one thread: a version that drops channels is deployed, and rolled back."""

# Without `from __future__ import annotations`: LangGraph evaluates those of the states, which are local.

import operator
from typing import Annotated, Any

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.channels.delta import DeltaChannel
from langgraph.graph import START, StateGraph
from typing_extensions import TypedDict

from langgraph_durable import DurableSaver
from tests.acceptance.driving import Drive, thread
from tests.acceptance.graphs import Graph, extend

FULL: dict[str, Any] = {
    "seen": ["in", "full", "in", "full"],
    "small": 7,
    "large": "x" * 1000,
    "log": ["line", "line"],
    "snapshots": ["shot", "shot"],
}


def full(saver: DurableSaver) -> Graph:
    class State(TypedDict):
        seen: Annotated[list[str], operator.add]
        small: int
        large: str
        log: Annotated[list[str], DeltaChannel(extend, snapshot_frequency=1000)]
        snapshots: Annotated[list[str], DeltaChannel(extend, snapshot_frequency=1)]

    def node(state: State) -> dict[str, Any]:
        return {"seen": ["full"], "small": 7, "large": "x" * 1000, "log": ["line"], "snapshots": ["shot"]}

    return StateGraph(State).add_node("full", node).add_edge(START, "full").compile(checkpointer=saver)


def reduced(saver: DurableSaver) -> Graph:
    class State(TypedDict):
        seen: Annotated[list[str], operator.add]

    def node(state: State) -> dict[str, Any]:
        return {"seen": ["reduced"]}

    return StateGraph(State).add_node("reduced", node).add_edge(START, "reduced").compile(checkpointer=saver)


async def values(drive: Drive, graph: Graph, config: RunnableConfig) -> Any:
    return (await drive.state(graph, config)).values


@pytest.mark.parametrize("times", [1, 3])
async def test_channels_that_a_graph_lacks_are_there_when_it_is_rolled_back(
    saver: DurableSaver, drive: Drive, times: int
) -> None:
    config = thread()
    for _ in range(2):
        await drive.invoke(full(saver), {"seen": ["in"]}, config)
    assert await values(drive, full(saver), config) == FULL
    for _ in range(times):
        await drive.invoke(reduced(saver), {"seen": ["in"]}, config)
    expected = {**FULL, "seen": FULL["seen"] + ["in", "reduced"] * times}
    assert await values(drive, reduced(saver), config) == {"seen": expected["seen"]}
    assert await values(drive, full(saver), config) == expected

    saver.prune(["thread"])
    assert await values(drive, full(saver), config) == expected
    result = await drive.invoke(full(saver), {"seen": ["in"]}, config)
    assert (result["log"], result["snapshots"]) == (["line"] * 3, ["shot"] * 3)


async def test_a_value_that_was_dropped_with_a_new_version_stays_dropped(
    saver: DurableSaver, drive: Drive
) -> None:
    await drive.invoke(full(saver), {"seen": ["in"]}, thread())
    latest = saver.get_tuple(thread())
    assert latest is not None
    checkpoint = latest.checkpoint.copy()
    checkpoint["id"] = "z"
    checkpoint["channel_values"] = {}
    checkpoint["channel_versions"] = {**checkpoint["channel_versions"], "small": "9", "large": "9"}
    saver.put(
        latest.config, checkpoint, {}, {"small": "9"}
    )  # large: a version of no row, claimed to be stored
    found = saver.get_tuple(
        {"configurable": {"thread_id": "thread", "checkpoint_id": "z", "checkpoint_ns": ""}}
    )
    assert found is not None
    assert found.checkpoint["channel_values"].keys() & {"small", "large", "seen"} == {"seen"}

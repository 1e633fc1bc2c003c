"""Graphs in graphs: what each keeps, the questions they ask, and their states."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.types import Checkpointer, Command, StateSnapshot

from langgraph_durable import DurableSaver
from tests.acceptance.driving import Drive, interrupts, thread
from tests.acceptance.graphs import Runs, ignore
from tests.acceptance.subgraphs import nested, subgraph_node


def substate(snapshot: StateSnapshot) -> StateSnapshot:
    [pending] = snapshot.tasks
    assert isinstance(pending.state, StateSnapshot)
    return pending.state


@pytest.mark.parametrize("checkpointer", [None, True])
@pytest.mark.context
async def test_questions_two_deep(saver: DurableSaver, drive: Drive, checkpointer: Checkpointer) -> None:
    runs = Runs()
    graph = nested(saver, runs, checkpointer=checkpointer)
    for turn in range(2):
        await drive.invoke(graph, {"trail": []}, thread())
        state = await drive.state(graph, thread(), subgraphs=True)
        assert state.next == ("middle",)
        assert [i.value for i in interrupts(state)] == ["inner_ask?0"]
        assert substate(state).next == ("inner",)
        assert substate(substate(state)).next == ("inner_ask",)
        assert substate(substate(state)).values["trail"][-1] == "inner_first"
        result = await drive.invoke(graph, Command(resume=f"yes {turn}"), thread())
        assert result["trail"][-2:] == [f"inner_ask: yes {turn}", "outer_last"]
    for name in ("outer_first", "middle_first", "inner_first", "outer_last"):
        assert runs.names.count(name) == 2


@pytest.mark.parametrize(
    ("checkpointer", "private"),
    [
        (None, ["private 0", "said nothing"]),
        (True, ["private 0", "said nothing", "private 2", "said nothing"]),
        (False, None),
    ],
)
async def test_what_a_subgraph_remembers(
    saver: DurableSaver, drive: Drive, checkpointer: Checkpointer, private: list[str] | None
) -> None:
    graph = subgraph_node(saver, ignore, checkpointer=checkpointer, asks=False)
    for _ in range(2):
        await drive.invoke(graph, {"outer": [], "shared": []}, thread())
    inner = [found for found in saver.list(thread()) if found.config["configurable"]["checkpoint_ns"]]
    if private is None:
        assert inner == []
        return
    newest = inner[0]
    assert newest.checkpoint["channel_values"]["private"] == private
    namespaces = {found.config["configurable"]["checkpoint_ns"] for found in inner}
    if checkpointer is True:
        assert namespaces == {"inner"}
    else:  # a namespace for each call
        assert len(namespaces) == 2
        assert all(ns.startswith("inner:") for ns in namespaces)


@pytest.mark.context
async def test_a_question_without_a_checkpointer_starts_the_subgraph_over(
    saver: DurableSaver, drive: Drive
) -> None:
    runs = Runs()
    graph = subgraph_node(saver, runs, checkpointer=False)
    await drive.invoke(graph, {"outer": [], "shared": []}, thread())
    result = await drive.invoke(graph, Command(resume="yes"), thread())
    assert result == {"outer": ["last"], "shared": []}
    assert runs.names == ["remember", "answer", "remember", "answer", "outer_last"]


@pytest.mark.context
async def test_update_of_a_subgraph_state(saver: DurableSaver, drive: Drive) -> None:
    runs = Runs()
    graph = subgraph_node(saver, runs)
    await drive.invoke(graph, {"outer": [], "shared": ["input"]}, thread())
    state = substate(await drive.state(graph, thread(), subgraphs=True))
    await drive.update(graph, state.config, {"shared": ["updated"]})
    changed = substate(await drive.state(graph, thread(), subgraphs=True))
    assert changed.values["shared"] == ["input", "updated"]
    assert changed.next == ("answer",)
    await drive.invoke(graph, None, thread())
    result = await drive.invoke(graph, Command(resume="yes"), thread())
    assert "updated" in result["shared"]
    assert runs.names.count("remember") == 1


@pytest.mark.context
async def test_a_subgraph_skipped_by_update(saver: DurableSaver, drive: Drive) -> None:
    runs = Runs()
    graph = subgraph_node(saver, runs)
    await drive.invoke(graph, {"outer": [], "shared": []}, thread())
    await drive.update(graph, thread(), {"shared": ["instead"]}, "inner")
    result = await drive.invoke(graph, None, thread())
    assert result == {"outer": ["last"], "shared": ["instead"]}
    assert runs.names == ["remember", "answer", "outer_last"]


@pytest.mark.parametrize("checkpointer", [None, True])
@pytest.mark.context
async def test_history_of_a_subgraph(saver: DurableSaver, drive: Drive, checkpointer: Checkpointer) -> None:
    graph = subgraph_node(saver, ignore, checkpointer=checkpointer)
    await drive.invoke(graph, {"outer": [], "shared": []}, thread())
    inner = substate(await drive.state(graph, thread(), subgraphs=True))
    config: RunnableConfig = thread(checkpoint_ns=inner.config["configurable"]["checkpoint_ns"])
    history = await drive.history(graph, config)
    assert [s.next for s in history] == [("answer",), ("remember",), ("__start__",)]
    await drive.invoke(graph, Command(resume="yes"), thread())
    history = await drive.history(graph, config)
    assert [s.next for s in history] == [(), ("answer",), ("remember",), ("__start__",)]
    assert history[0].values["private"] == ["private 0", "said yes"]
    outer = await drive.history(graph, thread())
    assert [s.next for s in outer] == [(), ("outer_last",), ("inner",), ("__start__",)]


@pytest.mark.context
async def test_replay_from_inside_a_subgraph(saver: DurableSaver, drive: Drive) -> None:
    runs = Runs()
    graph = subgraph_node(saver, runs)
    await drive.invoke(graph, {"outer": [], "shared": []}, thread())
    inner = substate(await drive.state(graph, thread(), subgraphs=True))
    await drive.invoke(graph, Command(resume="one"), thread())
    result = await drive.invoke(graph, None, inner.config)
    assert [i.value for i in result["__interrupt__"]] == ["inner?"]
    result = await drive.invoke(graph, Command(resume="two"), thread())
    assert result["outer"] == ["last"]
    # LangGraph replays the parent's step, and the subgraph in it from its start.
    assert runs.names[4:] == ["remember", "answer", "answer", "outer_last"]


@pytest.mark.context
async def test_metadata_names_the_parents(saver: DurableSaver, drive: Drive) -> None:
    graph = subgraph_node(saver, ignore)
    await drive.invoke(graph, {"outer": [], "shared": []}, thread())
    parents: dict[str, Any] = {
        found.config["configurable"]["checkpoint_ns"]: found.metadata["parents"]
        for found in saver.list(thread())
    }
    outer = (await drive.state(graph, thread())).config["configurable"]["checkpoint_id"]
    [inner] = [ns for ns in parents if ns]
    assert parents == {"": {}, inner: {"": outer}}

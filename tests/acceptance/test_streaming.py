"""Streaming and batching of graphs with checkpoints."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command

from langgraph_durable import DurableSaver
from tests.acceptance.driving import Drive, checkpoint_id, thread
from tests.acceptance.graphs import CHAIN, Graph, ask, branches, chain, ignore
from tests.acceptance.subgraphs import subgraph_node


def chat(saver: DurableSaver, *answers: str) -> Graph:
    model = GenericFakeChatModel(messages=iter([AIMessage(answer) for answer in answers]))

    def talk(state: MessagesState) -> dict[str, Any]:
        return {"messages": [model.invoke(state["messages"])]}

    builder = StateGraph(MessagesState)
    builder.add_node("talk", talk)
    builder.add_edge(START, "talk")
    return builder.compile(checkpointer=saver)


async def test_stream_of_values_and_updates(saver: DurableSaver, drive: Drive) -> None:
    graph = chain(saver, ignore)
    chunks = await drive.stream(graph, {"trail": []}, thread(), stream_mode=["values", "updates"])
    assert [c for mode, c in chunks if mode == "updates"] == [{n: {"trail": [n]}} for n in CHAIN]
    assert [c["trail"] for mode, c in chunks if mode == "values"] == [list(CHAIN[:n]) for n in range(5)]


@pytest.mark.context
async def test_interrupts_are_streamed(saver: DurableSaver, drive: Drive) -> None:
    graph = ask(saver, ignore)
    chunks = await drive.stream(graph, {"trail": []}, thread(), stream_mode="updates")
    assert list(chunks[-1]) == ["__interrupt__"]
    rest = await drive.stream(graph, Command(resume="yes"), thread(), stream_mode="updates")
    assert rest == [{"ask": {"trail": ["ask: yes"]}}, {"after": {"trail": ["after"]}}]


async def test_stream_of_messages(saver: DurableSaver, drive: Drive) -> None:
    graph = chat(saver, "one two", "three")
    given = {"messages": [HumanMessage("hello")]}
    chunks = await drive.stream(graph, given, thread(), stream_mode="messages")
    assert "".join(message.content for message, _ in chunks) == "one two"
    await drive.invoke(graph, {"messages": [HumanMessage("again")]}, thread())
    messages = (await drive.state(graph, thread())).values["messages"]
    assert [m.content for m in messages] == ["hello", "one two", "again", "three"]
    assert [type(m) for m in messages] == [HumanMessage, AIMessage] * 2
    assert len({m.id for m in messages}) == 4


async def test_streamed_checkpoints_are_the_stored_ones(saver: DurableSaver, drive: Drive) -> None:
    graph = chain(saver, ignore)
    chunks = await drive.stream(graph, {"trail": []}, thread(), stream_mode="checkpoints")
    stored = (await drive.history(graph, thread()))[::-1]
    ids = [chunk["config"]["configurable"]["checkpoint_id"] for chunk in chunks]
    assert ids == [checkpoint_id(snapshot) for snapshot in stored]
    assert [chunk["values"] for chunk in chunks] == [snapshot.values for snapshot in stored]
    assert [chunk["next"] for chunk in chunks] == [list(snapshot.next) for snapshot in stored]


async def test_stream_of_tasks_and_debug_events(saver: DurableSaver, drive: Drive) -> None:
    graph = branches(saver, ignore)
    chunks = await drive.stream(graph, {"trail": []}, thread(), stream_mode="tasks")
    assert {c["name"] for c in chunks if "input" in c} == {"left", "middle", "right", "last"}
    assert {c["name"] for c in chunks if "result" in c} == {"left", "middle", "right", "last"}
    chunks = await drive.stream(graph, {"trail": []}, thread("debug"), stream_mode="debug")
    kinds = [c["type"] for c in chunks]
    assert (kinds.count("checkpoint"), kinds.count("task"), kinds.count("task_result")) == (4, 4, 4)


async def test_stream_includes_subgraphs(saver: DurableSaver, drive: Drive) -> None:
    graph = subgraph_node(saver, ignore, asks=False)
    given: dict[str, list[str]] = {"outer": [], "shared": []}
    chunks = await drive.stream(graph, given, thread(), stream_mode="updates", subgraphs=True)
    assert [(len(ns), next(iter(c))) for ns, c in chunks] == [
        (1, "remember"), (1, "answer"), (0, "inner"), (0, "outer_last"),
    ]  # fmt: skip


async def test_run_resumes_after_its_stream_was_closed_early(saver: DurableSaver, drive: Drive) -> None:
    graph = chain(saver, ignore)
    if drive.asynchronous:
        stream = graph.astream({"trail": []}, thread(), stream_mode="updates", durability="sync")
        async for _ in stream:
            break
        await stream.aclose()  # type: ignore[attr-defined]
    else:
        sync_stream = graph.stream({"trail": []}, thread(), stream_mode="updates", durability="sync")
        next(iter(sync_stream))
        sync_stream.close()  # type: ignore[attr-defined]
    assert await drive.invoke(graph, None, thread()) == {"trail": list(CHAIN)}


@pytest.mark.context
async def test_astream_events_yields_chunks_and_stores_the_state(saver: DurableSaver) -> None:
    graph = chat(saver, "one two")
    given = {"messages": [HumanMessage("hello")]}
    events = [event async for event in graph.astream_events(given, thread(), version="v2")]
    names = [(event["event"], event["name"]) for event in events]
    assert ("on_chain_end", "LangGraph") in names
    streamed = [e["data"]["chunk"].content for e in events if e["event"] == "on_chat_model_stream"]
    assert "".join(streamed) == "one two"
    state = await graph.aget_state(thread())
    assert [m.content for m in state.values["messages"]] == ["hello", "one two"]


async def test_batch_runs_each_thread_separately(saver: DurableSaver, drive: Drive) -> None:
    graph = chain(saver, ignore)
    configs = [thread(f"thread {number}") for number in range(8)]
    results = await drive.batch(graph, [{"trail": [str(number)]} for number in range(8)], configs)
    assert results == [{"trail": [str(number), *CHAIN]} for number in range(8)]
    for config, result in zip(configs, results, strict=True):
        assert (await drive.state(graph, config)).values == result
        assert len(await drive.history(graph, config)) == 6

"""Effects that failed and whose calls come again: what was done for the call elsewhere meanwhile is not done again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, RetryPolicy, interrupt

from langgraph_durable import DurableSaver, Happened, NotHappened
from langgraph_durable.effects import EffectRecord
from tests.acceptance.driving import Drive, interrupts, thread
from tests.acceptance.effect_graphs import (
    GIVEN,
    Body,
    World,
    agent,
    before_tools,
    calls,
    made,
    remind,
    states,
    told,
)

pytestmark = pytest.mark.context


def failing_once(world: World) -> Body:
    """Return a body that loses its connection before it sends for the first time."""
    faults = [ConnectionError("not sent")]

    def remind(text: str) -> Any:
        if faults:
            raise faults.pop()
        return world(text)

    return remind


def finding(world: World) -> Callable[[EffectRecord], Happened | NotHappened]:
    def find(record: EffectRecord) -> Happened | NotHappened:
        text = (record.args or {})["text"]
        return Happened(f"did {text}") if text in world.done else NotHappened()

    return find


async def test_a_failed_call_gets_what_another_branch_did(
    saver: DurableSaver, drive: Drive, world: World
) -> None:
    tool = made(drive, failing_once(world), verify=finding(world))
    graph = agent(saver, [tool], calls(("remind", "a", "1")))
    with pytest.raises(ConnectionError):
        await drive.invoke(graph, GIVEN, thread())
    failed = await before_tools(drive, graph)
    history = await drive.history(graph, thread())
    before_model = next(state.config for state in history if "model" in state.next)
    result = await drive.invoke(graph, None, before_model)
    assert told(result) == ["did a"]
    assert sorted(states(saver)) == ["completed", "failed"]
    assert told(await drive.invoke(graph, None, failed)) == ["did a"]
    assert world.done == ["a"]
    assert states(saver) == ["completed", "completed"]
    events = [
        (event.from_state, event.to_state)
        for record in saver.effects.list()
        for event in saver.effects.history(record.effect_id)
    ]
    assert ("failed", "completed") in events


async def test_on_fork_new_lets_a_failed_call_begin_again(
    saver: DurableSaver, drive: Drive, world: World
) -> None:
    tool = made(drive, failing_once(world), verify=finding(world), on_fork="new")
    graph = agent(saver, [tool], calls(("remind", "a", "1")))
    with pytest.raises(ConnectionError):
        await drive.invoke(graph, GIVEN, thread())
    failed = await before_tools(drive, graph)
    history = await drive.history(graph, thread())
    before_model = next(state.config for state in history if "model" in state.next)
    await drive.invoke(graph, None, before_model)
    await drive.invoke(graph, None, failed)
    assert world.done == ["a", "a"]


async def test_a_retried_graph_that_waits_does_not_repeat_what_the_retry_did(
    saver: DurableSaver, drive: Drive, world: World
) -> None:
    """For the human's answer, LangGraph begins with the first attempt's graph again, which had failed."""

    def confirm(text: str) -> Any:
        return interrupt(text)

    tools = [
        made(drive, failing_once(world), verify=finding(world)),
        made(drive, confirm, verify=lambda record: NotHappened()),
    ]
    asked = calls(("confirm", "sure?", "1"), ("remind", "a", "2"))
    inner = agent(None, tools, asked, apart=True)
    retry = RetryPolicy(retry_on=ConnectionError, initial_interval=0.01, jitter=False)
    builder = StateGraph(MessagesState)
    builder.add_node("inner", inner, retry_policy=retry)
    builder.add_edge(START, "inner")
    graph = builder.compile(checkpointer=saver)
    await drive.invoke(graph, GIVEN, thread())
    for _ in range(2):  # the first graph may ask anew
        [waiting] = interrupts(await drive.state(graph, thread()))
        result = await drive.invoke(graph, Command(resume={waiting.id: "yes"}), thread())
        if not (await drive.state(graph, thread())).next:
            break
    assert sorted(told(result)) == ["did a", "yes"]
    assert world.done == ["a"]


async def test_a_graph_that_a_node_calls_twice_does_both(
    saver: DurableSaver, drive: Drive, world: World
) -> None:
    inner = agent(None, [made(drive, remind(world))], calls(("remind", "a", "1")))

    def node(state: MessagesState) -> dict[str, Any]:
        told: list[Any] = [inner.invoke(GIVEN)["messages"][-2].content for _ in range(2)]
        return {"messages": [("ai", " ".join(told))]}

    async def anode(state: MessagesState) -> dict[str, Any]:
        told: list[Any] = [(await inner.ainvoke(GIVEN))["messages"][-2].content for _ in range(2)]
        return {"messages": [("ai", " ".join(told))]}

    builder = StateGraph(MessagesState)
    builder.add_node("node", anode if drive.asynchronous else node)
    builder.add_edge(START, "node")
    graph = builder.compile(checkpointer=saver)
    result = await drive.invoke(graph, GIVEN, thread())
    assert result["messages"][-1].content == "did a did a"
    assert world.done == ["a", "a"]

"""Cases that random programs found: effects of steps that were given up, and of other places in the graph."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langgraph.func import entrypoint, task
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt

from langgraph_durable import DurableSaver, EffectPolicy, Happened, NotHappened, effect
from langgraph_durable.errors import EffectUnknownError
from tests.acceptance.driving import Drive, interrupts, thread
from tests.acceptance.effect_graphs import GIVEN, World, agent, calls, made, remind, states, told
from tests.acceptance.graphs import Graph
from tests.acceptance.test_effect_lineage import Faults, State, fail, node
from tests.effects import SCHEMA

pytestmark = pytest.mark.context

AGAIN = {"messages": [HumanMessage("go on")]}


# --- effects inside effects ---


def ordering(drive: Drive, world: World, faults: Faults) -> Any:
    """Return an effect that pays by an inner effect, and may fail after that."""
    if drive.asynchronous:

        @effect(name="pay")
        async def apay(text: str) -> str:
            return world(text)

        @effect(name="order", idempotent=True)
        async def aorder(text: str) -> str:
            result = await apay(text)
            faults()
            return result

        return aorder

    @effect(name="pay")
    def pay(text: str) -> str:
        return world(text)

    @effect(name="order", idempotent=True)
    def order(text: str) -> str:
        result = pay(text)
        faults()
        return result

    return order


def ordering_node(saver: DurableSaver, drive: Drive, world: World, faults: Faults) -> Graph:
    order = ordering(drive, world, faults)

    async def body(state: State) -> dict[str, Any]:
        result = order("once")
        return {"out": [await result if drive.asynchronous else result]}

    builder = StateGraph(State)
    builder.add_node("first", lambda state: {"out": ["first"]})
    builder.add_node("second", node(drive, body))
    builder.add_edge(START, "first")
    builder.add_edge("first", "second")
    return builder.compile(checkpointer=saver)


@pytest.mark.parametrize("how", ["update", "same input"])
async def test_an_inner_effect_of_an_abandoned_one_is_replayed(
    saver: DurableSaver, drive: Drive, world: World, how: str
) -> None:
    graph = ordering_node(saver, drive, world, Faults(1))
    await fail(drive, graph)
    if how == "update":
        await drive.update(graph, thread(), {"fixed": True}, "first")
    result = await drive.invoke(graph, None if how == "update" else {"out": []}, thread())
    assert (world.done, result["out"][-1]) == (["once"], "did once")


async def test_an_inner_effect_is_replayed_if_only_its_outer_one_s_error_was_delivered(
    saver: DurableSaver, drive: Drive, world: World
) -> None:
    graph = agent(
        saver,
        [tool("order", description="Order it.")(ordering(drive, world, Faults(1)))],
        calls(("order", "a", "1")),
        calls(("order", "a", "2")),
        calls(("order", "a", "3")),
        errors=True,
    )
    result = await drive.invoke(graph, GIVEN, thread())
    assert told(result)[1:] == ["did a", "did a"]
    assert world.done == ["a", "a"]  # the third request is a new one: the second was answered


# --- tools that waited for a human after their request ---


@pytest.mark.parametrize("happened", [True, False])
async def test_an_abandoned_tool_that_waited_after_its_request_is_verified(
    saver: DurableSaver, drive: Drive, world: World, happened: bool
) -> None:
    def find(record: Any) -> Happened | NotHappened:
        return Happened(f"found {world.done[0]}") if happened else NotHappened()

    def remind(text: str) -> Any:
        if happened:
            world(text)
        interrupt("tip?")
        return "done"

    script = calls(("remind", "a", "1")), calls(("remind", "a", "2"))
    graph = agent(saver, [made(drive, remind, verify=find)], *script)
    await drive.invoke(graph, GIVEN, thread())
    assert states(saver) == ["suspended"]
    result = await drive.invoke(graph, AGAIN, thread())
    if happened:
        assert (world.done, told(result)) == (["a"], ["found a"])
    else:
        [question] = interrupts(await drive.state(graph, thread()))
        assert question.value == "tip?"


async def test_a_human_is_asked_about_an_abandoned_tool_that_waited(
    saver: DurableSaver, drive: Drive, world: World
) -> None:
    def remind(text: str) -> Any:
        world(text)
        return interrupt("tip?")

    script = calls(("remind", "a", "1")), calls(("remind", "a", "2"))
    graph = agent(saver, [made(drive, remind, policy=EffectPolicy(on_unknown="ask"))], *script)
    await drive.invoke(graph, GIVEN, thread())
    await drive.invoke(graph, AGAIN, thread())
    [question] = interrupts(await drive.state(graph, thread()))
    assert question.value["question"] == "Did remind take place?"
    assert world.done == ["a"]


# --- equal calls at other places ---


@pytest.mark.parametrize("place", ["same", "other"])
async def test_an_unknown_effect_is_a_possible_duplicate_only_at_its_place(
    saver: DurableSaver, drive: Drive, world: World, place: str
) -> None:
    reminder = made(drive, remind(world))

    async def call(state: State) -> dict[str, Any]:
        try:
            given = {"text": "a"}
            result = await reminder.ainvoke(given) if drive.asynchronous else reminder.invoke(given)
        except ConnectionError:
            result = "lost"
        return {"out": [result]}

    builder = StateGraph(State)
    builder.add_node("first", node(drive, call))
    builder.add_node("second", node(drive, call))
    builder.add_edge(START, "first")
    if place == "other":
        builder.add_edge("first", "second")
    graph = builder.compile(checkpointer=saver)
    world.trouble = [ConnectionError("the answer was lost")]
    result = await drive.invoke(graph, {"out": []}, thread())
    if place == "other":
        assert (result["out"], world.done) == (["lost", "did a"], ["a", "a"])
        return
    with pytest.raises(EffectUnknownError):
        await drive.invoke(graph, {"out": []}, thread())
    assert world.done == ["a"]


# --- who was given an outcome ---


async def test_a_branch_is_given_an_outcome_once_under_whichever_key(
    saver: DurableSaver, drive: Drive, world: World
) -> None:
    trouble: list[BaseException] = [ConnectionError("down")]

    def look(text: str) -> Any:
        if trouble:
            raise trouble.pop()
        return "looked"

    tools = [made(drive, remind(world)), made(drive, look, idempotent=True)]
    script = calls(("remind", "a", "1"), ("look", "b", "2")), calls(("remind", "a", "3"))
    graph = agent(saver, tools, *script)
    await fail(drive, graph, GIVEN)
    asked = await drive.state(graph, thread())
    assert told(await drive.invoke(graph, AGAIN, thread())) == ["did a"]
    assert world.done == ["a"]  # the second message's call took the first one's outcome
    result = await drive.invoke(graph, None, asked.config)
    assert told(result) == ["did a", "looked", "did a"]
    assert world.done == ["a", "a"]  # on this branch both messages were answered


async def test_an_outcome_that_was_found_out_later_is_still_to_be_delivered(
    saver: DurableSaver, drive: Drive, world: World
) -> None:
    """The model received an error, so its next request is the same one; the one after that is another."""
    script = [calls(("remind", "a", number)) for number in "123"]
    graph = agent(saver, [made(drive, remind(world))], script[0], errors=True)
    world.trouble = [ConnectionError("the answer was lost")]
    await drive.invoke(graph, GIVEN, thread())
    [record] = saver.effects.list()
    assert record.state == "unknown"
    saver.effects.resolve(record.effect_id, Happened("found a"))
    graph = agent(saver, [made(drive, remind(world))], script[0], calls(), script[1], script[2], errors=True)
    result = await drive.invoke(graph, AGAIN, thread())
    assert told(result)[1:] == ["found a", "did a"]
    assert world.done == ["a", "a"]


async def test_an_outcome_that_was_found_out_is_delivered_by_the_task_that_asked(
    saver: DurableSaver, drive: Drive, world: World
) -> None:
    script = [calls(("remind", "a", number)) for number in "12"]
    find = {"verify": lambda record: Happened("found a")}
    graph = agent(saver, [made(drive, remind(world), **find)], *script)
    world.trouble = [ConnectionError("the answer was lost")]
    await fail(drive, graph, GIVEN)
    result = await drive.invoke(graph, None, thread())
    assert told(result) == ["found a", "did a"]
    assert world.done == ["a", "a"]


# --- answers that chose the arguments ---


@pytest.mark.parametrize("where", ["caller", "outer node", "thread"])
async def test_an_answer_is_stored_before_an_effect_that_it_may_decide(
    saver: DurableSaver, drive: Drive, conninfo: str, where: str
) -> None:
    """A human who is asked again after a crash may decide otherwise."""
    stored: list[int] = []

    def body(text: str) -> str:
        with psycopg.connect(conninfo) as connection:
            query = f"SELECT count(*) FROM {SCHEMA}.writes WHERE channel = '__resume__'"
            stored.extend(found for (found,) in connection.execute(query))
        return text

    graph = {"caller": by_task, "outer node": by_subgraph, "thread": by_node}[where](saver, drive, body)
    await drive.invoke(graph, {"out": []}, thread())
    [question] = interrupts(await drive.state(graph, thread()))
    await drive.invoke(graph, Command(resume={question.id: "a"}), thread())
    assert stored == [1]


def by_task(saver: DurableSaver, drive: Drive, body: Any) -> Graph:
    if drive.asynchronous:

        @effect(name="pay")
        async def apay(text: str) -> str:
            return str(body(text))

        @task
        async def acall(text: str) -> str:
            return await apay(text)

        @entrypoint(checkpointer=saver)
        async def aworkflow(given: Any) -> str:
            return await acall(interrupt("who?"))

        return aworkflow

    @effect(name="pay")
    def pay(text: str) -> str:
        return str(body(text))

    @task
    def call(text: str) -> str:
        return pay(text)

    @entrypoint(checkpointer=saver)
    def workflow(given: Any) -> str:
        return call(interrupt("who?")).result()

    return workflow


def by_node(saver: Any, drive: Drive, body: Any, *, asks: bool = True) -> Graph:
    def pay(text: str) -> Any:
        return body(text)

    reminder = made(drive, pay, scope="thread" if asks else "call")

    async def call(state: State) -> dict[str, Any]:
        given = {"text": interrupt("who?") if asks else state["out"][-1]}
        return {"out": [await reminder.ainvoke(given) if drive.asynchronous else reminder.invoke(given)]}

    builder = StateGraph(State)
    builder.add_node("call", node(drive, call))
    builder.add_edge(START, "call")
    return builder.compile(checkpointer=saver)


def by_subgraph(saver: DurableSaver, drive: Drive, body: Any) -> Graph:
    subgraph = by_node(None, drive, body, asks=False)

    async def call(state: State) -> dict[str, Any]:
        given = {"out": [interrupt("who?")]}
        return await subgraph.ainvoke(given) if drive.asynchronous else subgraph.invoke(given)

    builder = StateGraph(State)
    builder.add_node("outer", node(drive, call))
    builder.add_edge(START, "outer")
    return builder.compile(checkpointer=saver)

"""Which call is it: effects on forks, in abandoned steps, of retried nodes, and of messages that come twice."""

from __future__ import annotations

import asyncio
import gc
import operator
import os
import signal
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any

import psycopg
import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.func import entrypoint, task
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import InjectedState, ToolNode, tools_condition
from langgraph.types import Command, RetryPolicy, Send, StateUpdate
from typing_extensions import TypedDict

from langgraph_durable import DurableSaver, Happened, NotHappened, current_effect, effect
from langgraph_durable._checkpoints.known import NestedAttempts
from langgraph_durable._postgres.drivers import AsyncDatabase, BlockingDatabase
from langgraph_durable._postgres.statement import Statement
from langgraph_durable.cli.main import main
from langgraph_durable.effects import EffectRecord
from langgraph_durable.effects._storage import statements as sql
from langgraph_durable.errors import EffectConflictError, EffectDuplicateError, EffectForkedError
from tests.acceptance.driving import Drive, interrupts, thread
from tests.acceptance.effect_graphs import GIVEN, World, agent, calls, made, remind, told
from tests.acceptance.effect_workers import context
from tests.acceptance.graphs import Graph
from tests.effects import SCHEMA, age

pytestmark = pytest.mark.context

RETRY = RetryPolicy(retry_on=ConnectionError, initial_interval=0.01, jitter=False)


class State(TypedDict, total=False):
    out: Annotated[list[Any], operator.add]
    fixed: bool


class Faults:
    """Raises a ConnectionError a number of times."""

    def __init__(self, count: int = 0) -> None:
        self.left = count

    def __call__(self) -> None:
        if self.left:
            self.left -= 1
            raise ConnectionError("after the effect")


def charge(drive: Drive, world: World, **policy: Any) -> Callable[[str], Awaitable[Any]]:
    """Return a function to await, whose body is an effect."""

    if drive.asynchronous:

        @effect(name="charge", **policy)
        async def acharge(text: str) -> str:
            return world(text)

        return acharge

    @effect(name="charge", **policy)
    def sync_charge(text: str) -> str:
        return world(text)

    async def call(text: str) -> str:
        return sync_charge(text)

    return call


def node(drive: Drive, body: Callable[[Any], Awaitable[dict[str, Any]]]) -> Any:
    """Return a node for sync or async graphs."""
    if drive.asynchronous:

        async def arun(state: Any) -> dict[str, Any]:
            return await body(state)

        return arun

    def run(state: Any) -> dict[str, Any]:
        try:
            body(state).__await__().send(None)
        except StopIteration as stop:
            result: dict[str, Any] = stop.value
            return result
        raise AssertionError("sync bodies do not wait")

    return run


def paying(saver: DurableSaver, drive: Drive, world: World, faults: Faults, **policy: Any) -> Graph:
    """Return a graph of two nodes, of which the second charges."""
    pay = charge(drive, world, **policy)

    async def second(state: State) -> dict[str, Any]:
        result = await pay("once")
        faults()
        return {"out": [result]}

    builder = StateGraph(State)
    builder.add_node("first", lambda state: {"out": ["first"]})
    builder.add_node("second", node(drive, second))
    builder.add_edge(START, "first")
    builder.add_edge("first", "second")
    return builder.compile(checkpointer=saver)


async def fail(drive: Drive, graph: Graph, given: Any = None) -> None:
    with pytest.raises(ConnectionError):
        await drive.invoke(graph, given or {"out": []}, thread())


# --- forks of plain nodes ---


async def by_update(drive: Drive, graph: Graph) -> Any:
    await drive.update(graph, thread(), {"fixed": True}, "first")
    return await drive.invoke(graph, None, thread())


async def by_bulk_update(drive: Drive, graph: Graph) -> Any:
    update = StateUpdate({"fixed": True}, "first")
    await drive.bulk_update(graph, thread(), [[update], [update]])
    return await drive.invoke(graph, None, thread())


async def by_latest_checkpoint(drive: Drive, graph: Graph) -> Any:
    return await drive.invoke(graph, None, (await drive.state(graph, thread())).config)


async def by_time_travel(drive: Drive, graph: Graph) -> Any:
    await drive.invoke(graph, None, thread())
    before = [s for s in await drive.history(graph, thread()) if s.next == ("second",)][-1]
    return await drive.invoke(graph, None, before.config)


FORKS = [by_update, by_bulk_update, by_latest_checkpoint, by_time_travel]


@pytest.mark.parametrize("fork", FORKS)
async def test_a_plain_node_on_a_fork_gets_the_outcome(
    saver: DurableSaver, drive: Drive, world: World, fork: Any
) -> None:
    graph = paying(saver, drive, world, Faults(1))
    await fail(drive, graph)
    result = await fork(drive, graph)
    assert world.done == ["once"]
    assert result["out"][-1] == "did once"


@pytest.mark.parametrize("fork", FORKS)
async def test_a_plain_node_on_a_fork_is_refused(
    saver: DurableSaver, drive: Drive, world: World, fork: Any
) -> None:
    graph = paying(saver, drive, world, Faults(1), on_fork="raise")
    await fail(drive, graph)
    with pytest.raises(EffectForkedError):
        await fork(drive, graph)
    assert world.done == ["once"]


@pytest.mark.parametrize("fork", FORKS)
async def test_a_plain_node_on_a_fork_runs_again_on_request(
    saver: DurableSaver, drive: Drive, world: World, fork: Any
) -> None:
    graph = paying(saver, drive, world, Faults(1), on_fork="new")
    await fail(drive, graph)
    await fork(drive, graph)
    assert world.done == ["once", "once"]


@pytest.mark.parametrize(("decision", "done"), [("replay", 1), ("new", 2)])
async def test_a_human_decides_about_a_plain_node_on_a_fork(
    saver: DurableSaver, drive: Drive, world: World, decision: str, done: int
) -> None:
    graph = paying(saver, drive, world, Faults(1), on_fork="ask")
    await fail(drive, graph)
    await by_update(drive, graph)
    [question] = interrupts(await drive.state(graph, thread()))
    assert "another branch" in question.value["question"]
    await drive.invoke(graph, None, thread())  # without an answer it is asked again
    [question] = interrupts(await drive.state(graph, thread()))
    answer = {"effect": question.value["effect"], "decision": decision}
    result = await drive.invoke(graph, Command(resume=answer), thread())
    assert world.done == ["once"] * done
    assert result["out"][-1] == "did once"


async def test_an_unknown_effect_on_a_fork_is_resolved_first(
    saver: DurableSaver, drive: Drive, world: World
) -> None:
    world.trouble = [TimeoutError("no answer")]
    graph = paying(saver, drive, world, Faults(), on_fork="new", verify=lambda record: Happened("verified"))
    with pytest.raises(TimeoutError):
        await drive.invoke(graph, {"out": []}, thread())
    result = await by_update(drive, graph)
    assert world.done == ["once", "once"]
    assert result["out"][-1] == "did once"
    assert [record.state for record in saver.effects.list()] == ["completed", "completed"]


async def test_the_source_of_a_checkpoint_is_known_whatever_is_indexed(
    conninfo: str, drive: Drive, world: World
) -> None:
    async with DurableSaver.from_conn_string(conninfo, indexed_metadata=["customer"]) as saver:
        graph = paying(saver, drive, world, Faults(1))
        await fail(drive, graph)
        await drive.invoke(graph, {"out": []}, thread())
        assert world.done == ["once"]
        await drive.invoke(graph, {"out": []}, thread())
        assert world.done == ["once", "once"]


async def test_each_outcome_is_given_to_a_fork_once(saver: DurableSaver, drive: Drive, world: World) -> None:
    """A node that charges twice with equal arguments gets both outcomes, and a third call is a new effect."""
    wanted = [2]
    pay = charge(drive, world)

    async def many(state: State) -> dict[str, Any]:
        return {"out": [await pay("same") for _ in range(wanted[0])]}

    builder = StateGraph(State)
    builder.add_node("many", node(drive, many))
    builder.add_edge(START, "many")
    graph = builder.compile(checkpointer=saver)
    await drive.invoke(graph, {"out": []}, thread())
    before = [s for s in await drive.history(graph, thread()) if s.next == ("many",)][-1]
    wanted[0] = 3
    result = await drive.invoke(graph, None, before.config)
    assert world.done == ["same"] * 3
    assert len(result["out"]) == 3


async def test_a_task_of_an_entrypoint_on_a_fork_gets_the_outcome(
    saver: DurableSaver, drive: Drive, world: World
) -> None:
    pay = charge(drive, world)

    async def work(text: str) -> str:
        return str(await pay(text))

    if drive.asynchronous:
        paid = task(work)

        @entrypoint(checkpointer=saver)
        async def amain(given: str) -> str:
            return await paid(given)

        graph: Graph = amain
    else:
        run = node(drive, work)  # type: ignore[arg-type]

        @task
        def sync_work(text: str) -> Any:
            return run(text)

        @entrypoint(checkpointer=saver)
        def main(given: str) -> Any:
            return sync_work(given).result()

        graph = main
    await drive.invoke(graph, "a", thread())
    first = (await drive.history(graph, thread()))[-1]
    assert await drive.invoke(graph, None, first.config) == "did a"
    assert world.done == ["a"]


# --- messages that come twice ---


def repeating(saver: DurableSaver, tools: Any, steps: int) -> Graph:
    """Return a graph whose model gives one message, with one id, in each of its steps, as a cache does."""

    def model(state: State) -> dict[str, Any]:
        message = calls(("remind", "a", "1"))
        return {"out": [message.model_copy(update={"id": "cached"})]}

    tool_node = ToolNode(tools, messages_key="out", handle_tool_errors=False)
    builder = StateGraph(State)
    builder.add_node("model", model)
    builder.add_node("tools", tool_node)
    builder.add_edge(START, "model")
    builder.add_edge("model", "tools")
    builder.add_conditional_edges(
        "tools", lambda state: "model" if len(state["out"]) < 2 * steps else "__end__", ["model", "__end__"]
    )
    return builder.compile(checkpointer=saver)


async def test_a_cached_message_is_carried_out_in_each_step(
    saver: DurableSaver, drive: Drive, world: World
) -> None:
    graph = repeating(saver, [made(drive, remind(world))], 12)
    await drive.invoke(graph, {"out": []}, thread())
    assert world.done == ["a"] * 12
    assert len(list(saver.effects.list())) == 12


async def test_a_resume_replays_the_step_of_a_cached_message_that_it_repeats(
    saver: DurableSaver, drive: Drive, world: World
) -> None:
    faults = Faults()

    reminder = made(drive, remind(world))
    flaky = ToolNode([reminder], messages_key="out", handle_tool_errors=False)

    async def tools(state: State) -> dict[str, Any]:
        result = await flaky.ainvoke(state) if drive.asynchronous else flaky.invoke(state)
        faults()
        return result  # type: ignore[no-any-return]

    def model(state: State) -> dict[str, Any]:
        return {"out": [calls(("remind", "a", "1")).model_copy(update={"id": "cached"})]}

    builder = StateGraph(State)
    builder.add_node("model", model)
    builder.add_node("tools", node(drive, tools))
    builder.add_edge(START, "model")
    builder.add_edge("model", "tools")
    builder.add_conditional_edges(
        "tools", lambda state: "model" if len(state["out"]) < 4 else "__end__", ["model", "__end__"]
    )
    graph = builder.compile(checkpointer=saver, interrupt_after=["tools"])
    await drive.invoke(graph, {"out": []}, thread())
    faults.left = 1
    with pytest.raises(ConnectionError):
        await drive.invoke(graph, None, thread())
    await drive.invoke(graph, None, thread())
    assert world.done == ["a", "a"]


def sending(saver: DurableSaver, drive: Drive, world: World, texts: list[str], faults: Faults) -> Graph:
    """Return a graph that sends one message several times, with other arguments in each."""
    reminder = made(drive, remind(world))
    inner = ToolNode([reminder], handle_tool_errors=False)

    async def tools(state: Any) -> dict[str, Any]:
        result = await inner.ainvoke(state) if drive.asynchronous else inner.invoke(state)
        if len(world.done) >= 2:
            faults()
        return result  # type: ignore[no-any-return]

    def fan(state: MessagesState) -> list[Send]:
        sent = (calls(("remind", text, "1")).model_copy(update={"id": "one"}) for text in texts)
        return [Send("tools", {"messages": [message]}) for message in sent]

    builder = StateGraph(MessagesState)
    builder.add_node("start", lambda state: {})
    builder.add_node("tools", node(drive, tools))
    builder.add_edge(START, "start")
    builder.add_conditional_edges("start", fan, ["tools"])
    return builder.compile(checkpointer=saver)


@pytest.mark.parametrize("texts", [["ann", "bob", "eve"], ["same", "same", "same"]])
async def test_each_send_of_a_message_is_an_effect(
    saver: DurableSaver, drive: Drive, world: World, texts: list[str]
) -> None:
    graph = sending(saver, drive, world, texts, Faults())
    result = await drive.invoke(graph, GIVEN, thread())
    assert sorted(world.done) == sorted(texts)
    assert sorted(told(result)) == sorted(f"did {text}" for text in texts)


@pytest.mark.parametrize("texts", [["ann", "bob", "eve"], ["same", "same", "same"]])
async def test_a_resume_completes_the_sends_of_a_message(
    saver: DurableSaver, drive: Drive, world: World, texts: list[str]
) -> None:
    graph = sending(saver, drive, world, texts, Faults(1))
    with pytest.raises(ConnectionError):
        await drive.invoke(graph, GIVEN, thread(), durability="sync")
    result = await drive.invoke(graph, None, thread())
    assert sorted(world.done) == sorted(texts)
    assert sorted(told(result)) == sorted(f"did {text}" for text in texts)


@pytest.mark.parametrize("texts", [["ann", "bob", "eve"], ["same", "same", "same"]])
async def test_the_sends_of_a_message_get_their_own_outcomes_on_a_fork(
    saver: DurableSaver, drive: Drive, world: World, texts: list[str]
) -> None:
    graph = sending(saver, drive, world, texts, Faults())
    await drive.invoke(graph, GIVEN, thread())
    before = [s for s in await drive.history(graph, thread()) if "tools" in s.next][-1]
    result = await drive.invoke(graph, None, before.config)
    assert sorted(world.done) == sorted(texts)
    assert sorted(told(result)) == sorted(f"did {text}" for text in texts)
    given = {
        record.effect_id for record in saver.effects.for_checkpoint(thread(**await forked_from(drive, graph)))
    }
    assert given == {record.effect_id for record in saver.effects.list()}


async def forked_from(drive: Drive, graph: Graph) -> dict[str, str]:
    """Name the checkpoint from which the newest tools ran."""
    [newest, *_] = [s for s in await drive.history(graph, thread()) if "tools" in s.next]
    return {"checkpoint_id": newest.config["configurable"]["checkpoint_id"]}


async def test_other_arguments_of_the_same_call_are_a_conflict(
    saver: DurableSaver, drive: Drive, world: World
) -> None:
    graph = agent(saver, [made(drive, remind(world))], calls(("remind", "a", "1")))
    await drive.invoke(graph, GIVEN, thread())
    before = [s for s in await drive.history(graph, thread()) if "tools" in s.next][-1]
    message = before.values["messages"][-1]
    changed = calls(("remind", "b", "1")).model_copy(update={"id": message.id})
    forked = await drive.update(graph, before.config, {"messages": [changed]}, "model")
    with pytest.raises(EffectConflictError):
        await drive.invoke(graph, None, forked)
    assert world.done == ["a"]


# --- steps that were abandoned ---


async def test_a_new_message_after_a_crash_finds_what_was_done(
    saver: DurableSaver, drive: Drive, world: World
) -> None:
    graph = interrupted_agent(saver, drive, world)
    with pytest.raises(ConnectionError):
        await drive.invoke(graph, GIVEN, thread())
    result = await drive.invoke(graph, {"messages": [HumanMessage("and?")]}, thread())
    assert world.done == ["a"]
    assert told(result) == ["did a"]
    [adopter] = saver.effects.for_checkpoint(thread(**await forked_from(drive, graph)))
    [first, *_] = list(saver.effects.list())
    assert adopter.effect_id != first.effect_id
    assert adopter.idempotency_key == first.idempotency_key
    assert first.effect_id in (saver.effects.history(adopter.effect_id)[-1].reason or "")


async def test_what_was_found_once_is_a_new_effect_when_asked_for_again(
    saver: DurableSaver, drive: Drive, world: World
) -> None:
    """Each outcome is given once: the second equal call of the new message is wanted besides."""
    twice = calls(("remind", "a", "1"), ("remind", "a", "2"))
    graph = interrupted_agent(saver, drive, world, calls(("remind", "a", "1")), twice)
    with pytest.raises(ConnectionError):
        await drive.invoke(graph, GIVEN, thread())
    await drive.invoke(graph, {"messages": [HumanMessage("and?")]}, thread())
    assert world.done == ["a", "a"]


async def test_what_reached_the_state_is_a_new_effect_when_asked_for_again(
    saver: DurableSaver, drive: Drive, world: World
) -> None:
    again = calls(("remind", "a", "1"))
    graph = agent(saver, [made(drive, remind(world))], again, AIMessage("done"), again)
    await drive.invoke(graph, GIVEN, thread())
    await drive.invoke(graph, {"messages": [HumanMessage("once more")]}, thread())
    assert world.done == ["a", "a"]


@pytest.mark.parametrize("choice", ["new", "raise", "ask"])
async def test_the_policy_decides_about_what_was_not_delivered(
    saver: DurableSaver, drive: Drive, world: World, choice: str
) -> None:
    graph = interrupted_agent(saver, drive, world, on_undelivered=choice)
    with pytest.raises(ConnectionError):
        await drive.invoke(graph, GIVEN, thread())
    given = {"messages": [HumanMessage("and?")]}
    if choice == "raise":
        with pytest.raises(EffectDuplicateError) as raised:
            await drive.invoke(graph, given, thread())
        assert raised.value.effect_id in {record.effect_id for record in saver.effects.list()}
        assert world.done == ["a"]
        return
    await drive.invoke(graph, given, thread())
    if choice == "new":
        assert world.done == ["a", "a"]
        return
    [question] = interrupts(await drive.state(graph, thread()))
    assert "same request" in question.value["question"]
    answer = {"effect": question.value["effect"], "decision": "replay"}
    result = await drive.invoke(graph, Command(resume=answer), thread())
    assert world.done == ["a"]
    assert "did a" in told(result)


def interrupted_agent(
    saver: DurableSaver | None, drive: Drive, world: World, *script: AIMessage, **policy: Any
) -> Graph:
    """Return an agent whose tools' step ends by an error, once, after its effect. Then it asks again."""
    faults = Faults(1)
    inner = ToolNode([made(drive, remind(world), **policy)], handle_tool_errors=False)
    script = script or (calls(("remind", "a", "1")), calls(("remind", "a", "1")))

    async def tools(state: Any) -> dict[str, Any]:
        result: dict[str, Any] = await inner.ainvoke(state) if drive.asynchronous else inner.invoke(state)
        faults()
        return result

    def model(state: MessagesState) -> dict[str, Any]:
        said = sum(isinstance(m, AIMessage) for m in state["messages"])
        message = script[said] if said < len(script) else AIMessage("done")
        return {"messages": [message.model_copy(update={"id": None})]}

    builder = StateGraph(MessagesState)
    builder.add_node("model", model)
    builder.add_node("tools", node(drive, tools))
    builder.add_edge(START, "model")
    builder.add_conditional_edges("model", tools_condition)
    builder.add_edge("tools", "model")
    return builder.compile(checkpointer=saver)


# --- how old ---


def make_older(conninfo: str, by: timedelta) -> None:
    with psycopg.connect(conninfo) as connection:
        connection.execute(f"UPDATE {SCHEMA}.effects SET attempted_at = attempted_at - %s", [by])


async def test_an_old_outcome_is_not_given_silently(
    saver: DurableSaver, drive: Drive, world: World, conninfo: str
) -> None:
    graph = interrupted_agent(saver, drive, world)
    with pytest.raises(ConnectionError):
        await drive.invoke(graph, GIVEN, thread())
    make_older(conninfo, timedelta(days=4))
    with pytest.raises(EffectDuplicateError, match="4 days") as raised:
        await drive.invoke(graph, {"messages": [HumanMessage("another coffee")]}, thread())
    acknowledge = saver.effects.aacknowledge if drive.asynchronous else saver.effects.acknowledge
    acknowledged = acknowledge(raised.value.effect_id, note="it was Monday's", actor="ann")
    if drive.asynchronous:
        await acknowledged  # type: ignore[misc]
    await drive.invoke(graph, None, thread())
    assert world.done == ["a", "a"]
    event = saver.effects.history(raised.value.effect_id)[-1]
    assert (event.actor, event.reason) == ("ann", "acknowledged: it was Monday's")


def test_the_command_line_acknowledges(
    saver: DurableSaver, conninfo: str, capsys: pytest.CaptureFixture[str]
) -> None:
    saver.effects.run("charge", key="k", body=lambda: "charged")
    [record] = saver.effects.list()
    arguments = ["effects", "acknowledge", record.effect_id, "--note", "refunded", "--actor", "ann"]
    assert main([*arguments, "--database", conninfo]) == 0
    assert "is acknowledged" in capsys.readouterr().out
    assert saver.effects.history(record.effect_id)[-1].reason == "acknowledged: refunded"
    assert [e.phase for e in saver.timeline("thread") if e.phase == "tool_acknowledged"] == []
    unknown = ["effects", "acknowledge", "0" * 26, "--database", conninfo]
    assert main(unknown) != 0


async def test_a_longer_window_gives_an_old_outcome(
    saver: DurableSaver, drive: Drive, world: World, conninfo: str
) -> None:
    graph = interrupted_agent(saver, drive, world, duplicate_window=timedelta(days=5))
    with pytest.raises(ConnectionError):
        await drive.invoke(graph, GIVEN, thread())
    make_older(conninfo, timedelta(days=4))
    await drive.invoke(graph, {"messages": [HumanMessage("and?")]}, thread())
    assert world.done == ["a"]


@pytest.mark.parametrize(("decision", "done"), [("new", 2), ("replay", 1)])
async def test_a_human_decides_about_an_old_unknown_effect(
    saver: DurableSaver, drive: Drive, world: World, conninfo: str, decision: str, done: int
) -> None:
    world.trouble = [TimeoutError("no answer")]
    coffee = calls(("remind", "coffee", "1"))
    graph = agent(saver, [made(drive, remind(world), on_unknown="ask")], coffee, coffee)
    with pytest.raises(TimeoutError):
        await drive.invoke(graph, GIVEN, thread())
    make_older(conninfo, timedelta(days=4))
    await drive.invoke(graph, {"messages": [HumanMessage("another coffee")]}, thread())
    [question] = interrupts(await drive.state(graph, thread()))
    assert question.value["decisions"] == ["replay", "new"]
    answer = {"effect": question.value["effect"], "decision": decision}
    result = await drive.invoke(graph, Command(resume=answer), thread())
    if decision == "replay":
        [question] = interrupts(await drive.state(graph, thread()))
        answer = {"effect": question.value["effect"], "decision": "happened", "result": "served"}
        result = await drive.invoke(graph, Command(resume=answer), thread())
        assert "served" in told(result)
    assert world.done == ["coffee"] * done


# --- nodes that are tried again ---


def nested(
    drive: Drive, world: World, faults: Faults, *, inside: bool = True, checkpointer: bool | None = None
) -> Graph:
    """Return a subgraph that charges; a step after that may fail."""
    pay = charge(drive, world)

    async def paid(state: State) -> dict[str, Any]:
        return {"out": [await pay("once")]}

    def later(state: State) -> dict[str, Any]:
        if inside:
            faults()
        return {"out": ["later"]}

    builder = StateGraph(State)
    builder.add_node("paid", node(drive, paid))
    builder.add_node("later", later)
    builder.add_edge(START, "paid")
    builder.add_edge("paid", "later")
    return builder.compile(checkpointer=checkpointer)


async def invoked(drive: Drive, graph: Graph) -> dict[str, Any]:
    given: dict[str, Any] = {"out": []}
    result: dict[str, Any] = await graph.ainvoke(given) if drive.asynchronous else graph.invoke(given)
    return result


def around(saver: DurableSaver, drive: Drive, body: Any, **options: Any) -> Graph:
    builder = StateGraph(State)
    builder.add_node("outer", node(drive, body) if callable(body) else body, **options)
    builder.add_edge(START, "outer")
    return builder.compile(checkpointer=saver)


@pytest.mark.parametrize("failures", [1, 2])
async def test_a_retried_subgraph_finds_what_its_first_try_did(
    saver: DurableSaver, drive: Drive, world: World, failures: int
) -> None:
    subgraph = nested(drive, world, Faults(failures))
    builder = StateGraph(State)
    builder.add_node("outer", subgraph, retry_policy=RETRY)
    builder.add_edge(START, "outer")
    graph = builder.compile(checkpointer=saver)
    result = await drive.invoke(graph, {"out": []}, thread())
    assert world.done == ["once"]
    assert result["out"] == ["did once", "later"]


async def test_a_subgraph_with_a_namespace_for_all_its_calls_finds_what_its_first_try_did(
    saver: DurableSaver, drive: Drive, world: World
) -> None:
    builder = StateGraph(State)
    builder.add_node("outer", nested(drive, world, Faults(1), checkpointer=True), retry_policy=RETRY)
    builder.add_edge(START, "outer")
    graph = builder.compile(checkpointer=saver)
    await drive.invoke(graph, {"out": []}, thread())
    assert world.done == ["once"]
    await drive.invoke(graph, {"out": []}, thread())
    assert world.done == ["once", "once"]


@pytest.mark.parametrize("failures", [1, 2])
async def test_a_retried_node_finds_what_the_subgraph_that_it_called_did(
    saver: DurableSaver, drive: Drive, world: World, failures: int
) -> None:
    """The subgraph itself did not fail, so only the node's attempt tells."""
    faults = Faults(failures)
    subgraph = nested(drive, world, faults, inside=False)

    async def outer(state: State) -> dict[str, Any]:
        result = await invoked(drive, subgraph)
        faults()
        return result

    graph = around(saver, drive, outer, retry_policy=RETRY)
    await drive.invoke(graph, {"out": []}, thread())
    assert world.done == ["once"]
    if not drive.asynchronous:  # an async pool that is opened in the retry keeps its context
        gc.collect()
        assert saver.durable_context.known.attempts.of("thread") == {}


async def test_a_loop_around_a_subgraph_finds_what_its_first_try_did(
    saver: DurableSaver, drive: Drive, world: World
) -> None:
    subgraph = nested(drive, world, Faults(1))

    async def outer(state: State) -> dict[str, Any]:
        try:
            return await invoked(drive, subgraph)
        except ConnectionError:
            return await invoked(drive, subgraph)

    graph = around(saver, drive, outer)
    await drive.invoke(graph, {"out": []}, thread())
    assert world.done == ["once"]


async def test_a_later_step_finds_what_a_subgraph_did_before_it_failed(
    saver: DurableSaver, drive: Drive, world: World
) -> None:
    """The node reports the error, and its state has nothing of what the subgraph did."""
    subgraph = nested(drive, world, Faults(1))

    async def outer(state: State) -> dict[str, Any]:
        try:
            return await invoked(drive, subgraph)
        except ConnectionError:
            return {"out": ["failed"]}

    builder = StateGraph(State)
    builder.add_node("outer", node(drive, outer))
    builder.add_edge(START, "outer")
    builder.add_conditional_edges(
        "outer", lambda state: "outer" if state["out"][-1] == "failed" else "__end__", ["outer", "__end__"]
    )
    graph = builder.compile(checkpointer=saver)
    result = await drive.invoke(graph, {"out": []}, thread())
    assert result["out"] == ["failed", "did once", "later"]
    assert world.done == ["once"]
    await drive.invoke(graph, {"out": []}, thread())
    assert world.done == ["once", "once"]


async def test_a_subgraph_that_is_called_twice_has_two_effects(
    saver: DurableSaver, drive: Drive, world: World
) -> None:
    subgraph = nested(drive, world, Faults())

    async def outer(state: State) -> dict[str, Any]:
        await invoked(drive, subgraph)
        return await invoked(drive, subgraph)

    graph = around(saver, drive, outer)
    await drive.invoke(graph, {"out": []}, thread())
    assert world.done == ["once", "once"]


def test_the_last_run_of_a_node_says_by_which_attempt_a_nested_graph_was_begun() -> None:
    attempts = NestedAttempts()

    def note(attempt: int, send: Any) -> None:
        runtime = SimpleNamespace(execution_info=SimpleNamespace(node_attempt=attempt))
        config = {"thread_id": "thread", "checkpoint_ns": "outer:1|1"}
        attempts.note({"configurable": {**config, "__pregel_runtime": runtime, "__pregel_send": send}})

    first, second = deque[Any](), deque[Any]()
    note(2, first)
    note(2, second)
    del first
    gc.collect()
    assert attempts.of("thread") == {"outer:1|1": 2}
    note(1, second)
    assert attempts.of("thread") == {}
    note(2, second)
    del second
    gc.collect()
    assert attempts.of("thread") == {}


async def test_a_retried_agent_finds_what_its_first_try_did(
    saver: DurableSaver, drive: Drive, world: World
) -> None:
    inner = interrupted_agent(None, drive, world, calls(("remind", "a", "1")))
    builder = StateGraph(MessagesState)
    builder.add_node("agent", inner, retry_policy=RETRY)
    builder.add_edge(START, "agent")
    graph = builder.compile(checkpointer=saver)
    result = await drive.invoke(graph, GIVEN, thread())
    assert world.done == ["a"]
    assert "did a" in told(result)


# --- what is stored of it ---


async def test_a_copied_thread_knows_where_its_effects_were_handed_out(
    saver: DurableSaver, drive: Drive, world: World
) -> None:
    graph = repeating(saver, [made(drive, remind(world))], 2)
    await drive.invoke(graph, {"out": []}, thread())
    before = [s for s in await drive.history(graph, thread()) if s.next == ("tools",)][-1]
    await drive.invoke(graph, None, before.config)  # a fork, which is given both outcomes
    assert world.done == ["a", "a"]
    saver.copy_thread("thread", "copy")
    [newest, *_] = [s for s in await drive.history(graph, thread("copy")) if s.next == ("tools",)]
    [given] = saver.effects.for_checkpoint(newest.config)
    assert given.thread_id == "copy"
    assert given.effect_id not in {record.effect_id for record in saver.effects.list(thread_id="thread")}
    await drive.invoke(graph, {"out": []}, thread("copy"))  # delivered there too, so this is a new effect
    assert world.done == ["a"] * 3


async def test_a_deleted_thread_is_begun_again_without_candidates(
    saver: DurableSaver, drive: Drive, world: World
) -> None:
    graph = interrupted_agent(saver, drive, world, calls(("remind", "a", "1")))
    with pytest.raises(ConnectionError):
        await drive.invoke(graph, GIVEN, thread())
    saver.delete_thread("thread")
    await drive.invoke(graph, GIVEN, thread())
    assert world.done == ["a", "a"]


async def test_what_a_prune_removed_is_no_candidate(saver: DurableSaver, drive: Drive, world: World) -> None:
    """Whether it was delivered is not known then; nothing is lost, and the history is too old to be repeated."""
    graph = paying(saver, drive, world, Faults())
    await drive.invoke(graph, {"out": []}, thread())
    saver.prune(["thread"], strategy="keep_latest")
    await drive.invoke(graph, {"out": []}, thread())
    assert world.done == ["once", "once"]


async def test_a_deleted_thread_leaves_no_deliveries(
    saver: DurableSaver, drive: Drive, world: World, conninfo: str
) -> None:
    graph = agent(saver, [made(drive, remind(world))], calls(("remind", "a", "1")))
    await drive.invoke(graph, GIVEN, thread())
    before = [s for s in await drive.history(graph, thread()) if "tools" in s.next][-1]
    await drive.invoke(graph, None, before.config)
    with psycopg.connect(conninfo) as connection:
        query = f"SELECT count(*) FROM {SCHEMA}.effect_deliveries"
        assert connection.execute(query).fetchone() == (1,)
        saver.delete_thread("thread")
        assert connection.execute(query).fetchone() == (0,)


# --- how many statements ---


class Statements:
    """Counts the statements of the effect log that a saver sends."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sent: list[str] = []
        names = {id(value): name for name, value in vars(sql).items() if isinstance(value, Statement)}
        for database in (BlockingDatabase, AsyncDatabase):
            original = database.fetch

            def fetch(inner: Any, statement: Any, *args: Any, _original: Any = original, **more: Any) -> Any:
                if id(statement) in names:
                    self.sent.append(names[id(statement)])
                return _original(inner, statement, *args, **more)

            monkeypatch.setattr(database, "fetch", fetch)


async def test_a_call_sends_as_many_statements_as_it_did(
    saver: DurableSaver, drive: Drive, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = Faults(1)
    graph = paying(saver, drive, world, faults)
    statements = Statements(monkeypatch)
    await fail(drive, graph)
    assert [s for s in statements.sent if s != "CHECKPOINT_EXISTS"] == ["CREATE", "COMPLETE"]
    statements.sent.clear()
    await drive.invoke(graph, None, thread())
    assert statements.sent == ["FIND_COMPLETED"]


async def test_many_equal_calls_send_equally_many_statements(
    saver: DurableSaver, drive: Drive, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    pay = charge(drive, world)
    counts: list[int] = []
    statements = Statements(monkeypatch)

    async def loop(state: State) -> dict[str, Any]:
        for _ in range(10):
            before = len([s for s in statements.sent if s != "CHECKPOINT_EXISTS"])
            await pay("ops")
            counts.append(len([s for s in statements.sent if s != "CHECKPOINT_EXISTS"]) - before)
        return {"out": ["round"]}

    builder = StateGraph(State)
    builder.add_node("loop", node(drive, loop))
    builder.add_edge(START, "loop")
    builder.add_conditional_edges(
        "loop", lambda state: "loop" if len(state["out"]) < 30 else "__end__", ["loop", "__end__"]
    )
    graph = builder.compile(checkpointer=saver)
    await drive.invoke(graph, {"out": []}, {**thread(), "recursion_limit": 100})
    assert world.done == ["ops"] * 300
    assert set(counts[:10]) <= {2, 3}
    assert set(counts[10:]) <= {3, 5}


# --- processes that die ---


class Ledger:
    """What really happened, in a file that outlives the processes: an idempotency key and a text in each line."""

    def __init__(self, path: str) -> None:
        self.path = path

    @property
    def lines(self) -> list[str]:
        try:
            return Path(self.path).read_text().splitlines()
        except FileNotFoundError:
            return []

    @property
    def texts(self) -> list[str]:
        return [line.split()[1] for line in self.lines]

    def pay(self, text: str) -> str:
        with Path(self.path).open("a") as file:
            file.write(f"{current_effect().idempotency_key} {text}\n")
        return f"paid {text}"

    def verify(self, record: EffectRecord) -> Happened | NotHappened:
        found = [line for line in self.lines if line.startswith(record.idempotency_key)]
        return Happened(f"paid {found[0].split()[1]}") if found else NotHappened()


def sending_with_ledger(
    saver: DurableSaver, drive: Drive, ledger: Ledger, texts: list[str], kill_after: int
) -> Graph:
    """Return a graph that sends one message several times, and whose process dies after so many payments."""

    def pay(text: str) -> str:
        return ledger.pay(text)

    inner = ToolNode([made(drive, pay, verify=ledger.verify)], handle_tool_errors=False)

    async def tools(state: Any) -> dict[str, Any]:
        result: dict[str, Any] = await inner.ainvoke(state) if drive.asynchronous else inner.invoke(state)
        if kill_after and len(ledger.lines) >= kill_after:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    def fan(state: MessagesState) -> list[Send]:
        sent = (calls(("pay", text, "1")).model_copy(update={"id": "one"}) for text in texts)
        return [Send("tools", {"messages": [message]}) for message in sent]

    builder = StateGraph(MessagesState)
    builder.add_node("start", lambda state: {})
    builder.add_node("tools", node(drive, tools))
    builder.add_edge(START, "start")
    builder.add_conditional_edges("start", fan, ["tools"])
    return builder.compile(checkpointer=saver)


def agent_with_ledger(saver: DurableSaver, drive: Drive, ledger: Ledger, *, dies: bool) -> Graph:
    """Return an agent whose process dies in the step of its tools, when one of them has paid."""

    def pay(text: str) -> str:
        return ledger.pay(text)

    async def tools(state: Any) -> dict[str, Any]:
        result: dict[str, Any] = await inner.ainvoke(state) if drive.asynchronous else inner.invoke(state)
        if dies:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    def model(state: MessagesState) -> dict[str, Any]:
        answered = isinstance(state["messages"][-1], ToolMessage)
        message = AIMessage("done") if answered else calls(("pay", "coffee", "1"))
        return {"messages": [message.model_copy(update={"id": None})]}

    inner = ToolNode([made(drive, pay, verify=ledger.verify)], handle_tool_errors=False)
    builder = StateGraph(MessagesState)
    builder.add_node("model", model)
    builder.add_node("tools", node(drive, tools))
    builder.add_edge(START, "model")
    builder.add_conditional_edges("model", tools_condition)
    builder.add_edge("tools", "model")
    return builder.compile(checkpointer=saver)


def run_sends(conninfo: str, drive: Drive, path: str, texts: list[str]) -> None:
    with DurableSaver.from_conn_string(conninfo) as saver:
        graph = sending_with_ledger(saver, drive, Ledger(path), texts, kill_after=2)
        asyncio.run(drive.invoke(graph, GIVEN, thread()))


def run_agent(conninfo: str, drive: Drive, path: str) -> None:
    with DurableSaver.from_conn_string(conninfo) as saver:
        asyncio.run(drive.invoke(agent_with_ledger(saver, drive, Ledger(path), dies=True), GIVEN, thread()))


def killed(target: Callable[..., None], *args: Any) -> None:
    process = context.Process(target=target, args=args)
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL


@pytest.mark.parametrize("texts", [["ann", "bob", "eve"], ["same", "same", "same"]])
async def test_the_sends_of_a_message_survive_a_kill(
    saver: DurableSaver, conninfo: str, drive: Drive, tmp_path: Path, texts: list[str]
) -> None:
    ledger = Ledger(str(tmp_path / "ledger"))
    killed(run_sends, conninfo, drive, ledger.path, texts)
    age(conninfo)
    graph = sending_with_ledger(saver, drive, ledger, texts, kill_after=0)
    result = await drive.invoke(graph, None, thread())
    assert sorted(ledger.texts) == sorted(texts)
    assert sorted(told(result)) == sorted(f"paid {text}" for text in texts)


async def test_a_new_message_after_a_kill_finds_what_was_paid(
    saver: DurableSaver, conninfo: str, drive: Drive, tmp_path: Path
) -> None:
    ledger = Ledger(str(tmp_path / "ledger"))
    killed(run_agent, conninfo, drive, ledger.path)
    age(conninfo)
    graph = agent_with_ledger(saver, drive, ledger, dies=False)
    result = await drive.invoke(graph, {"messages": [HumanMessage("well?")]}, thread())
    assert ledger.texts == ["coffee"]
    assert told(result) == ["paid coffee"]
    await drive.invoke(graph, {"messages": [HumanMessage("another one")]}, thread())
    assert ledger.texts == ["coffee", "coffee"]


# --- calls that race ---


async def test_tasks_that_race_for_one_outcome_get_it_once(
    saver: DurableSaver, conninfo: str, world: World
) -> None:
    """Two tasks of one fork want an outcome each, and there is one."""
    drive = Drive(asynchronous=False)
    wanted = [1]
    pay = charge(drive, world)
    barrier = threading.Barrier(4)

    async def tools(state: Any) -> dict[str, Any]:
        if wanted[0] > 1:
            barrier.wait(20)
        return {"out": [await pay("same")]}

    builder = StateGraph(State)
    builder.add_node("start", lambda state: {})
    builder.add_node("tools", node(drive, tools))
    builder.add_edge(START, "start")
    builder.add_conditional_edges("start", lambda s: [Send("tools", {})] * wanted[0], ["tools"])
    graph = builder.compile(checkpointer=saver)
    await drive.invoke(graph, {"out": []}, thread())
    wanted[0] = 4
    before = [s for s in await drive.history(graph, thread()) if s.next == ("start",)][-1]
    result = await drive.invoke(graph, None, before.config)
    assert world.done == ["same"] * 4
    assert len(result["out"]) == 4


# --- injected arguments ---


class Order(MessagesState, total=False):
    customer: str


def invoicing(drive: Drive, world: World) -> Any:
    """Return a tool whose customer comes from the state, not from the model."""
    if drive.asynchronous:

        @tool("invoice")
        @effect(name="invoice")
        async def ainvoice(text: str, customer: Annotated[str, InjectedState("customer")]) -> str:
            """Send an invoice."""
            return world(f"{text} {customer}")

        return ainvoice

    @tool("invoice")
    @effect(name="invoice")
    def invoice(text: str, customer: Annotated[str, InjectedState("customer")]) -> str:
        """Send an invoice."""
        return world(f"{text} {customer}")

    return invoice


async def test_sends_of_one_message_differ_by_what_is_injected(
    saver: DurableSaver, drive: Drive, world: World
) -> None:
    customers = ["ann", "bob", "eve"]
    message = calls(("invoice", "7", "1")).model_copy(update={"id": "one"})
    builder = StateGraph(Order)
    builder.add_node("start", lambda state: {})
    builder.add_node("tools", ToolNode([invoicing(drive, world)], handle_tool_errors=False))
    builder.add_edge(START, "start")
    builder.add_conditional_edges(
        "start",
        lambda state: [Send("tools", {"messages": [message], "customer": c}) for c in customers],
        ["tools"],
    )
    graph = builder.compile(checkpointer=saver)
    result = await drive.invoke(graph, GIVEN, thread())
    assert sorted(world.done) == ["7 ann", "7 bob", "7 eve"]
    assert sorted(told(result)) == ["did 7 ann", "did 7 bob", "did 7 eve"]
    before = [s for s in await drive.history(graph, thread()) if "tools" in s.next][-1]
    result = await drive.invoke(graph, None, before.config)
    assert len(world.done) == 3
    assert sorted(told(result)) == ["did 7 ann", "did 7 bob", "did 7 eve"]


async def test_another_injected_value_on_a_fork_is_a_conflict(
    saver: DurableSaver, drive: Drive, world: World
) -> None:
    message = calls(("invoice", "7", "1")).model_copy(update={"id": "one"})
    builder = StateGraph(Order)
    builder.add_node("model", lambda state: {"messages": [message]})
    builder.add_node("tools", ToolNode([invoicing(drive, world)], handle_tool_errors=False))
    builder.add_edge(START, "model")
    builder.add_edge("model", "tools")
    graph = builder.compile(checkpointer=saver)
    await drive.invoke(graph, {**GIVEN, "customer": "ann"}, thread())
    before = [s for s in await drive.history(graph, thread()) if "tools" in s.next][-1]
    forked = await drive.update(graph, before.config, {"customer": "bob"}, "model")
    with pytest.raises(EffectConflictError):
        await drive.invoke(graph, None, forked)
    assert world.done == ["7 ann"]

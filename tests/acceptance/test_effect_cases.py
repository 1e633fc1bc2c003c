"""Cases that break naive effect logs, in real graphs; test_effect_kills.py has those with killed processes."""

from __future__ import annotations

import asyncio
import functools
import operator
import threading
import time
from datetime import timedelta
from typing import Annotated, Any

import psycopg
import pytest
from langchain_core.messages import AIMessage, ToolCall, ToolMessage
from langchain_core.tools import BaseTool, InjectedToolCallId, tool
from langgraph.errors import NodeCancelledError, NodeTimeoutError, ParentCommand
from langgraph.func import entrypoint, task
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Command, RetryPolicy, Send, interrupt
from typing_extensions import TypedDict

from langgraph_durable import (
    DurableSaver,
    EffectError,
    EffectPolicy,
    EffectUnknownError,
    Happened,
    NotHappened,
    Undetermined,
    effect,
)
from langgraph_durable.errors import EffectForkedError
from tests.acceptance.driving import Drive, interrupts, thread
from tests.acceptance.effect_graphs import (
    GIVEN,
    World,
    agent,
    before_tools,
    calls,
    made,
    remind,
    requesting_twice,
    states,
    told,
)
from tests.acceptance.graphs import Graph
from tests.samples import Observer, await_until, wait_until

pytestmark = pytest.mark.context

# --- identity of a call ---


async def test_calls_with_the_same_id_in_a_message_are_distinguished(
    saver: DurableSaver, drive: Drive, world: World
) -> None:
    act = made(drive, remind(world))
    script = calls(("remind", "a", "1"), ("remind", "b", "1"), ("remind", "a", "1"))
    graph = agent(saver, [act], script)
    result = await drive.invoke(graph, GIVEN, thread())
    assert sorted(world.done) == ["a", "a", "b"]
    assert told(result) == ["did a", "did b", "did a"]
    again = await drive.invoke(graph, None, await before_tools(drive, graph))
    assert told(again) == told(result)
    assert sorted(world.done) == ["a", "a", "b"]


async def test_calls_with_the_same_id_and_defaults_are_distinguished(
    saver: DurableSaver, drive: Drive, world: World
) -> None:
    """A tool receives other arguments than the model gave: defaults are added and types converted."""

    @tool
    @effect()
    def count(text: str, times: int, loud: bool = False) -> str:
        """Do it."""
        return world(f"{text} {times}")

    given: list[dict[str, Any]] = [
        {"text": "a", "times": 1},
        {"text": "b", "times": 1},
        {"text": "b", "times": 1, "loud": False},
        {"text": "c", "times": "1"},
        {"text": "d", "times": "1"},
    ]
    asked = AIMessage("", tool_calls=[ToolCall(name="count", args=args, id="1") for args in given])
    graph = agent(saver, [count], asked)
    result = await drive.invoke(graph, GIVEN, thread())
    assert told(result) == ["did a 1", "did b 1", "did b 1", "did c 1", "did d 1"]
    assert len(world.done) == 5
    again = await drive.invoke(graph, None, await before_tools(drive, graph))
    assert told(again) == told(result)
    assert len(world.done) == 5


async def test_calls_with_the_same_id_in_separate_tasks_are_distinguished(
    saver: DurableSaver, drive: Drive, world: World
) -> None:
    """As langchain's agents run the calls of a message: one task for each call, with the whole message."""

    def model(state: MessagesState) -> dict[str, Any]:
        return {"messages": [calls(("remind", "a", "1"), ("remind", "b", "1"), ("remind", "a", "1"))]}

    def fan_out(state: MessagesState) -> list[Send]:
        asked: Any = state["messages"][-1]
        context = {"__type": "tool_call_with_context", "state": state}
        return [
            Send("tools", {**context, "tool_call": {**call, "type": "tool_call"}})
            for call in asked.tool_calls
        ]

    builder = StateGraph(MessagesState)
    builder.add_node("model", model)
    builder.add_node("tools", ToolNode([made(drive, remind(world))]))
    builder.add_edge(START, "model")
    builder.add_conditional_edges("model", fan_out, ["tools"])
    graph = builder.compile(checkpointer=saver)
    result = await drive.invoke(graph, GIVEN, thread())
    assert told(result) == ["did a", "did b", "did a"]
    assert sorted(world.done) == ["a", "a", "b"]
    again = await drive.invoke(graph, None, await before_tools(drive, graph))
    assert told(again) == told(result)
    assert sorted(world.done) == ["a", "a", "b"]


async def test_calls_with_the_same_id_in_different_turns_are_distinguished(
    saver: DurableSaver, drive: Drive, world: World
) -> None:
    graph = agent(
        saver,
        [made(drive, remind(world))],
        calls(("remind", "a", "1")),
        AIMessage("ok"),
        calls(("remind", "a", "1")),
        calls(("remind", "b", "1")),
    )
    for _ in range(2):
        await drive.invoke(graph, GIVEN, thread())
    assert world.done == ["a", "a", "b"]


@pytest.mark.parametrize("apart", [False, True])
async def test_identical_calls_of_one_message_both_run(
    saver: DurableSaver, drive: Drive, world: World, apart: bool
) -> None:
    def ask(text: str) -> Any:
        return interrupt(text)

    graph = agent(
        saver,
        [made(drive, remind(world)), made(drive, ask)],
        calls(("remind", "a", "1"), ("remind", "a", "2"), ("ask", "really?", "3")),
        apart=apart,
    )
    await drive.invoke(graph, GIVEN, thread())
    result = await drive.invoke(graph, Command(resume="yes"), thread())
    assert world.done == ["a", "a"]
    assert sorted(told(result)) == ["did a", "did a", "yes"]
    assert states(saver) == ["completed"] * 3


@pytest.mark.parametrize("apart", [False, True])
async def test_one_of_two_identical_calls_can_be_unknown(
    saver: DurableSaver, drive: Drive, world: World, apart: bool
) -> None:
    found: list[str] = []

    def find(record: Any) -> Happened:
        found.append(record.tool_call_id)
        return Happened("did a")

    world.trouble = [TimeoutError()]
    graph = agent(
        saver,
        [made(drive, remind(world), verify=find)],
        calls(("remind", "a", "1"), ("remind", "a", "2")),
        apart=apart,
    )
    with pytest.raises(TimeoutError):
        await drive.invoke(graph, GIVEN, thread(), durability="sync")
    result = await drive.invoke(graph, None, thread())
    # The second has completed, unless the failure of the first cancelled it as it began: then it is unknown too.
    assert (len(world.done), len(found)) in {(2, 1), (1, 2)}
    assert len(set(found)) == len(found)
    assert told(result) == ["did a", "did a"]


# --- interrupts ---


async def test_a_tool_interrupted_before_its_effect_runs_again(
    saver: DurableSaver, drive: Drive, world: World
) -> None:
    def remind(text: str) -> Any:
        return world(f"{text}: {interrupt('really?')}, {interrupt('really really?')}")

    graph = agent(saver, [made(drive, remind)], calls(("remind", "a", "1")))
    await drive.invoke(graph, GIVEN, thread())
    for said in ("yes", "YES"):
        [record] = saver.effects.list()
        assert record.state == "suspended"
        assert saver.effects.pending() == []
        assert world.done == []
        result = await drive.invoke(graph, Command(resume=said), thread())
    assert world.done == ["a: yes, YES"]
    assert told(result) == ["did a: yes, YES"]
    [record] = saver.effects.list()
    assert (record.state, record.attempts, record.generation) == ("completed", 3, 0)


@pytest.mark.parametrize("happened", [True, False])
@pytest.mark.parametrize("kind", ["tool", "wrapped", "node"])
async def test_a_tool_interrupted_after_its_request_is_verified(
    saver: DurableSaver, drive: Drive, world: World, kind: str, happened: bool
) -> None:
    """The body had begun, so the provider is asked; the human's answer still reaches the body."""
    asked: list[str] = []

    def find(record: Any) -> Any:
        asked.append(record.state)
        return Happened(f"found {world.done[0]}") if happened else NotHappened()

    def remind(text: str) -> Any:
        if happened:
            world(text)
        tips = f"{text}: {interrupt('tip?')}, {interrupt('more?')}"
        return tips if happened else world(tips)

    graph = asking(saver, drive, remind, kind, EffectPolicy(verify=find))
    await drive.invoke(graph, GIVEN, thread())
    assert (states(saver), asked) == (["suspended"], [])
    result = await drive.invoke(graph, Command(resume="one"), thread())
    if happened:
        assert said(result) == "found a"
        assert world.done == ["a"]
        assert asked == ["unknown"]
        return
    [question] = interrupts(await drive.state(graph, thread()))
    assert question.value == "more?"
    result = await drive.invoke(graph, Command(resume="two"), thread())
    assert said(result) == "did a: one, two"
    assert world.done == ["a: one, two"]
    assert asked == ["unknown", "unknown"]
    [record] = saver.effects.list()
    assert (record.attempts, record.generation) == (3, 0)


@pytest.mark.parametrize("kind", ["tool", "node"])
async def test_a_tool_interrupted_after_an_undetermined_request_keeps_its_answer(
    saver: DurableSaver, drive: Drive, world: World, kind: str
) -> None:
    """The run fails, and the next run still has the answer to the body."""
    findings: list[Any] = [Undetermined(), OSError("the vendor is down"), NotHappened()]

    def find(record: Any) -> Any:
        finding = findings.pop(0)
        if isinstance(finding, OSError):
            raise finding
        return finding

    def remind(text: str) -> Any:
        return world(f"{text}: {interrupt('tip?')}")

    graph = asking(saver, drive, remind, kind, EffectPolicy(verify=find))
    await drive.invoke(graph, GIVEN, thread())
    resume: Command[Any] = Command(resume="one")
    for given in (resume, None):
        with pytest.raises(EffectUnknownError):
            await drive.invoke(graph, given, thread())
    assert said(await drive.invoke(graph, None, thread())) == "did a: one"
    assert world.done == ["a: one"]


def asking(saver: DurableSaver, drive: Drive, body: Any, kind: str, policy: EffectPolicy) -> Graph:
    """A graph that runs a body with one text as an effect: of a tool, a wrapped tool, or a plain node."""
    name = body.__name__
    if kind == "tool":
        return agent(saver, [made(drive, body, policy=policy)], calls((name, "a", "1")))
    if kind == "wrapped":
        wrapper = saver.effects.tool_wrapper({name: policy})
        node: Any = ToolNode(
            [tool(body, description="Do it.")],
            handle_tool_errors=False,
            wrap_tool_call=wrapper.wrap_tool_call,
            awrap_tool_call=wrapper.awrap_tool_call,
        )
    elif drive.asynchronous:

        @effect(policy=policy, name=name)
        async def aact(text: str) -> Any:
            return body(text)

        async def anode(state: MessagesState) -> dict[str, Any]:
            return {"messages": [AIMessage(await aact("a"))]}

        node = anode
    else:
        act = effect(policy=policy, name=name)(body)

        def node(state: MessagesState) -> dict[str, Any]:
            return {"messages": [AIMessage(act("a"))]}

    builder = StateGraph(MessagesState)
    builder.add_node("model", lambda state: {"messages": [calls((name, "a", "1"))]})
    builder.add_node("node", node)
    builder.add_edge(START, "model")
    builder.add_edge("model", "node")
    return builder.compile(checkpointer=saver)


def said(result: dict[str, Any]) -> Any:
    return (told(result) or [result["messages"][-1].content])[0]


async def test_a_block_interrupted_after_issue_is_unknown(
    saver: DurableSaver, drive: Drive, world: World
) -> None:
    log = saver.effects
    asked: list[Any] = []

    def find(record: Any) -> Happened:
        asked.append(record)
        return Happened("found")

    policy = EffectPolicy(verify=find)

    def node(state: MessagesState) -> dict[str, Any]:
        with log.effect("pay", key="k", policy=policy, issued=False) as e:
            if not e.replayed:
                sure = interrupt("really?")
                e.issue()
                world(sure)
                interrupt("tip?")
            return {"messages": [AIMessage(e.result)]}

    async def anode(state: MessagesState) -> dict[str, Any]:
        async with log.aeffect("pay", key="k", policy=policy, issued=False) as e:
            if not e.replayed:
                sure = interrupt("really?")
                await e.issue()
                world(sure)
                interrupt("tip?")
            return {"messages": [AIMessage(e.result)]}

    builder = StateGraph(MessagesState)
    builder.add_node("node", anode if drive.asynchronous else node)
    builder.add_edge(START, "node")
    graph = builder.compile(checkpointer=saver)
    await drive.invoke(graph, GIVEN, thread())
    assert states(saver) == ["suspended"]
    await drive.invoke(graph, Command(resume="yes"), thread())
    assert (states(saver), asked) == (["unknown"], [])
    assert said(await drive.invoke(graph, Command(resume="no tip"), thread())) == "found"
    assert world.done == ["yes"]
    assert len(asked) == 1


# --- outcomes ---


async def test_invalid_arguments_record_nothing(saver: DurableSaver, drive: Drive, world: World) -> None:
    wrong = AIMessage("", tool_calls=[ToolCall(name="remind", args={"texts": ["a"]}, id="1")])
    graph = agent(saver, [made(drive, remind(world))], wrong, calls(("remind", "a", "1")), errors=True)
    result = await drive.invoke(graph, GIVEN, thread())
    assert "text" in told(result)[0]
    assert told(result)[1:] == ["did a"]
    assert len(states(saver)) == 1


@pytest.mark.parametrize("apart", [False, True])
async def test_errors_swallowed_by_the_tool_node_are_recorded(
    saver: DurableSaver, drive: Drive, world: World, apart: bool
) -> None:
    world.trouble = [TimeoutError("no answer")]
    graph = agent(
        saver,
        [made(drive, remind(world))],
        calls(("remind", "a", "1")),
        calls(("remind", "a", "2")),
        errors=True,
        apart=apart,
    )
    result = await drive.invoke(graph, GIVEN, thread())
    first, second = told(result)
    assert "no answer" in first
    assert "it is unknown whether it took place" in second  # requested again under another id
    assert world.done == ["a"]
    assert states(saver) == ["unknown"]


async def test_a_cancelled_async_tool_is_unknown(saver: DurableSaver, world: World) -> None:
    started, never = asyncio.Event(), asyncio.Event()

    @tool
    @effect()
    async def remind(text: str) -> str:
        """Do it."""
        world(text)
        started.set()
        await never.wait()
        return "never"

    graph = agent(saver, [remind], calls(("remind", "a", "1")))
    run = asyncio.create_task(graph.ainvoke(GIVEN, thread(), durability="sync"))
    await started.wait()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    log = saver.effects
    assert [r.state async for r in log.alist()] == ["unknown"]
    with pytest.raises(EffectUnknownError):
        await graph.ainvoke(None, thread())
    assert world.done == ["a"]


async def test_a_tool_cancelled_after_its_body_is_completed(
    saver: DurableSaver, conninfo: str, world: World
) -> None:
    """The cancellation comes while the outcome is being recorded, which continues."""
    observer, holder = Observer(conninfo), psycopg.connect(conninfo)

    def let_go() -> None:
        wait_until(observer.blocked, "the outcome to be on its way")
        holder.close()

    helper = threading.Thread(target=let_go)

    @tool
    @effect()
    async def remind(text: str) -> str:
        """Do it."""
        holder.execute("SELECT FROM langgraph_durable.effects FOR UPDATE")
        helper.start()
        own = asyncio.current_task()
        assert own is not None
        own.cancel()  # raised where the task waits next: for the database
        return world(text)

    graph = agent(saver, [remind], calls(("remind", "a", "1")))
    with pytest.raises(NodeCancelledError):
        await graph.ainvoke(GIVEN, thread(), durability="sync")
    helper.join()
    observer.close()
    assert [r.state async for r in saver.effects.alist()] == ["completed"]
    assert told(await graph.ainvoke(None, thread())) == ["did a"]
    assert world.done == ["a"]


@pytest.mark.parametrize("times", [1, 2, 3])
async def test_a_claim_cancelled_in_flight_is_given_back(
    saver: DurableSaver, conninfo: str, times: int
) -> None:
    """LangGraph cancels the tasks of a failed step twice; an abandoned claim is given back."""
    log = saver.effects
    observer = Observer(conninfo)
    async with log.aeffect("other", key="1") as other:
        await other.complete()  # the pool is open
    with psycopg.connect(conninfo) as holder:
        holder.execute("LOCK TABLE langgraph_durable.effects IN SHARE MODE")  # blocks all writes

        async def pay() -> None:
            async with log.aeffect("pay", key="1"):
                raise AssertionError("never begun")

        paying = asyncio.create_task(pay())
        await await_until(observer.blocked, "the claim to be on its way")
        for _ in range(times):
            paying.cancel()
            await asyncio.sleep(0.01)
    with pytest.raises(asyncio.CancelledError):
        await paying

    def is_given_back() -> bool:
        return observer.rows("SELECT state FROM langgraph_durable.effects WHERE tool = 'pay'") == [
            ("failed",)
        ]

    await await_until(is_given_back, "the claim to be given back")
    observer.close()


async def test_a_cancelled_sync_tool_finishes_in_its_thread(saver: DurableSaver, world: World) -> None:
    started, go = threading.Event(), threading.Event()

    @tool
    @effect()
    def remind(text: str) -> str:
        """Do it."""
        started.set()
        go.wait()
        return world(text)

    graph = agent(saver, [remind], calls(("remind", "a", "1")))
    run = asyncio.create_task(graph.ainvoke(GIVEN, thread(), durability="sync"))
    await await_until(started.is_set, "the tool to start")
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    log = saver.effects
    assert [r.state async for r in log.alist()] == ["issued"]
    go.set()
    result = await graph.ainvoke(None, thread())
    assert told(result) == ["did a"]
    assert world.done == ["a"]
    [record] = [record async for record in log.alist()]
    assert (record.state, record.attempts) == ("completed", 1)


async def test_an_unknown_effect_may_complete_late_in_its_thread(saver: DurableSaver, world: World) -> None:
    started, go = threading.Event(), threading.Event()

    def remind(text: str) -> str:
        started.set()
        go.wait()
        return world(text)

    act = tool(effect(lease=timedelta(microseconds=1))(remind), description="Do it.")
    graph = agent(saver, [act], calls(("remind", "a", "1")))
    log = saver.effects
    log.executor._leases.keep = lambda *_: threading.Lock()  # type: ignore[method-assign,assignment] # frozen
    run = threading.Thread(target=graph.invoke, args=(GIVEN, thread()), kwargs={"durability": "sync"})
    run.start()
    wait_until(started.is_set, "the tool to start")
    with pytest.raises(EffectUnknownError):
        await graph.ainvoke(None, thread())
    go.set()
    run.join()
    [record] = log.list()
    moves = [(e.from_state, e.to_state) for e in log.history(record.effect_id)]
    assert moves == [(None, "issued"), ("issued", "unknown"), ("unknown", "completed")]
    assert world.done == ["a"]


async def test_a_node_that_timed_out_is_retried_without_repeating_the_effect(
    saver: DurableSaver, drive: Drive, world: World
) -> None:
    policy = RetryPolicy(
        initial_interval=0.001, max_attempts=3, retry_on=(TimeoutError, NodeTimeoutError, EffectUnknownError)
    )
    node: dict[str, Any] = {"retry_policy": policy}
    if drive.asynchronous:

        @tool
        @effect()
        async def remind(text: str) -> str:
            """Do it."""
            world(text)
            await asyncio.Event().wait()
            return "never"

        act: BaseTool = remind
        node["timeout"] = 0.5
    else:
        world.trouble = [TimeoutError(), TimeoutError()]
        act = made(drive, globals()["remind"](world))
    graph = agent(saver, [act], calls(("remind", "a", "1")), node=node)
    with pytest.raises(EffectUnknownError):
        await drive.invoke(graph, GIVEN, thread())
    assert world.done == ["a"]


async def test_a_retried_node_replays_its_effects(saver: DurableSaver, drive: Drive, world: World) -> None:
    """The effects a node completed before it failed are replayed."""

    @effect()
    def send(text: str) -> str:
        return world(text)

    def node(state: Any) -> dict[str, Any]:
        sent = [send("a"), send("a"), send("b")]
        if len(failures) < 2:
            failures.append(1)
            raise OSError("later")
        return {"trail": sent}

    failures: list[int] = []
    builder = StateGraph(Trail)
    builder.add_node("node", node, retry_policy=RetryPolicy(initial_interval=0.001, retry_on=OSError))
    builder.add_edge(START, "node")
    graph = builder.compile(checkpointer=saver)
    result = await drive.invoke(graph, {"trail": []}, thread())
    assert result == {"trail": ["did a", "did a", "did b"]}
    assert world.done == ["a", "a", "b"]


# --- time travel and forks ---


async def test_time_travel_replays_effects(saver: DurableSaver, drive: Drive, world: World) -> None:
    graph = agent(saver, [made(drive, remind(world))], calls(("remind", "a", "1")))
    first = await drive.invoke(graph, GIVEN, thread())
    for _ in range(2):
        again = await drive.invoke(graph, None, await before_tools(drive, graph))
        assert told(again) == told(first)
    assert world.done == ["a"]
    assert saver.effects.replays() == 2


async def test_forks_follow_on_fork(saver: DurableSaver, drive: Drive, world: World) -> None:
    for on_fork in ("replay", "new", "raise"):
        world.done.clear()
        graph = agent(saver, [made(drive, remind(world), on_fork=on_fork)], calls(("remind", "a", "1")))
        config = thread(on_fork)
        await drive.invoke(graph, GIVEN, config)
        [before] = [s for s in await drive.history(graph, config) if "tools" in s.next]
        for forks in (1, 2):
            await drive.update(graph, before.config, {"messages": []}, as_node="model")
            if on_fork == "raise":
                with pytest.raises(EffectForkedError):
                    await drive.invoke(graph, None, config)
            else:
                assert told(await drive.invoke(graph, None, config)) == ["did a"]
            assert world.done == (["a"] * (1 + forks) if on_fork == "new" else ["a"])


# --- commands ---


async def test_a_replayed_command_fits_the_new_call(saver: DurableSaver, drive: Drive, world: World) -> None:
    @tool
    @effect(scope="thread")
    def remind(text: str, tool_call_id: Annotated[str, InjectedToolCallId]) -> Command[Any]:
        """Do it."""
        world(text)
        return Command(update={"messages": [ToolMessage("done", tool_call_id=tool_call_id, id="fixed")]})

    graph = agent(saver, [remind], calls(("remind", "a", "1")), calls(("remind", "a", "2")))
    result = await drive.invoke(graph, GIVEN, thread())
    first, second = [m for m in result["messages"] if isinstance(m, ToolMessage)]
    assert world.done == ["a"]
    assert (first.content, first.tool_call_id, first.id) == ("done", "1", "fixed")
    assert (second.content, second.tool_call_id) == ("done", "2")
    assert second.id not in ("fixed", None)
    mark = second.response_metadata["effect"]
    [record] = saver.effects.list()
    assert mark == {
        "replayed": True,
        "effect_id": record.effect_id,
        "first_attempt_at": record.first_attempt_at.isoformat(),
        "attempts": 1,
        "source": "executed",
    }
    assert "effect" not in first.response_metadata


@pytest.mark.parametrize("checkpointer", [None, True])
@pytest.mark.parametrize("raised", [False, True])
async def test_a_command_for_the_parent_graph_is_replayed(
    saver: DurableSaver, drive: Drive, world: World, raised: bool, checkpointer: Any
) -> None:
    @tool
    @effect()
    def remind(text: str, tool_call_id: Annotated[str, InjectedToolCallId]) -> Any:
        """Do it."""
        world(text)
        said = ToolMessage("done", tool_call_id=tool_call_id, id="fixed")
        command: Command[Any] = Command(graph=Command.PARENT, update={"messages": [said]}, goto="after")
        if raised:
            raise ParentCommand(command)
        return command

    inner = StateGraph(MessagesState)
    inner.add_node("tools", ToolNode([remind]))
    inner.add_edge(START, "tools")

    def model(state: MessagesState) -> dict[str, Any]:
        return {"messages": [calls(("remind", "a", "1"))]}

    outer = StateGraph(MessagesState)
    outer.add_node("model", model)
    outer.add_node("inner", inner.compile(checkpointer=checkpointer))
    outer.add_node("after", lambda state: {"messages": [AIMessage("after")]})
    outer.add_edge(START, "model")
    outer.add_edge("model", "inner")
    graph = outer.compile(checkpointer=saver)
    result = await drive.invoke(graph, GIVEN, thread())
    assert told(result) == ["done"]
    assert result["messages"][-1].content == "after"
    assert states(saver) == ["completed"]
    [before] = [s for s in await drive.history(graph, thread()) if s.next == ("inner",)]
    fork = await drive.update(graph, before.config, {"messages": []}, as_node="model")
    again = await drive.invoke(graph, None, fork)
    assert world.done == ["a"]
    assert again["messages"][-1].content == "after"
    [replayed] = [m for m in again["messages"] if isinstance(m, ToolMessage)]
    assert (replayed.content, replayed.tool_call_id) == ("done", "1")
    assert replayed.id not in ("fixed", None)
    assert replayed.response_metadata["effect"]["replayed"]


# --- plain code ---


class Trail(TypedDict):
    trail: Annotated[list[str], operator.add]


async def test_effects_in_a_plain_node_are_replayed_by_position(
    saver: DurableSaver, drive: Drive, world: World
) -> None:
    @effect()
    def send(text: str) -> str:
        return world(text)

    @effect()
    async def asend(text: str) -> str:
        return world(text)

    problems = [ValueError("after the effects")]

    def node(state: Trail) -> dict[str, Any]:
        sent = [send("a"), send("b"), send("a")]
        if problems:
            raise problems.pop()
        return {"trail": sent}

    async def anode(state: Trail) -> dict[str, Any]:
        sent = [await asend("a"), await asend("b"), await asend("a")]
        if problems:
            raise problems.pop()
        return {"trail": sent}

    builder = StateGraph(Trail)
    builder.add_node("node", anode if drive.asynchronous else node)
    builder.add_edge(START, "node")
    graph = builder.compile(checkpointer=saver)
    with pytest.raises(ValueError, match="after the effects"):
        await drive.invoke(graph, {"trail": []}, thread())
    result = await drive.invoke(graph, None, thread())
    assert result["trail"] == ["did a", "did b", "did a"]
    assert world.done == ["a", "b", "a"]
    await drive.invoke(graph, {"trail": []}, thread())  # another turn: other effects
    assert len(world.done) == 6


@pytest.mark.parametrize("pause", [0, 0.05], ids=["before the checkpoint is stored", "after it is"])
async def test_a_sync_effect_on_the_event_loop_is_always_refused(
    saver: DurableSaver, world: World, pause: float
) -> None:
    """Whether the loop has stored the checkpoint by then would be a matter of timing."""

    @effect()
    def send(text: str) -> str:
        return world(text)

    async def node(state: Trail) -> dict[str, Any]:
        await asyncio.sleep(pause)
        return {"trail": [send("a")]}

    builder = StateGraph(Trail)
    builder.add_node("node", node)
    builder.add_edge(START, "node")
    graph = builder.compile(checkpointer=saver)
    for number in range(20):
        config = thread(f"thread {number}")
        inputs: list[Any] = [{"trail": []}, None]
        for given in inputs:
            with pytest.raises(EffectError, match=r"Make it async.*to_thread"):
                await graph.ainvoke(given, config)
    assert world.done == []


async def test_a_sync_effect_of_an_async_graph_runs_in_a_thread(saver: DurableSaver, world: World) -> None:
    @effect()
    def send(text: str) -> str:
        return world(text)

    @effect(key="once")
    def send_once(text: str) -> str:
        return world(text)

    async def node(state: Trail) -> dict[str, Any]:
        return {"trail": [await asyncio.to_thread(send, "a"), send_once("b")]}

    def sync_node(state: Trail) -> dict[str, Any]:
        return {"trail": [send("c")]}

    builder = StateGraph(Trail)
    builder.add_sequence([("node", node), ("sync_node", sync_node)])
    builder.add_edge(START, "node")
    graph = builder.compile(checkpointer=saver)
    assert await graph.ainvoke({"trail": []}, thread()) == {"trail": ["did a", "did b", "did c"]}
    in_tools = agent(saver, [made(Drive(asynchronous=False), remind(world))], calls(("remind", "d", "1")))
    assert told(await in_tools.ainvoke(GIVEN, thread("tools"))) == ["did d"]


async def test_effects_in_tasks_run_once(saver: DurableSaver, drive: Drive, world: World) -> None:
    problems = [ValueError("after the effects")]
    if drive.asynchronous:

        @task
        @effect()
        async def asend(text: str) -> str:
            return world(text)

        @entrypoint(checkpointer=saver)
        async def aflow(texts: list[str]) -> list[str]:
            sent = list(await asyncio.gather(*(asend(text) for text in texts)))
            if problems:
                raise problems.pop()
            return sent

        graph: Graph = aflow
    else:

        @task
        @effect()
        def send(text: str) -> str:
            return world(text)

        @entrypoint(checkpointer=saver)
        def flow(texts: list[str]) -> list[str]:
            sent = [future.result() for future in [send(text) for text in texts]]
            if problems:
                raise problems.pop()
            return sent

        graph = flow
    with pytest.raises(ValueError, match="after the effects"):
        await drive.invoke(graph, ["a", "b", "a"], thread())
    result = await drive.invoke(graph, None, thread())
    assert result == ["did a", "did b", "did a"]
    assert sorted(world.done) == ["a", "a", "b"]


# --- scopes ---


async def test_scopes_decide_which_calls_are_one_effect(
    saver: DurableSaver, drive: Drive, world: World
) -> None:
    """Count the executions of the same calls in two turns of two threads."""
    script = [calls(("remind", "a", "1"), ("remind", "a", "2")), AIMessage("ok")]
    for scope, times in (("call", 8), ("step", 4), ("thread", 2), ("global", 1)):
        world.done.clear()
        graph = agent(saver, [made(drive, remind(world), scope=scope)], *script, *script)
        for number in (1, 2):
            for _ in range(2):
                result = await drive.invoke(graph, GIVEN, thread(f"{scope} {number}"))
        assert told(result) == ["did a"] * 4
        assert len(world.done) == times, scope


async def test_a_key_identifies_calls_across_threads(saver: DurableSaver, drive: Drive, world: World) -> None:
    graph = agent(
        saver,
        [made(drive, remind(world), key=lambda text: text)],
        calls(("remind", "a", "1"), ("remind", "b", "2")),
        calls(("remind", "a", "3")),
    )
    for name in ("one", "two"):
        assert told(await drive.invoke(graph, GIVEN, thread(name))) == ["did a", "did b", "did a"]
    assert sorted(world.done) == ["a", "b"]


# --- replays ---


@pytest.mark.parametrize("form", ["content", "content_and_artifact"])
async def test_a_replayed_plain_result_is_marked_in_its_message(
    saver: DurableSaver, drive: Drive, world: World, form: Any
) -> None:
    def body(text: str) -> Any:
        done = {"done": world(text)}
        return (done, "the artifact") if form == "content_and_artifact" else done

    @tool("remind", response_format=form)
    @effect(name="remind")
    def act(text: str) -> Any:
        """Do it."""
        return body(text)

    @tool("remind", response_format=form)
    @effect(name="remind")
    async def aact(text: str) -> Any:
        """Do it."""
        return body(text)

    graph = agent(saver, [aact if drive.asynchronous else act], calls(("remind", "a", "1")))
    first = (await drive.invoke(graph, GIVEN, thread()))["messages"][-2]
    again = (await drive.invoke(graph, None, await before_tools(drive, graph)))["messages"][-2]
    assert (again.content, again.artifact, again.name, again.status) == (
        first.content,
        first.artifact,
        first.name,
        first.status,
    )
    assert first.response_metadata == {}
    mark = again.response_metadata["effect"]
    assert (mark["replayed"], mark["source"], mark["attempts"]) == (True, "executed", 1)
    assert world.done == ["a"]


async def test_a_replay_behind_another_decorator_is_the_function_s_value(
    saver: DurableSaver, drive: Drive, world: World
) -> None:
    """A message would surprise what stands between the tool and the effect."""

    def loud(function: Any) -> Any:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> str:
            said: str = function(*args, **kwargs)
            return said.upper()

        return call

    @tool
    @loud
    @effect
    def remind(text: str) -> str:
        """Do it."""
        return world(text)

    graph = agent(saver, [remind], calls(("remind", "a", "1")))
    assert told(await drive.invoke(graph, GIVEN, thread())) == ["DID A"]
    assert told(await drive.invoke(graph, None, await before_tools(drive, graph))) == ["DID A"]
    assert world.done == ["a"]


async def test_an_async_tool_with_a_timeout_may_ask_a_human(saver: DurableSaver, world: World) -> None:
    @tool
    @effect(timeout=30)
    async def remind(text: str) -> str:
        """Do it."""
        return world(f"{text} {interrupt('when?')}")

    graph = agent(saver, [remind], calls(("remind", "a", "1")))
    await graph.ainvoke(GIVEN, thread())
    assert [i.value for i in interrupts(await graph.aget_state(thread()))] == ["when?"]
    assert told(await graph.ainvoke(Command(resume="today"), thread())) == ["did a today"]


# --- durability ---


@pytest.mark.parametrize("checkpointer", [None, True, False])
@pytest.mark.parametrize("keyed", [False, True])
async def test_effects_in_subgraphs_need_a_checkpointer_or_a_key(
    saver: DurableSaver,
    drive: Drive,
    world: World,
    checkpointer: Any,
    keyed: bool,
) -> None:
    options: dict[str, Any] = {"key": lambda text: text} if keyed else {}
    if checkpointer is False and keyed:
        options["log"] = saver.effects
    inner = agent(checkpointer, [made(drive, remind(world), **options)], calls(("remind", "a", "1")))
    outer = StateGraph(MessagesState)
    outer.add_node("inner", inner)
    outer.add_edge(START, "inner")
    graph = outer.compile(checkpointer=saver)
    if checkpointer is False and not keyed:
        before = time.monotonic()
        with pytest.raises(EffectError, match=r"checkpointer=False.*key="):
            await drive.invoke(graph, GIVEN, thread())
        assert time.monotonic() - before < 5  # known at once, without a wait for the checkpoint
        assert world.done == []
        return
    assert told(await drive.invoke(graph, GIVEN, thread())) == ["did a"]
    assert world.done == ["a"]


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
@pytest.mark.parametrize("keyed", [False, True])
async def test_durability_exit_needs_a_key(
    saver: DurableSaver, drive: Drive, world: World, durability: str, keyed: bool
) -> None:
    options = {"key": lambda text: text} if keyed else {}
    graph = agent(saver, [made(drive, remind(world), **options)], calls(("remind", "a", "1")))
    if durability == "exit" and not keyed:
        with pytest.raises(EffectError, match='durability="exit"'):
            await drive.invoke(graph, GIVEN, thread(), durability=durability)
        assert world.done == []
        assert states(saver) == []
        return
    assert told(await drive.invoke(graph, GIVEN, thread(), durability=durability)) == ["did a"]


async def test_other_savers_are_refused(drive: Drive, world: World) -> None:
    from langgraph.checkpoint.memory import InMemorySaver

    graph = agent(InMemorySaver(), [made(drive, remind(world))], calls(("remind", "a", "1")))
    with pytest.raises(ValueError, match="DurableSaver"):
        await drive.invoke(graph, GIVEN, thread())
    assert world.done == []


# --- possible duplicates ---


async def test_a_possible_duplicate_that_happened_is_adopted(
    saver: DurableSaver, drive: Drive, world: World
) -> None:
    world.trouble = [TimeoutError("no answer")]
    graph = requesting_twice(saver, drive, remind(world), verify=lambda record: Happened("it was done"))
    result = await drive.invoke(graph, GIVEN, thread())
    assert told(result)[1] == "it was done"
    assert world.done == ["a"]
    assert states(saver) == ["completed", "completed"]


async def test_a_possible_duplicate_resolved_by_hand_is_adopted(
    saver: DurableSaver, drive: Drive, world: World
) -> None:
    world.trouble = [TimeoutError("no answer")]
    graph = requesting_twice(saver, drive, remind(world), on_unknown="ask")
    await drive.invoke(graph, GIVEN, thread())
    log = saver.effects
    log.resolve(log.pending()[0].effect_id, Happened("seen"))
    assert told(await drive.invoke(graph, None, thread()))[1:] == ["seen"]
    assert world.done == ["a"]


async def test_a_possible_duplicate_resolved_after_the_run_failed_is_adopted(
    saver: DurableSaver, drive: Drive, world: World
) -> None:
    world.trouble = [TimeoutError("no answer")]
    script = (calls(("remind", "a", "1")), calls(("remind", "a", "2")))
    graph = agent(saver, [made(drive, remind(world))], *script, errors=(TimeoutError,))
    for given in (GIVEN, None, None):
        with pytest.raises(EffectUnknownError):
            await drive.invoke(graph, given, thread())
    log = saver.effects
    log.resolve(log.pending()[0].effect_id, Happened("seen"))
    assert told(await drive.invoke(graph, None, thread()))[1:] == ["seen"]
    assert world.done == ["a"]


async def test_a_possible_duplicate_that_did_not_happen_lets_the_call_run(
    saver: DurableSaver, drive: Drive, world: World
) -> None:
    world.trouble = [TimeoutError("no answer")]
    graph = requesting_twice(saver, drive, remind(world), verify=lambda record: NotHappened())
    result = await drive.invoke(graph, GIVEN, thread())
    assert told(result)[1] == "did a"
    assert states(saver) == ["failed", "completed"]


async def test_calls_in_other_threads_or_with_other_arguments_are_not_duplicates(
    saver: DurableSaver, drive: Drive, world: World
) -> None:
    world.trouble = [TimeoutError("no answer")]
    graph = agent(
        saver,
        [made(drive, remind(world))],
        calls(("remind", "a", "1")),
        calls(("remind", "b", "2")),
        errors=True,
    )
    await drive.invoke(graph, GIVEN, thread("one"))
    await drive.invoke(graph, GIVEN, thread("two"))
    assert world.done == ["a", "b", "a", "b"]

"""Which call is it: what names an effect when a graph is resumed, retried or deployed anew."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import operator
import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Annotated, Any, TypedDict

import psycopg
import pytest
from langchain_core.messages import AIMessage
from langchain_core.tools import BaseTool, StructuredTool, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import RetryPolicy, Send
from pydantic import BaseModel

from langgraph_durable import (
    DurableSaver,
    EffectError,
    EffectUnknownError,
    Happened,
    effect,
)
from langgraph_durable.effects._identity import location
from langgraph_durable.effects._identity.location import find_place
from langgraph_durable.errors import EffectConflictError
from tests.acceptance.driving import Drive, thread
from tests.acceptance.effect_graphs import GIVEN, World, agent, calls, made, remind, told
from tests.acceptance.effect_workers import started
from tests.acceptance.graphs import Graph
from tests.samples import await_until

pytestmark = pytest.mark.context

AT_ONCE = RetryPolicy(initial_interval=0.001, jitter=False, max_attempts=3, retry_on=Exception)


class Trail(TypedDict):
    trail: Annotated[list[Any], operator.add]


def alone(saver: Any, drive: Drive, node: Any, anode: Any, state: Any = Trail, **options: Any) -> Graph:
    """Return a graph of one node, given in both forms."""
    builder = StateGraph(state)
    builder.add_node("node", anode if drive.asynchronous else node, **options)
    builder.add_edge(START, "node")
    return builder.compile(checkpointer=saver)


def paying(
    world: World, *, name: str | None = None, **options: Any
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return an effect of one text, sync and async, under one name."""
    name = name or "pay"

    @effect(name=name, **options)
    def pay(text: str) -> str:
        return world(text)

    @effect(name=name, **options)
    async def apay(text: str) -> str:
        return world(text)

    return pay, apay


class FaultError(Exception):
    """Stands for a crash after the effect."""


def fail(faults: list[str]) -> None:
    if faults:
        raise FaultError(faults.pop())


# --- messages that are stored, and messages that are not ---


def talkative(texts: list[str]) -> Callable[[], AIMessage]:
    """Return a model that asks for `remind`, under another message and id each time it is asked."""
    asked: list[str] = []

    def model() -> AIMessage:
        number = len(asked)
        asked.append(texts[min(number, len(texts) - 1)])
        message = calls(("remind", asked[-1], f"call-{number}"))
        return message.model_copy(update={"id": f"message-{number}"})

    return model


def model_and_tools(saver: Any, drive: Drive, world: World, texts: list[str], **options: Any) -> Graph:
    """Return a hand-written loop: the model and its tools in one node, which then fails once."""
    model, tools = talkative(texts), ToolNode([made(drive, remind(world))], handle_tool_errors=False)
    faults = ["after the tools"]

    def node(state: MessagesState) -> dict[str, Any]:
        asked = model()
        answered = tools.invoke([*state["messages"], asked])
        fail(faults)
        return {"messages": [asked, *answered]}

    async def anode(state: MessagesState) -> dict[str, Any]:
        asked = model()
        answered = await tools.ainvoke([*state["messages"], asked])
        fail(faults)
        return {"messages": [asked, *answered]}

    return alone(saver, drive, node, anode, MessagesState, **options)


@pytest.mark.parametrize("retried", [False, True], ids=["resumed", "retried"])
async def test_a_message_that_no_checkpoint_has_identifies_nothing(
    saver: DurableSaver, drive: Drive, world: World, retried: bool
) -> None:
    options = {"retry_policy": AT_ONCE} if retried else {}
    graph = model_and_tools(saver, drive, world, ["a"], **options)
    if not retried:
        with pytest.raises(FaultError):
            await drive.invoke(graph, GIVEN, thread())
    result = await drive.invoke(graph, GIVEN if retried else None, thread())
    assert told(result) == ["did a"]
    assert result["messages"][-1].tool_call_id == "call-1"
    assert world.done == ["a"]
    assert [record.message_id for record in saver.effects.list()] == [None]


async def test_a_model_that_asks_for_something_else_after_a_crash_is_a_conflict(
    saver: DurableSaver, drive: Drive, world: World
) -> None:
    graph = model_and_tools(saver, drive, world, ["a", "b"])
    with pytest.raises(FaultError):
        await drive.invoke(graph, GIVEN, thread())
    with pytest.raises(EffectConflictError, match=r"'b'.*'a'.*key="):
        await drive.invoke(graph, None, thread())
    assert world.done == ["a"]


async def test_a_retry_around_the_tools_is_the_same_call_also_without_a_stored_message(
    saver: DurableSaver, drive: Drive, world: World
) -> None:
    """But another message in the same execution is another call, although it looks the same."""
    tools = ToolNode([made(drive, remind(world))], handle_tool_errors=False)
    world.trouble = [TimeoutError("no answer")]

    def messages() -> list[AIMessage]:
        return [calls(("remind", "a", "1")), calls(("remind", "b", "1")), calls(("remind", "b", "1"))]

    async def anode(state: MessagesState) -> None:
        for message in messages()[::-1]:
            try:
                await tools.ainvoke([message])
            except TimeoutError:
                with pytest.raises(EffectUnknownError):
                    await tools.ainvoke([message])

    def node(state: MessagesState) -> None:
        for message in messages()[::-1]:
            try:
                tools.invoke([message])
            except TimeoutError:
                with pytest.raises(EffectUnknownError):
                    tools.invoke([message])

    await drive.invoke(alone(saver, drive, node, anode, MessagesState), GIVEN, thread())
    assert world.done == ["b", "b", "a"]


def run_in_one_node(conninfo: str, ledger: str, asynchronous: bool, given: Any, pipe: Connection) -> None:
    """Run a graph whose only node asks a model and pays, and die after the first payment."""

    def pay(what: str) -> str:
        with Path(ledger).open("a") as file:
            file.write(f"{what}\n")
        return f"did {what}"

    def remind(text: str) -> Any:
        return pay(text)

    drive = Drive(asynchronous)
    tools = ToolNode([made(drive, remind)], handle_tool_errors=False)

    def asked() -> AIMessage:
        return calls(("remind", "a", f"call-{os.getpid()}")).model_copy(update={"id": str(os.getpid())})

    def node(state: MessagesState) -> dict[str, Any]:
        answered = tools.invoke([asked()])
        if given is not None:
            os.kill(os.getpid(), signal.SIGKILL)
        return {"messages": answered}

    async def anode(state: MessagesState) -> dict[str, Any]:
        answered = await tools.ainvoke([asked()])
        if given is not None:
            os.kill(os.getpid(), signal.SIGKILL)
        return {"messages": answered}

    with DurableSaver.from_conn_string(conninfo) as saver:
        graph = alone(saver, drive, node, anode, MessagesState)
        pipe.send(told(asyncio.run(drive.invoke(graph, given, thread(), durability="sync"))))


async def test_a_killed_node_that_asks_its_model_itself_pays_once(
    conninfo: str, drive: Drive, tmp_path: Path
) -> None:
    ledger = tmp_path / "ledger"
    for given in (GIVEN, None):
        with started(run_in_one_node, conninfo, str(ledger), drive.asynchronous, given) as worker:
            if given is not None:
                worker.die()
            else:
                assert worker.finish() == ["did a"]
    assert ledger.read_text() == "a\n"


@dataclass(slots=True)
class Slots:
    messages: Annotated[list[Any], operator.add] = field(default_factory=list)


class Threads(TypedDict):
    by_agent: dict[str, list[Any]]


def in_send(message: AIMessage) -> tuple[Any, Any]:
    return Trail, lambda state: [Send("node", {"messages": [message]})]


STORED: dict[str, Callable[[AIMessage], tuple[Any, Any]]] = {
    "messages": lambda message: (MessagesState, {"messages": [message]}),
    "slots": lambda message: (Slots, {"messages": [message]}),
    "nested": lambda message: (Threads, {"by_agent": {"ann": [message]}}),
    "send": in_send,
}


@pytest.mark.parametrize("where", STORED)
async def test_a_stored_message_identifies_its_calls_wherever_it_is(
    saver: DurableSaver, drive: Drive, world: World, where: str
) -> None:
    message = calls(("remind", "a", "1")).model_copy(update={"id": "message"})
    state, given = STORED[where](message)
    tools = ToolNode([made(drive, remind(world))], handle_tool_errors=False)

    def found(state: Any) -> list[Any]:
        if isinstance(state, Slots):
            return state.messages
        return list(state["messages"] if "messages" in state else state["by_agent"]["ann"])

    def node(state: Any) -> None:
        tools.invoke(found(state))

    async def anode(state: Any) -> None:
        await tools.ainvoke(found(state))

    builder = StateGraph(state)
    builder.add_node("node", anode if drive.asynchronous else node)
    if callable(given):
        builder.add_conditional_edges(START, given, ["node"])
        given = {"trail": []}
    else:
        builder.add_edge(START, "node")
    await drive.invoke(builder.compile(checkpointer=saver), given, thread())
    [record] = saver.effects.list()
    assert (record.tool, record.message_id, record.tool_call_id) == ("remind", "message", "1")


class Untracked(TypedDict):
    messages: Annotated[list[Any], operator.add]


@pytest.mark.parametrize("state", [Untracked, Slots], ids=["dict", "slots"])
async def test_retries_of_a_call_whose_message_has_no_id_are_one_call(
    saver: DurableSaver, drive: Drive, world: World, state: Any
) -> None:
    """Retries by the node's policy, and by a loop around the tools."""
    tools = ToolNode([made(drive, remind(world), failed_on=FaultError)], handle_tool_errors=False)
    script = [calls(("remind", "a", "1"), ("remind", "b", "1"), ("remind", "b", "1"))]
    world.trouble = [TimeoutError("no answer")]

    def messages(state: Any) -> list[Any]:
        return list(state.messages if isinstance(state, Slots) else state["messages"])

    def node(state: Any) -> None:
        for last in (False, True):
            try:
                tools.invoke(messages(state))
            except (TimeoutError, EffectUnknownError):
                if last:
                    raise

    async def anode(state: Any) -> None:
        for last in (False, True):
            try:
                await tools.ainvoke(messages(state))
            except (TimeoutError, EffectUnknownError):
                if last:
                    raise

    graph = alone(saver, drive, node, anode, state, retry_policy=AT_ONCE)
    with pytest.raises(EffectUnknownError):
        await drive.invoke(graph, {"messages": script}, thread())
    assert sorted(world.done) == ["a", "b", "b"]
    [unknown] = saver.effects.pending()
    saver.effects.resolve(unknown.effect_id, Happened("found"))
    await drive.invoke(graph, None, thread())
    assert sorted(world.done) == ["a", "b", "b"]
    assert len(list(saver.effects.list())) == 3


# --- names ---


async def test_effects_of_tool_classes_have_the_tools_names(
    saver: DurableSaver, drive: Drive, world: World
) -> None:
    class Given(BaseModel):
        text: str

    class Charge(BaseTool):
        name: str = "charge"
        description: str = "Do it."

        @effect()
        def _run(self, text: str) -> str:
            return world(f"charge {text}")

    class Refund(BaseTool):
        name: str = "refund"
        description: str = "Do it."
        args_schema: Any = Given

        @effect()
        def _run(self, text: str) -> str:
            return world(f"refund {text}")

    graph = agent(saver, [Charge(), Refund()], calls(("charge", "a", "1"), ("refund", "a", "1")))
    assert told(await drive.invoke(graph, GIVEN, thread())) == ["did charge a", "did refund a"]
    assert {record.tool for record in saver.effects.list()} == {"charge", "refund"}


async def test_tools_of_functions_of_one_name_are_distinguished(
    saver: DurableSaver, drive: Drive, world: World
) -> None:
    """Also where arguments alone identify the calls."""

    def make(name: str) -> BaseTool:
        @tool(name)
        @effect(scope="thread")
        def act(text: str) -> str:
            """Do it."""
            return world(f"{name} {text}")

        return act

    script = calls(("charge", "a", "1"), ("refund", "a", "1"))
    graph = agent(saver, [make("charge"), make("refund")], script)
    assert told(await drive.invoke(graph, GIVEN, thread())) == ["did charge a", "did refund a"]


async def test_a_function_may_be_renamed_under_its_tool(
    saver: DurableSaver, drive: Drive, world: World
) -> None:
    """A deploy between a crash and the resumed run."""

    def make(function_name: str) -> BaseTool:
        def act(text: str) -> str:
            """Do it."""
            return world(text)

        act.__name__ = function_name
        return tool("charge")(effect()(act))

    script = calls(("charge", "a", "1"))
    world.trouble = [TimeoutError("no answer")]
    with pytest.raises(TimeoutError):
        await drive.invoke(agent(saver, [make("charge_card")], script), GIVEN, thread())
    [record] = saver.effects.list()
    assert record.tool == "charge"
    saver.effects.resolve(record.effect_id, Happened("found"))
    assert told(await drive.invoke(agent(saver, [make("charge_any_card")], script), None, thread())) == [
        "found"
    ]
    assert world.done == ["a"]


async def test_an_explicit_name_wins_where_no_message_identifies_the_call(
    saver: DurableSaver, drive: Drive, world: World
) -> None:
    def make(tool_name: str, **options: Any) -> tuple[Any, BaseTool]:
        @effect(name="payment", **options)
        def act(text: str) -> str:
            """Do it."""
            return world(text)

        return act, tool(tool_name)(act)

    (by_message, first), (by_key, second) = make("one"), make("other", key=lambda text: text)

    def node(state: MessagesState) -> None:
        by_message("in code")
        by_key("b")  # as the tool call did

    builder = StateGraph(MessagesState)
    builder.add_node("tools", ToolNode([first, second]))
    builder.add_node("node", node)
    builder.add_edge(START, "tools")
    builder.add_edge("tools", "node")
    script = calls(("one", "a", "1"), ("other", "b", "2"))
    await drive.invoke(builder.compile(checkpointer=saver), {"messages": [script]}, thread())
    assert sorted(world.done) == ["a", "b", "in code"]
    found = {(record.tool, str(record.args and record.args["text"])) for record in saver.effects.list()}
    assert found == {("one", "a"), ("payment", "b"), ("payment", "in code")}


async def test_a_method_of_no_tool_needs_a_name(saver: DurableSaver, drive: Drive, world: World) -> None:
    class Shop:
        @effect()
        def _run(self, text: str) -> str:
            return world(text)

        @effect(name="charge")
        def _arun(self, text: str) -> str:
            return world(text)

    def unnamed(state: Trail) -> None:
        Shop()._run("a")

    def named(state: Trail) -> None:
        Shop()._arun("a")

    with pytest.raises(EffectError, match="needs a name="):
        await drive.invoke(alone(saver, Drive(asynchronous=False), unnamed, None), {"trail": []}, thread("1"))
    assert world.done == []
    await drive.invoke(alone(saver, Drive(asynchronous=False), named, None), {"trail": []}, thread("2"))
    assert [record.tool for record in saver.effects.list()] == ["charge"]


async def test_one_id_for_calls_of_two_tools_in_another_order(
    saver: DurableSaver, drive: Drive, world: World
) -> None:
    """Each call finds its own effect, although ids, arguments and functions' names are equal."""
    first = ["charge"]
    arrived = {"charge": threading.Event(), "refund": threading.Event()}

    def make(name: str) -> BaseTool:
        def act(text: str) -> str:
            """Do it."""
            return world(f"{name} {text}")

        async def aact(text: str) -> str:
            """Do it."""
            return world(f"{name} {text}")

        act.__name__ = aact.__name__ = "act"
        return StructuredTool.from_function(effect()(act), effect()(aact), name=name)

    def ordered(request: Any, execute: Callable[[Any], Any]) -> Any:
        name = request.tool_call["name"]
        if name != first[0]:
            assert arrived[first[0]].wait(10)
        result = execute(request)
        arrived[name].set()
        return result

    async def aordered(request: Any, execute: Callable[[Any], Any]) -> Any:
        name = request.tool_call["name"]
        while name != first[0] and not arrived[first[0]].is_set():  # noqa: ASYNC110 (of both drives)
            await asyncio.sleep(0.01)
        result = await execute(request)
        arrived[name].set()
        return result

    faults = ["after the tools"]

    def after(state: MessagesState) -> None:
        fail(faults)

    node = ToolNode([make("charge"), make("refund")], wrap_tool_call=ordered, awrap_tool_call=aordered)

    def both(state: MessagesState) -> Any:
        answered = node.invoke(state)
        fail(faults)
        return answered

    async def aboth(state: MessagesState) -> Any:
        answered = await node.ainvoke(state)
        fail(faults)
        return answered

    graph = alone(saver, drive, both, aboth, MessagesState)
    script = calls(("charge", "a", "1"), ("refund", "a", "1"))
    with pytest.raises(FaultError):
        await drive.invoke(graph, {"messages": [script]}, thread())
    first[:] = ["refund"]
    for event in arrived.values():
        event.clear()
    result = await drive.invoke(graph, None, thread())
    assert told(result) == ["did charge a", "did refund a"]
    assert world.done == ["charge a", "refund a"]


# --- plain code: by arguments ---


async def test_parallel_calls_in_plain_code_may_come_in_any_order(
    saver: DurableSaver, drive: Drive, world: World
) -> None:
    pay, apay = paying(world)
    texts, faults = ["a", "b", "a"], ["after the effects"]

    def node(state: Trail) -> dict[str, Any]:
        with ThreadPoolExecutor(1) as pool:
            started = [pool.submit(contextvars.copy_context().run, pay, text) for text in texts]
            paid = [future.result() for future in started]
        fail(faults)
        return {"trail": paid}

    async def anode(state: Trail) -> dict[str, Any]:
        paid = list(await asyncio.gather(*map(apay, texts)))
        fail(faults)
        return {"trail": paid}

    graph = alone(saver, drive, node, anode)
    with pytest.raises(FaultError):
        await drive.invoke(graph, {"trail": []}, thread())
    texts.reverse()
    texts[:2] = texts[1::-1]
    assert texts == ["b", "a", "a"]
    assert await drive.invoke(graph, None, thread()) == {"trail": ["did b", "did a", "did a"]}
    assert sorted(world.done) == ["a", "a", "b"]


@pytest.mark.parametrize("again", ["resumed", "retried"])
async def test_other_arguments_when_a_task_runs_again_are_a_conflict(
    saver: DurableSaver, conninfo: str, drive: Drive, world: World, again: str
) -> None:
    pay, apay = paying(world)
    texts = ["now", *["later"] * 4]

    def node(state: Trail) -> None:
        pay(texts.pop(0))
        raise FaultError

    async def anode(state: Trail) -> None:
        await apay(texts.pop(0))
        raise FaultError

    once = RetryPolicy(initial_interval=0.001, jitter=False, max_attempts=2, retry_on=FaultError)
    options = {"retry_policy": once} if again == "retried" else {}
    graph = alone(saver, drive, node, anode, **options)
    if again == "resumed":
        with pytest.raises(FaultError):
            await drive.invoke(graph, {"trail": []}, thread())
    with pytest.raises(EffectConflictError, match=r"'later'.*'now'.*key="):
        await drive.invoke(graph, None if again == "resumed" else {"trail": []}, thread())
    [record] = saver.effects.list()
    assert world.done == ["now"]
    with psycopg.connect(conninfo) as connection:
        connection.execute(
            "INSERT INTO langgraph_durable.effect_notes (effect_id, kind) SELECT effect_id, 'acknowledged'"
            " FROM langgraph_durable.effects"
        )
    with pytest.raises(FaultError):  # it was dealt with, so it is not waited for
        await drive.invoke(graph, None, thread())
    assert world.done == ["now", "later"]
    assert record.state == "completed"


async def test_a_new_call_waits_for_those_that_the_task_made_before(
    saver: DurableSaver, drive: Drive, world: World
) -> None:
    """The call that was made before comes a moment after the new one."""
    pay, apay = paying(world)
    faults = ["after the effect"]

    def late() -> str:
        time.sleep(0.3)
        return str(pay("a"))

    def node(state: Trail) -> dict[str, Any]:
        if faults:
            pay("a")
            fail(faults)
        with ThreadPoolExecutor(2) as pool:
            repeated = pool.submit(contextvars.copy_context().run, late)
            new = pool.submit(contextvars.copy_context().run, pay, "b")
            return {"trail": [new.result(), repeated.result()]}

    async def alate() -> str:
        await asyncio.sleep(0.3)
        return str(await apay("a"))

    async def anode(state: Trail) -> dict[str, Any]:
        if faults:
            await apay("a")
            fail(faults)
        return {"trail": list(await asyncio.gather(apay("b"), alate()))}

    graph = alone(saver, drive, node, anode)
    with pytest.raises(FaultError):
        await drive.invoke(graph, {"trail": []}, thread())
    assert await drive.invoke(graph, None, thread()) == {"trail": ["did b", "did a"]}
    assert world.done == ["a", "b"]


# --- effects inside effects ---


def nesting(world: World, inner_text: Callable[[int], str]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return an effect whose body calls another one, sync and async."""
    notify, anotify = paying(world, name="notify")

    @effect(name="order")
    def order(n: int) -> str:
        world(f"order {n}")
        return str(notify(inner_text(n)))

    @effect(name="order")
    async def aorder(n: int) -> str:
        world(f"order {n}")
        return str(await anotify(inner_text(n)))

    return order, aorder


@pytest.mark.parametrize("inner_text", [lambda n: "ops", str], ids=["equal arguments", "other arguments"])
@pytest.mark.parametrize("again", ["resumed", "retried"])
async def test_a_replayed_effect_shifts_no_inner_one(
    saver: DurableSaver, drive: Drive, world: World, again: str, inner_text: Callable[[int], str]
) -> None:
    order, aorder = nesting(world, inner_text)
    faults = ["after the first"]

    def node(state: Trail) -> dict[str, Any]:
        first = order(1)
        fail(faults)
        return {"trail": [first, order(2)]}

    async def anode(state: Trail) -> dict[str, Any]:
        first = await aorder(1)
        fail(faults)
        return {"trail": [first, await aorder(2)]}

    options = {"retry_policy": AT_ONCE} if again == "retried" else {}
    graph = alone(saver, drive, node, anode, **options)
    given: Any = {"trail": []}
    if again == "resumed":
        with pytest.raises(FaultError):
            await drive.invoke(graph, given, thread())
        given = None
    result = await drive.invoke(graph, given, thread())
    assert result == {"trail": [f"did {inner_text(1)}", f"did {inner_text(2)}"]}
    assert world.done == ["order 1", inner_text(1), "order 2", inner_text(2)]


@pytest.mark.parametrize("guarded", ["decorated", "wrapped"])
async def test_parallel_tools_find_their_own_inner_effects(
    saver: DurableSaver, conninfo: str, drive: Drive, world: World, guarded: str
) -> None:
    """Two tool calls with an inner effect each; the first is completed, the other one is not."""
    notify, anotify = paying(world, name="notify", failed_on=ConnectionError)
    faults = ["b"]

    def act(text: str) -> str:
        """Do it."""
        told = str(notify("ops"))
        if text in faults:
            raise ConnectionError(faults.pop())
        return f"{text}: {told}"

    async def aact(text: str) -> str:
        """Do it."""
        told = str(await anotify("ops"))
        if text in faults:
            raise ConnectionError(faults.pop())
        return f"{text}: {told}"

    wrapper: dict[str, Any] = {}
    decorate: Any = effect(name="act", failed_on=ConnectionError)
    if guarded == "wrapped":
        from langgraph_durable import EffectPolicy

        made_ = saver.effects.tool_wrapper({"act": EffectPolicy(failed_on=ConnectionError)})
        wrapper = {"wrap_tool_call": made_.wrap_tool_call, "awrap_tool_call": made_.awrap_tool_call}
        act_, aact_ = act, aact
    else:
        act_, aact_ = decorate(act), decorate(aact)
    tools = [StructuredTool.from_function(act_, aact_, name="act")]
    builder = StateGraph(MessagesState)
    builder.add_node("tools", ToolNode(tools, handle_tool_errors=False, **wrapper))
    builder.add_edge(START, "tools")
    graph = builder.compile(checkpointer=saver)
    script = calls(("act", "a", "1"), ("act", "b", "2"))
    with pytest.raises(ConnectionError):
        await drive.invoke(graph, {"messages": [script]}, thread())
    result = await drive.invoke(graph, None, thread())
    assert told(result) == ["a: did ops", "b: did ops"]
    assert world.done == ["ops", "ops"]
    with psycopg.connect(conninfo) as connection:
        outer = connection.execute(
            "SELECT count(DISTINCT o.tool_call_id) FROM langgraph_durable.effects e"
            " JOIN langgraph_durable.effects o ON o.effect_id = e.outer_id WHERE e.tool = 'notify'"
        ).fetchone()
    assert outer == (2,)


async def test_an_inner_effect_with_other_arguments_in_a_later_attempt_is_a_conflict(
    saver: DurableSaver, drive: Drive, world: World
) -> None:
    notify, anotify = paying(world, name="notify")
    texts = ["a", "b"]

    @effect(failed_on=FaultError)
    def order() -> None:
        notify(texts.pop(0))
        raise FaultError

    @effect(failed_on=FaultError)
    async def aorder() -> None:
        await anotify(texts.pop(0))
        raise FaultError

    graph = alone(saver, drive, lambda state: order(), aorder_node(aorder))
    with pytest.raises(FaultError):
        await drive.invoke(graph, {"trail": []}, thread())
    with pytest.raises(EffectConflictError, match="key="):
        await drive.invoke(graph, None, thread())
    assert world.done == ["a"]


def aorder_node(aorder: Callable[[], Any]) -> Callable[[Any], Any]:
    async def anode(state: Trail) -> None:
        await aorder()

    return anode


async def test_calls_of_a_graph_inside_an_effect_are_identified_by_their_messages(
    saver: DurableSaver, drive: Drive, world: World
) -> None:
    inner = agent(
        None, [made(drive, remind(world))], calls(("remind", "a", "1")), calls(("remind", "a", "2"))
    )

    @effect()
    def ask() -> list[Any]:
        return told(inner.invoke(GIVEN))

    @effect()
    async def aask() -> list[Any]:
        return told(await inner.ainvoke(GIVEN))

    async def anode(state: Trail) -> dict[str, Any]:
        return {"trail": await aask()}

    graph = alone(saver, drive, lambda state: {"trail": ask()}, anode)
    assert await drive.invoke(graph, {"trail": []}, thread()) == {"trail": ["did a", "did a"]}
    found = [record.tool_call_id for record in saver.effects.list() if record.tool == "remind"]
    assert found == ["1", "2"]


# --- executions ---


async def test_the_count_of_calls_survives_any_number_of_other_executions(
    saver: DurableSaver, drive: Drive, world: World
) -> None:
    pay, apay = paying(world)
    others = StateGraph(Trail)
    others.add_node("other", lambda state: {"trail": [find_place() is not None]})
    others.add_conditional_edges(START, lambda state: [Send("other", {"trail": []})] * 5000, ["other"])
    many = others.compile(checkpointer=InMemorySaver())

    def run_others() -> None:
        found = contextvars.Context().run(lambda: many.invoke({"trail": []}, thread("others")))
        assert found["trail"] == [True] * 5000

    faults = ["after the effects"]

    def node(state: Trail) -> dict[str, Any]:
        first = pay("a")
        if not faults:
            run_others()
        second = pay("a")
        fail(faults)
        return {"trail": [first, second, pay("a")]}

    async def anode(state: Trail) -> dict[str, Any]:
        first = await apay("a")
        if not faults:
            await asyncio.to_thread(run_others)
        second = await apay("a")
        fail(faults)
        return {"trail": [first, second, await apay("a")]}

    graph = alone(saver, drive, node, anode, retry_policy=AT_ONCE)
    assert await drive.invoke(graph, {"trail": []}, thread()) == {"trail": ["did a"] * 3}
    assert world.done == ["a"] * 3


async def test_executions_are_forgotten_with_their_tasks(
    saver: DurableSaver, drive: Drive, world: World
) -> None:
    pay, apay = paying(world)

    async def anode(state: Trail) -> dict[str, Any]:
        return {"trail": [await apay("a")]}

    graph = alone(saver, drive, lambda state: {"trail": [pay("a")]}, anode)
    gc.collect()
    before = len(location._executions)  # those in the tracebacks of earlier tests
    for number in range(3):
        await drive.invoke(graph, {"trail": []}, thread(str(number)))
    # The last callbacks of the runs may still be due.
    await await_until(lambda: gc.collect() >= 0 and len(location._executions) <= before, "them to be freed")


# --- places ---


@pytest.mark.parametrize(
    ("checkpoint_ns", "path"),
    [("", ""), ("tools:9c2", "tools"), ("agent:1f3|1|tools:9c2", "agent|tools"), ("1:1f3|2", "1")],
)
def test_a_path_has_neither_ids_nor_counters(checkpoint_ns: str, path: str) -> None:
    """A retry of the outer node calls its nested graph under another counter."""
    place = find_place(
        {
            "configurable": {
                "__pregel_checkpointer": None,
                "__pregel_task_id": "9c2",
                "checkpoint_ns": checkpoint_ns,
            }
        }
    )
    assert place is not None
    assert place.path == path

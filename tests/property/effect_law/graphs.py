"""Builds the programs as LangGraph graphs."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypedDict

from langchain.agents import create_agent
from langchain_core.messages import AIMessage
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.prebuilt import ToolNode
from langgraph.types import RetryPolicy, Send

from langgraph_durable import DurableSaver, EffectMiddleware
from tests.property.effect_law.effects import billing_tool, outer_policy, policy_of, tools_of
from tests.property.effect_law.flows import build_flow
from tests.property.effect_law.model import ScriptedModel, calls_for, reply
from tests.property.effect_law.programs import AGENTS, NESTED, Fan, Flow, Loop, Talk
from tests.property.effect_law.world import World

Graph = Any

RETRY = RetryPolicy(
    initial_interval=0.01, backoff_factor=1.0, max_attempts=3, jitter=False, retry_on=Exception
)


class Talking(TypedDict):
    """The state of a conversation."""

    messages: Annotated[list[Any], add_messages]


class TalkingWithoutIds(TypedDict):
    """The state of a conversation whose messages get no ids."""

    messages: Annotated[list[Any], operator.add]


def build(world: World, saver: DurableSaver) -> Graph:
    """Return the graph of a case's program."""
    program = world.case.program
    if isinstance(program, Talk):
        return _build_talk(world, program, saver)
    if isinstance(program, Flow):
        return build_flow(world, program, saver)
    if isinstance(program, Fan):
        return _build_fan(world, program, saver)
    return _build_loop(world, program, saver)


# --- conversations ---


def _build_talk(world: World, talk: Talk, saver: DurableSaver) -> Graph:
    nested = talk.shape in NESTED
    inner_saver = None if nested else saver
    if talk.shape in AGENTS:
        inner = _agent(world, talk, saver, inner_saver)
    elif talk.shape == "one node":
        return _one_node(world, talk, saver)
    else:
        inner = _loop_of_model_and_tools(world, talk, inner_saver)
    return _outer(world, talk, inner, saver) if nested else inner


def _agent(world: World, talk: Talk, saver: DurableSaver, checkpointer: Any) -> Graph:
    wrapped = talk.shape == "wrapped"
    tools = tools_of(world, wrapped=wrapped, same_name=talk.same_name, asks=talk.ask)
    middleware: list[Any] = []
    if wrapped:
        policies = {"order": outer_policy(world), "look": policy_of(world).replace(read_only=True)}
        middleware.append(EffectMiddleware(saver.effects, policies, default=policy_of(world)))
    # The middleware heals conversations.
    model = ScriptedModel(serial=talk.serial, refuse=world.note_dangling if wrapped else None)
    return create_agent(model, tools, middleware=middleware, checkpointer=checkpointer)


def _state_of(talk: Talk) -> Any:
    return Talking if talk.ids else TalkingWithoutIds


def _model_node(talk: Talk) -> Callable[[Any], Any]:
    def model(state: Any) -> Any:
        return {"messages": [reply(state["messages"], serial=talk.serial, ids=talk.ids)]}

    return model


def _asks(state: Any) -> bool:
    last = state["messages"][-1]
    return isinstance(last, AIMessage) and bool(last.tool_calls)


def _loop_of_model_and_tools(world: World, talk: Talk, checkpointer: Any) -> Graph:
    tools = tools_of(world, wrapped=False, same_name=talk.same_name, asks=talk.ask)

    def route(state: Any) -> Any:
        if not _asks(state):
            return END
        last = state["messages"][-1]
        if talk.shape != "send":
            return "tools"
        alone = [last.model_copy(update={"tool_calls": [call]}) for call in last.tool_calls]
        return [Send("tools", {"messages": [*state["messages"][:-1], one]}) for one in alone]

    builder: Any = StateGraph(_state_of(talk))
    builder.add_node("model", _model_node(talk))
    options: dict[str, Any] = {"handle_tool_errors": True} if talk.errors else {}
    if talk.retry == "call":
        options |= {"wrap_tool_call": _retrying, "awrap_tool_call": _aretrying}
    node = ToolNode(tools, **options)
    builder.add_node("tools", node, retry_policy=RETRY if talk.retry == "tools" else None)
    builder.add_edge(START, "model")
    builder.add_conditional_edges("model", route, ["tools", END])
    builder.add_edge("tools", "model")
    return builder.compile(checkpointer=checkpointer)


def _retrying(request: Any, execute: Callable[[Any], Any]) -> Any:
    """Try a tool again, as ToolRetryMiddleware does."""
    try:
        return execute(request)
    except (RuntimeError, OSError):
        return execute(request)


async def _aretrying(request: Any, execute: Callable[[Any], Any]) -> Any:
    try:
        return await execute(request)
    except (RuntimeError, OSError):
        return await execute(request)


def _one_node(world: World, talk: Talk, saver: DurableSaver) -> Graph:
    tools = ToolNode(tools_of(world, wrapped=False, same_name=talk.same_name, asks=talk.ask))
    model = _model_node(talk)

    def turn(state: Any) -> Any:
        said = model(state)["messages"]
        if not said[0].tool_calls:
            return {"messages": said}
        done = tools.invoke({"messages": [*state["messages"], *said]})
        return {"messages": [*said, *done["messages"]]}

    async def aturn(state: Any) -> Any:
        said = model(state)["messages"]
        if not said[0].tool_calls:
            return {"messages": said}
        done = await tools.ainvoke({"messages": [*state["messages"], *said]})
        return {"messages": [*said, *done["messages"]]}

    def route(state: Any) -> str:
        last = state["messages"][-1]
        return END if isinstance(last, AIMessage) else "turn"

    builder: Any = StateGraph(_state_of(talk))
    builder.add_node(
        "turn",
        aturn if world.case.asynchronous else turn,
        retry_policy=RETRY if talk.retry == "tools" else None,
    )
    builder.add_edge(START, "turn")
    builder.add_conditional_edges("turn", route, ["turn", END])
    return builder.compile(checkpointer=saver)


def _outer(world: World, talk: Talk, inner: Graph, saver: DurableSaver) -> Graph:
    def call(state: Any) -> Any:
        result = inner.invoke({"messages": state["messages"]})
        return {"messages": result["messages"][len(state["messages"]) :]}

    async def acall(state: Any) -> Any:
        result = await inner.ainvoke({"messages": state["messages"]})
        return {"messages": result["messages"][len(state["messages"]) :]}

    builder: Any = StateGraph(_state_of(talk))
    node = (acall if world.case.asynchronous else call) if talk.shape == "called" else inner
    builder.add_node("inner", node, retry_policy=RETRY if talk.retry == "outer" else None)
    builder.add_edge(START, "inner")
    return builder.compile(checkpointer=saver)


# --- one message, several tasks ---


class Fanning(Talking):
    """The state of a fan-out; `customer` is only in what is sent."""

    customer: str


def _build_fan(world: World, fan: Fan, saver: DurableSaver) -> Graph:
    def model(state: Any) -> Any:
        wishes = [f"bill:{item}" for item in fan.items]
        return {"messages": [AIMessage("", tool_calls=calls_for(wishes))]}

    def route(state: Any) -> Sequence[Send]:
        last = state["messages"][-1]
        if not _asks(state):  # an update as this node, before it ran
            return []
        return [Send("tools", {"messages": [last], "customer": customer}) for customer in fan.customers]

    builder = StateGraph(Fanning)
    builder.add_node("model", model)
    builder.add_node("tools", ToolNode([billing_tool(world)]))
    builder.add_edge(START, "model")
    builder.add_conditional_edges("model", route, ["tools"])
    builder.add_edge("tools", END)
    return builder.compile(checkpointer=saver)


class Looping(TypedDict):
    """The state of a loop whose model sees the same prompt in each turn."""

    began: Annotated[int, operator.add]
    turn: int
    ai: list[Any]
    out: Annotated[list[str], operator.add]


def _build_loop(world: World, loop: Loop, saver: DurableSaver) -> Graph:
    tools = tools_of(world, wrapped=False, same_name=False, asks="no")

    def model(state: Any) -> Any:
        calls: Any = calls_for([f"pay:{item}" for item in loop.items])
        return {"ai": [AIMessage("", id="cached", tool_calls=calls)]}

    def collect(state: Any) -> Any:
        return {
            "out": [f"{state['began']}|{message.content}" for message in state["ai"]],
            "turn": state["turn"] + 1,
            "ai": [],
        }

    def route(state: Any) -> str:
        return "model" if state["turn"] < loop.turns else END

    builder = StateGraph(Looping)
    builder.add_node("model", model)
    builder.add_node("tools", ToolNode(tools, messages_key="ai"))
    builder.add_node("collect", collect)
    builder.add_edge(START, "model")
    builder.add_edge("model", "tools")
    builder.add_edge("tools", "collect")
    builder.add_conditional_edges("collect", route, ["model", END])
    return builder.compile(checkpointer=saver)

"""Agents whose model says what it saw, and worker processes that are killed in the middle of their tools."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolCall, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import BaseTool, tool
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from pydantic import Field

from langgraph_durable import READ_ONLY, DurableSaver, EffectPolicy, effect
from tests.acceptance.driving import Drive, thread
from tests.acceptance.graphs import Graph

Kind = Literal["agent", "node"]
Make = Callable[..., Graph]

LEASE = 0.5
READING = {"look_up": READ_ONLY}


class Model(BaseChatModel):
    """Says the next line of its script, by the number of its messages so far, and keeps what it saw."""

    script: list[AIMessage]
    seen: list[list[BaseMessage]] = Field(default_factory=list)

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        return self

    def _generate(
        self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> ChatResult:
        self.seen.append(list(messages))
        said = sum(isinstance(message, AIMessage) for message in messages)
        line = self.script[said] if said < len(self.script) else AIMessage("done")
        return ChatResult(generations=[ChatGeneration(message=line.model_copy(update={"id": None}))])


def build(
    kind: Kind,
    saver: DurableSaver,
    model: Model,
    tools: Sequence[BaseTool],
    *,
    policies: dict[str, EffectPolicy] | None = None,
    before: Sequence[Any] = (),
    after: Sequence[Any] = (),
    errors: Any = False,
    checkpointer: Any = None,
) -> Graph:
    """Return an agent of langchain's, each of whose calls is a task, or a graph with one ToolNode for all calls.

    Args:
        kind: Which.
        saver: The checkpointer.
        model: Its model.
        tools: Its tools.
        policies: Of the tools without @effect.
        before: Middleware before the effects' (agents only).
        after: Middleware after the effects' (agents only).
        errors: What the ToolNode does about errors (graphs only).
        checkpointer: What to compile it with, if not the saver.
    """
    if kind == "agent":
        from langchain.agents import create_agent

        from langgraph_durable import EffectMiddleware

        effects = EffectMiddleware(saver.effects, policies, tools=tools)
        made: Graph = create_agent(
            model, list(tools), middleware=[*before, effects, *after], checkpointer=checkpointer or saver
        )
        return made

    def heal(state: MessagesState) -> Any:
        return saver.effects.heal(state["messages"], tools=tools, policies=policies).command

    async def aheal(state: MessagesState) -> Any:
        return (await saver.effects.aheal(state["messages"], tools=tools, policies=policies)).command

    def ask(state: MessagesState) -> dict[str, Any]:
        return {"messages": [model.invoke(state["messages"])]}

    from langchain_core.runnables import RunnableLambda

    wrapper = saver.effects.tool_wrapper(policies) if policies else None
    wraps: dict[str, Any] = {}
    if wrapper is not None:
        wraps = {"wrap_tool_call": wrapper.wrap_tool_call, "awrap_tool_call": wrapper.awrap_tool_call}
    builder = StateGraph(MessagesState)
    builder.add_node("heal", RunnableLambda(heal, aheal))
    builder.add_node("model", ask)
    builder.add_node("tools", ToolNode(list(tools), handle_tool_errors=errors, **wraps))
    builder.add_edge(START, "heal")
    builder.add_edge("heal", "model")
    builder.add_conditional_edges("model", tools_condition, ["tools", END])
    builder.add_edge("tools", "heal")
    return builder.compile(checkpointer=checkpointer or saver)


def asking(*names: str, text: str = "a", prefix: str = "call") -> AIMessage:
    """Return a message that calls tools, each with one text."""
    made = [ToolCall(name=name, args={"text": text}, id=f"{prefix}_{name}") for name in names]
    return AIMessage("", tool_calls=made)


def say(text: str) -> dict[str, Any]:
    """Return a user's message as a graph's input."""
    return {"messages": [HumanMessage(text)]}


def answers(messages: Sequence[BaseMessage]) -> dict[str, ToolMessage]:
    """Return the answers by tool_call_id; each call has one."""
    found = [message for message in messages if isinstance(message, ToolMessage)]
    by_id = {message.tool_call_id: message for message in found}
    assert len(by_id) == len(found), found
    return by_id


def problem(messages: Sequence[BaseMessage]) -> str | None:
    """Return how a conversation breaks the providers' rule: each call is answered once, directly after its message."""
    due: list[str | None] = []
    asked: set[str | None] = set()
    for number, message in enumerate(messages):
        if isinstance(message, ToolMessage) and message.tool_call_id in due:
            due.remove(message.tool_call_id)
            continue
        if isinstance(message, ToolMessage) and message.tool_call_id in asked:
            return f"message {number} answers a call that has an answer"
        if due:
            return f"message {number} comes before the answers to {due}"
        if isinstance(message, AIMessage):
            due = [call["id"] for call in (*message.tool_calls, *message.invalid_tool_calls)]
            asked.update(due)
    return f"no answers to {due}" if due else None


# --- workers ---


def shop(ledger: Path, on_slow: Callable[[], None], drive: Drive) -> list[BaseTool]:
    """Return the tools: a payment, a look-up that is not an effect, and an effect that does not end."""

    def enter(line: str) -> str:
        with ledger.open("a") as file:
            file.write(line + "\n")
        return f"receipt for {line}"

    if drive.asynchronous:

        @tool("charge")
        @effect(name="charge", lease=LEASE)
        async def acharge(text: str) -> str:
            """Charge."""
            return enter(f"charge {text}")

        @tool("look_up")
        async def alook_up(text: str) -> str:
            """Look up."""
            return f"looked up {text}"

        @tool("slow")
        @effect(name="slow", lease=LEASE)
        async def aslow(text: str) -> str:
            """Take long."""
            await asyncio.to_thread(on_slow)
            return "late"

        return [acharge, alook_up, aslow]

    @tool("charge")
    @effect(name="charge", lease=LEASE)
    def charge(text: str) -> str:
        """Charge."""
        return enter(f"charge {text}")

    @tool("look_up")
    def look_up(text: str) -> str:
        """Look up."""
        return f"looked up {text}"

    @tool("slow")
    @effect(name="slow", lease=LEASE)
    def slow(text: str) -> str:
        """Take long."""
        on_slow()
        return "late"

    return [charge, look_up, slow]


def run_until_killed(kind: Kind, conninfo: str, ledger: str, asynchronous: bool, pipe: Connection) -> None:
    """Ask for a payment, a look-up and what takes long; say when that runs, and wait."""
    drive = Drive(asynchronous)

    def stand_still() -> None:
        pipe.send("reached")
        time.sleep(600)

    with DurableSaver.from_conn_string(conninfo) as saver:
        tools = shop(Path(ledger), stand_still, drive)
        model = Model(script=[asking("charge", "look_up", "slow")])
        graph = build(kind, saver, model, tools, policies=READING)
        asyncio.run(drive.invoke(graph, say("pay"), thread()))
    sys.exit("it was not killed")

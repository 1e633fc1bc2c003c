"""Agents: a scripted model that calls tools, with its conversation saved."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from langchain_core.language_models import LanguageModelInput
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, HumanMessage, ToolCall, ToolMessage
from langchain_core.runnables import Runnable
from langchain_core.tools import BaseTool, tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.types import Command, interrupt

from langgraph_durable import DurableSaver
from tests.acceptance.driving import Drive, interrupts, thread
from tests.acceptance.graphs import Graph


class ScriptedModel(GenericFakeChatModel):
    """Replies with its script, whatever tools it has."""

    def bind_tools(
        self, tools: Sequence[dict[str, Any] | type | Callable[..., Any] | BaseTool], **kwargs: Any
    ) -> Runnable[LanguageModelInput, AIMessage]:
        return self


@tool
def multiply(a: int, b: int) -> int:
    """Multiply two numbers."""
    return a * b


@tool
def transfer(amount: int) -> str:
    """Transfer money, if a human agrees."""
    return f"transferred {amount}" if interrupt({"amount": amount}) == "yes" else "refused"


def script() -> ScriptedModel:
    def calls(*calls: tuple[str, dict[str, int]]) -> AIMessage:
        return AIMessage("", tool_calls=[ToolCall(name=n, args=a, id=f"call {n} {a}") for n, a in calls])

    return ScriptedModel(
        messages=iter(
            [
                calls(("multiply", {"a": 6, "b": 7}), ("multiply", {"a": 2, "b": 2})),
                AIMessage("42 and 4"),
                calls(("transfer", {"amount": 42})),
                AIMessage("done"),
            ]
        )
    )


def tool_node_agent(saver: DurableSaver) -> Graph:
    model = script()

    def talk(state: MessagesState) -> dict[str, Any]:
        return {"messages": [model.invoke(state["messages"])]}

    builder = StateGraph(MessagesState)
    builder.add_node("model", talk)
    builder.add_node("tools", ToolNode([multiply, transfer]))
    builder.add_edge(START, "model")
    builder.add_conditional_edges("model", tools_condition)
    builder.add_edge("tools", "model")
    return builder.compile(checkpointer=saver)


def langchain_agent(saver: DurableSaver) -> Graph:
    agents = pytest.importorskip("langchain.agents", reason="langchain is not installed")
    made: Graph = agents.create_agent(script(), [multiply, transfer], checkpointer=saver)
    return made


@pytest.mark.parametrize("build", [tool_node_agent, langchain_agent])
@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
async def test_a_conversation_with_tools_and_an_interrupt_is_saved(
    saver: DurableSaver, drive: Drive, build: Callable[[DurableSaver], Graph], durability: str
) -> None:
    graph = build(saver)
    given = {"messages": [HumanMessage("6 * 7 and 2 * 2?")]}
    await drive.invoke(graph, given, thread(), durability=durability)
    given = {"messages": [HumanMessage("transfer it")]}
    await drive.invoke(graph, given, thread(), durability=durability)
    assert [i.value for i in interrupts(await drive.state(graph, thread()))] == [{"amount": 42}]
    result = await drive.invoke(graph, Command(resume="yes"), thread(), durability=durability)
    expected = [
        (HumanMessage, "6 * 7 and 2 * 2?"),
        (AIMessage, ""),
        (ToolMessage, "42"),
        (ToolMessage, "4"),
        (AIMessage, "42 and 4"),
        (HumanMessage, "transfer it"),
        (AIMessage, ""),
        (ToolMessage, "transferred 42"),
        (AIMessage, "done"),
    ]
    assert [(type(m), m.content) for m in result["messages"]] == expected
    stored = (await drive.state(graph, thread())).values["messages"]
    assert stored == result["messages"]
    assert stored[1].tool_calls[0]["args"] == {"a": 6, "b": 7}

"""A graph for LangGraph's Agent Server: its tool pays once, whatever crashes.

    pip install 'langgraph-cli[inmem]' langgraph-durable
    export LANGGRAPH_DURABLE_DSN=postgresql://user:password@localhost/database
    langgraph dev

The server adds the checkpointer that langgraph.json names, so the graph is compiled without one.
"""

from __future__ import annotations

from typing import Any

from langchain_core.messages import AIMessage, ToolCall
from langchain_core.tools import tool
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode

from langgraph_durable import current_effect, effect

PAYMENTS: dict[str, str] = {}
"""Stands in for the payment provider: idempotency key -> receipt."""


@tool
@effect()
async def charge(invoice: str) -> str:
    """Charge the customer's card."""
    PAYMENTS[current_effect().idempotency_key] = f"receipt {len(PAYMENTS) + 1}"
    return f"{invoice}: {PAYMENTS[current_effect().idempotency_key]}"


def model(state: MessagesState) -> dict[str, Any]:
    """Stand in for a chat model, which calls the tool and then reports its answer."""
    last = state["messages"][-1]
    if last.type == "tool":
        return {"messages": [AIMessage(f"Done. {last.content}")]}
    call = ToolCall(name="charge", args={"invoice": str(last.content)}, id=f"call-{len(state['messages'])}")
    return {"messages": [AIMessage("", tool_calls=[call])]}


def has_calls(state: MessagesState) -> str:
    """Choose the next node."""
    return "tools" if getattr(state["messages"][-1], "tool_calls", None) else END


builder = StateGraph(MessagesState)
builder.add_node("model", model)
builder.add_node("tools", ToolNode([charge]))
builder.add_edge(START, "model")
builder.add_conditional_edges("model", has_calls, ["tools", END])
builder.add_edge("tools", "model")
graph = builder.compile()

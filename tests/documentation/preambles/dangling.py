"""A thread whose last step failed: one of its two tools was completed, and the user does not wait for a resume."""

import os
from contextlib import suppress
from typing import Any

from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode

from langgraph_durable import DurableSaver, effect


@tool
@effect
def charge(invoice: str) -> str:
    """Charge the customer's card."""
    return f"receipt for {invoice}"


@tool
@effect
def send_mail(to: str) -> str:
    """Send a mail."""
    raise ConnectionResetError("the answer was lost")


def model(state: MessagesState) -> dict[str, Any]:
    if any(isinstance(message, ToolMessage) for message in state["messages"]):
        return {"messages": [AIMessage("It is paid.")]}
    pay = {"name": "charge", "args": {"invoice": "INV-7"}, "id": "1"}
    mail = {"name": "send_mail", "args": {"to": "ann@example.org"}, "id": "2"}
    return {"messages": [AIMessage("", tool_calls=[pay, mail])]}


saver = DurableSaver.from_conn_string(os.environ["DATABASE_URL"])
saver.setup()
builder = StateGraph(MessagesState)
builder.add_node("model", model)
builder.add_node("tools", ToolNode([charge, send_mail], handle_tool_errors=False))
builder.add_edge(START, "model")
builder.add_edge("model", "tools")
graph: Any = builder.compile(checkpointer=saver)
config: RunnableConfig = {"configurable": {"thread_id": "invoice-7"}}
with suppress(ConnectionResetError):
    graph.invoke({"messages": [("user", "pay invoice 7")]}, config)

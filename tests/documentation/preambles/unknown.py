"""A graph whose payment was sent over a connection that broke before the answer: its outcome is unknown."""

import os
from contextlib import suppress
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, StateGraph
from typing_extensions import TypedDict

from langgraph_durable import DurableSaver, effect


class State(TypedDict, total=False):
    receipt: str


@effect()
def charge(invoice: str) -> str:
    raise ConnectionResetError("the answer was lost")


saver = DurableSaver.from_conn_string(os.environ["DATABASE_URL"])
saver.setup()
builder = StateGraph(State)
builder.add_node("charge", lambda state: {"receipt": charge("INV-7")})
builder.add_edge(START, "charge")
graph: Any = builder.compile(checkpointer=saver)
config: RunnableConfig = {"configurable": {"thread_id": "invoice-7"}}
with suppress(ConnectionResetError):
    graph.invoke({}, config)

"""A graph that waits for a human to say whether an e-mail was sent."""

import os
from contextlib import suppress
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, StateGraph
from typing_extensions import TypedDict

from langgraph_durable import DurableSaver, effect


class Mail(TypedDict, total=False):
    result: str


@effect(on_unknown="ask")
def send_mail(to: str) -> str:
    raise ConnectionResetError("the answer was lost")


saver = DurableSaver.from_conn_string(os.environ["DATABASE_URL"])
saver.setup()
builder = StateGraph(Mail)
builder.add_node("mail", lambda state: {"result": send_mail("ann@example.org")})
builder.add_edge(START, "mail")
graph: Any = builder.compile(checkpointer=saver)
config: RunnableConfig = {"configurable": {"thread_id": "mail-1"}}
with suppress(ConnectionResetError):
    graph.invoke({}, config)
graph.invoke(None, config)

"""A saver, a graph compiled with it, and the thread "ann" with three turns of conversation."""

import os
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, MessagesState, StateGraph

from langgraph_durable import DurableSaver

saver = DurableSaver.from_conn_string(os.environ["DATABASE_URL"])
saver.setup()
builder = StateGraph(MessagesState)
builder.add_node("reply", lambda state: {"messages": [("ai", f"Message {len(state['messages'])}, noted.")]})
builder.add_edge(START, "reply")
graph: Any = builder.compile(checkpointer=saver)
config: RunnableConfig = {"configurable": {"thread_id": "ann"}}
for _ in range(3):
    graph.invoke({"messages": [("user", "Hello")]}, config)

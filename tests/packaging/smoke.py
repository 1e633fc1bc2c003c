"""What an installed package must be able to do: run a graph on the embedded Postgres, or on DATABASE_URL."""

from __future__ import annotations

from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, MessagesState, StateGraph

from langgraph_durable import DurableSaver, embedded


def main() -> None:
    """Run a graph twice on one thread."""
    builder = StateGraph(MessagesState)
    builder.add_node("reply", lambda state: {"messages": [("ai", "noted")]})
    builder.add_edge(START, "reply")
    config: RunnableConfig = {"configurable": {"thread_id": "smoke"}}
    with embedded.database() as conninfo, DurableSaver.from_conn_string(conninfo) as saver:
        saver.setup()
        saver.delete_thread("smoke")
        graph: Any = builder.compile(checkpointer=saver)
        for _ in range(2):
            graph.invoke({"messages": [("user", "hello")]}, config)
        print(len(graph.get_state(config).values["messages"]), "messages")
        saver.delete_thread("smoke")


if __name__ == "__main__":
    main()

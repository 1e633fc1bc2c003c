"""Use connection pools of the application, with any settings; they stay open when the saver is closed."""

from __future__ import annotations

from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, MessagesState, StateGraph
from psycopg import Connection
from psycopg_pool import ConnectionPool

from langgraph_durable import DurableSaver, embedded


def reply(state: MessagesState) -> dict[str, Any]:
    """Stand in for a chat model."""
    return {"messages": [("ai", f"That is message {len(state['messages'])}.")]}


def configure(connection: Connection[Any]) -> None:
    """Set what the application needs on each connection."""
    connection.execute("SET statement_timeout = '10s'")
    connection.commit()


def main() -> None:
    """Run a graph and a query of the application on one pool."""
    config: RunnableConfig = {"configurable": {"thread_id": "own-pool"}}
    with embedded.database() as conninfo, ConnectionPool(conninfo, max_size=4, configure=configure) as pool:
        with DurableSaver(pool) as saver:  # async_pool= too, if the application also calls async methods
            saver.setup()
            saver.delete_thread("own-pool")
            builder = StateGraph(MessagesState)
            builder.add_node("reply", reply)
            builder.add_edge(START, "reply")
            graph: Any = builder.compile(checkpointer=saver)
            print("reply:", graph.invoke({"messages": [("user", "Hello")]}, config)["messages"][-1].content)
        with pool.connection() as connection:  # the saver is closed, the pool is not
            print("statement_timeout:", connection.execute("SHOW statement_timeout").fetchall()[0][0])


if __name__ == "__main__":
    main()

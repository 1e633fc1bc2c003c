"""A conversation that outlives its process: the saver, a graph, a thread."""

from __future__ import annotations

from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, MessagesState, StateGraph

from langgraph_durable import DurableSaver, embedded


def reply(state: MessagesState) -> dict[str, Any]:
    """Stand in for a model."""
    return {"messages": [("ai", f"That is message {len(state['messages'])}.")]}


def build(saver: DurableSaver) -> Any:
    """Return the graph, compiled with a saver."""
    builder = StateGraph(MessagesState)
    builder.add_node("reply", reply)
    builder.add_edge(START, "reply")
    return builder.compile(checkpointer=saver)


def main() -> None:
    """Talk in one process, as it were, and go on in another."""
    ann: RunnableConfig = {"configurable": {"thread_id": "ann"}}
    with embedded.database() as conninfo:  # DATABASE_URL if it is set, else a Postgres started here
        with DurableSaver.from_conn_string(conninfo) as saver:
            saver.setup()  # creates the tables; safe at every start
            saver.delete_thread("ann")  # of an earlier run on the same server
            build(saver).invoke({"messages": [("user", "Hello")]}, ann)

        with DurableSaver.from_conn_string(conninfo) as saver:  # nothing is left of the first one
            graph = build(saver)
            graph.invoke({"messages": [("user", "Still there?")]}, ann)
            for message in graph.get_state(ann).values["messages"]:
                print(f"{message.type}: {message.content}")


if __name__ == "__main__":
    main()

"""Continue a conversation in another process: a saver, a graph, a thread."""

from __future__ import annotations

from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, MessagesState, StateGraph

from langgraph_durable import DurableSaver, embedded


def reply(state: MessagesState) -> dict[str, Any]:
    """Stand in for a chat model."""
    return {"messages": [("ai", f"That is message {len(state['messages'])}.")]}


def build(saver: DurableSaver) -> Any:
    """Return the graph, compiled with a saver."""
    builder = StateGraph(MessagesState)
    builder.add_node("reply", reply)
    builder.add_edge(START, "reply")
    return builder.compile(checkpointer=saver)


def main() -> None:
    """Start a conversation with one saver, and continue it with another, as a new process would."""
    ann: RunnableConfig = {"configurable": {"thread_id": "ann"}}
    with embedded.database() as conninfo:  # DATABASE_URL if it is set, else an embedded Postgres
        with DurableSaver.from_conn_string(conninfo) as saver:
            saver.setup()  # creates or migrates the tables; safe at every start
            saver.delete_thread("ann")  # in case this example ran before
            build(saver).invoke({"messages": [("user", "Hello")]}, ann)

        with DurableSaver.from_conn_string(conninfo) as saver:  # shares no memory with the first one
            graph = build(saver)
            graph.invoke({"messages": [("user", "Still there?")]}, ann)
            for message in graph.get_state(ann).values["messages"]:
                print(f"{message.type}: {message.content}")


if __name__ == "__main__":
    main()

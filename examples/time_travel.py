"""List a thread's history, replay from a checkpoint, and fork it."""

from __future__ import annotations

import operator
from typing import Annotated, Any

from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, StateGraph
from typing_extensions import TypedDict

from langgraph_durable import DurableSaver, embedded

TRIP: RunnableConfig = {"configurable": {"thread_id": "time-travel"}}


class Trip(TypedDict):
    """The state: the stops of a trip."""

    stops: Annotated[list[str], operator.add]


def stop_at(name: str) -> Any:
    """Return a node that adds a stop."""
    return lambda state: {"stops": [f"{name} after {state['stops'][-1]}"]}


def main() -> None:
    """Run a trip, replay its last stop, and fork it before that stop."""
    with embedded.database() as conninfo, DurableSaver.from_conn_string(conninfo) as saver:
        saver.setup()
        saver.delete_thread("time-travel")
        builder = StateGraph(Trip)
        builder.add_sequence([("lyon", stop_at("Lyon")), ("nice", stop_at("Nice"))])
        builder.add_edge(START, "lyon")
        graph = builder.compile(checkpointer=saver)
        graph.invoke({"stops": ["Paris"]}, TRIP)

        history = list(graph.get_state_history(TRIP))  # newest first
        for snapshot in history:
            print(saver.get_ulid(snapshot.config), snapshot.next, snapshot.values.get("stops"))

        before_nice = next(s for s in history if s.next == ("nice",))
        print("replayed:", graph.invoke(None, before_nice.config)["stops"])
        other = graph.update_state(before_nice.config, {"stops": ["Turin"]})
        print("forked:  ", graph.invoke(None, other)["stops"])
        print("original:", graph.get_state(history[0].config).values["stops"])


if __name__ == "__main__":
    main()

"""Commit rows and the effect record in one transaction, for exactly-once rows."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import psycopg
from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, StateGraph
from typing_extensions import TypedDict

from langgraph_durable import DurableSaver, embedded

CONFIG: RunnableConfig = {"configurable": {"thread_id": "transaction"}}


class Booking(TypedDict, total=False):
    """The state: a seat to book for a passenger."""

    seat: str
    passenger: str
    taken: str


def main() -> None:
    """Book a seat, crash before the commit, run again, and request the same seat a second time."""
    crashes = [RuntimeError("simulated crash before the commit")]
    flight = uuid4().hex[:8]  # a new key in each run: effect records outlive the thread

    with embedded.database() as conninfo, DurableSaver.from_conn_string(conninfo) as saver:
        saver.setup()
        saver.delete_thread("transaction", force=True)
        with psycopg.connect(conninfo) as connection:
            connection.execute("DROP TABLE IF EXISTS example_seats")
            connection.execute("CREATE TABLE example_seats (seat text, passenger text)")
        log = saver.effects

        def book(state: Booking) -> dict[str, Any]:
            key = f"flight {flight}, seat {state['seat']}"
            with log.transaction("seat", key=key, args={"passenger": state["passenger"]}) as (cursor, e):
                if not e.replayed:
                    cursor.execute(
                        "INSERT INTO example_seats VALUES (%s, %s)", (state["seat"], state["passenger"])
                    )
                    if crashes:
                        raise crashes.pop()
                    e.complete(f"{state['seat']} is {state['passenger']}'s")
            return {"taken": ("replayed: " if e.replayed else "") + str(e.result)}

        builder = StateGraph(Booking)
        builder.add_node("book", book)
        builder.add_edge(START, "book")
        graph = builder.compile(checkpointer=saver)
        try:
            graph.invoke({"seat": "12A", "passenger": "Ann"}, CONFIG)
        except RuntimeError as exc:
            print("the run failed:", exc)
        print("run again:", graph.invoke(None, CONFIG)["taken"])
        print("requested again:", graph.invoke({"seat": "12A", "passenger": "Ann"}, CONFIG)["taken"])
        with psycopg.connect(conninfo) as connection:
            print("rows:", connection.execute("SELECT seat, passenger FROM example_seats").fetchall())
            connection.execute("DROP TABLE example_seats")


if __name__ == "__main__":
    main()

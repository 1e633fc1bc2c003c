"""Exactly once, where the effect is rows of the same database: they and the log commit together."""

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
    """A seat for somebody."""

    seat: str
    who: str
    taken: str


def main() -> None:
    """Book a seat, crash before the transaction ends, run again, and once more."""
    crashes = [RuntimeError("the process died before the transaction ended")]
    flight = uuid4().hex[:8]  # another one each time: the log does not forget

    with embedded.database() as conninfo, DurableSaver.from_conn_string(conninfo) as saver:
        saver.setup()
        saver.delete_thread("transaction", force=True)
        with psycopg.connect(conninfo) as connection:
            connection.execute("DROP TABLE IF EXISTS example_seats")
            connection.execute("CREATE TABLE example_seats (seat text, who text)")
        log = saver.effects

        def book(state: Booking) -> dict[str, Any]:
            key = f"flight {flight}, seat {state['seat']}"
            with log.transaction("seat", key=key, args={"who": state["who"]}) as (cursor, e):
                if not e.replayed:
                    cursor.execute("INSERT INTO example_seats VALUES (%s, %s)", (state["seat"], state["who"]))
                    if crashes:
                        raise crashes.pop()
                    e.complete(f"{state['seat']} is {state['who']}'s")
            return {"taken": ("found done: " if e.replayed else "") + str(e.result)}

        builder = StateGraph(Booking)
        builder.add_node("book", book)
        builder.add_edge(START, "book")
        graph = builder.compile(checkpointer=saver)
        try:
            graph.invoke({"seat": "12A", "who": "Ann"}, CONFIG)
        except RuntimeError as exc:
            print("the run failed:", exc)
        print("run again:", graph.invoke(None, CONFIG)["taken"])
        print("and anew:", graph.invoke({"seat": "12A", "who": "Ann"}, CONFIG)["taken"])
        with psycopg.connect(conninfo) as connection:
            print("rows:", connection.execute("SELECT seat, who FROM example_seats").fetchall())
            connection.execute("DROP TABLE example_seats")


if __name__ == "__main__":
    main()

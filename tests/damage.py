"""Threads with a row in every table, and what tests do to one of their rows behind the saver's back."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated, Any

import psycopg
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.graph import START, StateGraph
from langgraph.types import interrupt
from psycopg import sql
from typing_extensions import TypedDict

from langgraph_durable import DurableSaver, effect
from tests.effects import SCHEMA, age

TABLES = (
    "checkpoints",
    "ancestors",
    "channel_values",
    "segments",
    "writes",
    "tombstones",
    "prunes",
    "effects",
    "effect_results",
    "effect_events",
)
THREADS = ("damaged", "healthy 1", "healthy 2")


def append(state: list[Any], writes: list[Any]) -> list[Any]:
    return [*state, *(item for write in writes for item in write)]


class State(TypedDict):
    log: Annotated[list[Any], DeltaChannel(append, snapshot_frequency=1000)]
    long: list[str]
    runs: int


def strict_serde() -> JsonPlusSerializer:
    """A serializer that makes plain values only: what damaged bytes ask for is not executed."""
    return JsonPlusSerializer(allowed_msgpack_modules=None)


def build(saver: DurableSaver) -> Any:
    @effect()
    def pay(amount: int) -> tuple[str, int]:
        return "paid", amount

    @effect()
    def lose(amount: int) -> str:
        raise TimeoutError("no answer")

    def step(state: State) -> dict[str, Any]:
        runs = state.get("runs", 0) + 1
        pay(runs)
        if runs == 2:
            with suppress(TimeoutError):
                lose(runs)
        return {
            "log": [f"step {runs}"],
            "runs": runs,
            "long": [f"element {n} of a list" for n in range(4000)],
        }

    def ask(state: State) -> dict[str, Any]:
        return {"log": [interrupt("go on?")] if state["runs"] > 1 else ["done"]}

    builder = StateGraph(State)
    builder.add_node("step", step)
    builder.add_node("ask", ask)
    builder.add_edge(START, "step")
    builder.add_edge("step", "ask")
    return builder.compile(checkpointer=saver)


def fill(saver: DurableSaver, conninfo: str) -> None:
    """Run the graph in every thread until it asks, and leave rows in every table."""
    graph = build(saver)
    for thread_id in (*THREADS, "deleted"):
        for _ in range(2):
            graph.invoke({"log": ["input"]}, config_of(thread_id), durability="sync")
    saver.prune(THREADS, keep_last=3)
    saver.delete_thread("deleted", force=True)
    age(conninfo)
    with psycopg.connect(conninfo) as connection:  # a result that is stored apart, as large ones are
        connection.execute(
            f"INSERT INTO {SCHEMA}.effect_results SELECT effect_id, result_type, result FROM {SCHEMA}.effects "
            "WHERE result IS NOT NULL"
        )
        connection.execute(f"UPDATE {SCHEMA}.effects SET result = NULL")


def config_of(thread_id: str) -> Any:
    return {"configurable": {"thread_id": thread_id}}


def damage(conninfo: str, statement: str, params: Sequence[Any] = ()) -> None:
    """Change rows, one at least."""
    with psycopg.connect(conninfo) as connection:
        assert connection.execute(
            sql.SQL(statement).format(s=sql.Identifier(SCHEMA)), params or None
        ).rowcount


def allow_any_state(conninfo: str) -> None:
    """Drop the check that keeps states to those that are known, as a damaged or later schema may lack it."""
    damage_schema = f"ALTER TABLE {SCHEMA}.effects DROP CONSTRAINT effects_state_check"
    with psycopg.connect(conninfo) as connection:
        connection.execute(damage_schema)

"""Threads as graphs leave them, written by whatever release of LangGraph runs this file.

Run as a script with the conninfo of an empty database and a number, it writes that many threads with the installed
release of langgraph-checkpoint-postgres. It imports nothing of this repository, and nothing that old releases lack.
No graph has an edge from several nodes: LangGraph stores what such an edge waits for in the background, while the graph
changes it, so a thread would be another one each time.
"""

from __future__ import annotations

import enum
import operator
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Annotated, Any

from langchain_core.messages import AIMessage, HumanMessage
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import Command, Send, interrupt
from typing_extensions import TypedDict

try:
    from langgraph.channels.delta import DeltaChannel
except ImportError:  # before LangGraph 1.1
    DeltaChannel = None  # type: ignore[assignment, misc]


class Mood(enum.Enum):
    CALM = "calm"


@dataclass
class Note:
    text: str
    at: datetime


class Trail(TypedDict, total=False):
    trail: Annotated[list[str], operator.add]
    count: int
    small: str | None
    note: Any


class Item(TypedDict):
    item: int


def _step(name: str) -> Callable[[Any], dict[str, Any]]:
    return lambda state: {"trail": [name]}


def _ask(name: str) -> Callable[[Any], dict[str, Any]]:
    return lambda state: {"trail": [f"{name}: {interrupt(name + '?')}"]}


def values(saver: Any) -> Any:
    """Values of many kinds, small ones and large ones."""

    def node(state: Trail) -> dict[str, Any]:
        count = state.get("count") or 0
        note = [
            Note("kept", datetime(2025, 1, 2, tzinfo=timezone.utc)),
            Mood.CALM,
            b"\x00\xff",
            {1, 2},
            (3, 4),
        ]
        return {"trail": ["x" * 300], "count": count + 1, "small": None, "note": note}

    builder: Any = StateGraph(Trail)
    builder.add_node("node", node)
    builder.add_edge(START, "node")
    return builder.compile(checkpointer=saver)


def chat(saver: Any) -> Any:
    builder = StateGraph(MessagesState)
    builder.add_node(
        "reply", lambda state: {"messages": [AIMessage(f"{len(state['messages'])} " + "words " * 50)]}
    )
    builder.add_edge(START, "reply")
    return builder.compile(checkpointer=saver)


def ask(saver: Any) -> Any:
    builder: Any = StateGraph(Trail)
    builder.add_node("before", _step("before"))
    builder.add_node("ask", _ask("ask"))
    builder.add_node("other", _ask("other"))
    builder.add_node("beside", _step("beside"))
    builder.add_node("after", _step("after"))
    builder.add_edge(START, "before")
    for name in ("ask", "other", "beside"):
        builder.add_edge("before", name)
        builder.add_edge(name, "after")
    return builder.compile(checkpointer=saver)


def fan(saver: Any) -> Any:
    """Tasks that were sent and have not run: before each, the run stops."""

    def spread(state: Trail) -> list[Send]:
        return [Send("work", {"item": item}) for item in range(3)]

    builder: Any = StateGraph(Trail)
    builder.add_node("first", _step("first"))
    builder.add_node("work", lambda state: {"trail": [f"work {state['item']}"]})
    builder.add_node("join", _step("join"))
    builder.add_edge(START, "first")
    builder.add_conditional_edges("first", spread, ["work"])
    builder.add_edge("work", "join")
    builder.add_edge("join", END)
    return builder.compile(checkpointer=saver, interrupt_before=["work", "join"])


def subgraph(saver: Any) -> Any:
    inner: Any = StateGraph(Trail)
    inner.add_node("inner", _step("inner"))
    inner.add_node("inner_ask", _ask("inner"))
    inner.add_edge(START, "inner")
    inner.add_edge("inner", "inner_ask")
    builder: Any = StateGraph(Trail)
    builder.add_node("nested", inner.compile())
    builder.add_node("last", _step("last"))
    builder.add_edge(START, "nested")
    builder.add_edge("nested", "last")
    return builder.compile(checkpointer=saver)


def _extend(state: list[str], writes: Sequence[list[str]]) -> list[str]:
    return [*state, *(item for write in writes for item in write)]


def _delta(saver: Any, frequency: int) -> Any:
    channel: Any = DeltaChannel(_extend, snapshot_frequency=frequency)
    builder: Any = StateGraph(TypedDict("Delta", {"trail": Annotated[list[str], channel]}))  # type: ignore[operator]
    for name in ("before", "left", "right"):
        builder.add_node(name, _step(name))
    builder.add_node("ask", _ask("ask"))
    builder.add_edge(START, "before")
    builder.add_edge("before", "left")
    builder.add_edge("before", "right")
    builder.add_edge("left", "ask")
    builder.add_edge("right", "ask")
    return builder.compile(checkpointer=saver)


def sparse(saver: Any) -> Any:
    return _delta(saver, 1000)


def frequent(saver: Any) -> Any:
    return _delta(saver, 2)


BUILDERS: dict[str, Callable[[Any], Any]] = {
    "values": values,
    "chat": chat,
    "ask": ask,
    "fan": fan,
    "subgraph": subgraph,
}
if DeltaChannel is not None:
    BUILDERS |= {"sparse": sparse, "frequent": frequent}


def config(thread_id: str) -> Any:
    return {"configurable": {"thread_id": thread_id}}


def first_input(name: str) -> dict[str, Any]:
    if name == "chat":
        return {"messages": [HumanMessage("hello")]}
    return {"trail": ["input"]}


def write_thread(saver: Any, thread_id: str) -> None:
    """Write a thread whose name begins with its graph's, and fork it if the number in its name is odd."""
    name, _, number = thread_id.partition(" ")
    graph = BUILDERS[name](saver)
    graph.invoke(first_input(name), config(thread_id))
    if name in ("values", "chat", "fan"):
        graph.invoke(first_input(name), config(thread_id))
    if name in ("sparse", "frequent"):
        graph.invoke(Command(resume="yes"), config(thread_id))
        graph.invoke(first_input(name), config(thread_id))
    if int(number) % 2:
        earlier = list(graph.get_state_history(config(thread_id)))[1]
        graph.update_state(earlier.config, first_input(name))
        if name == "chat":
            graph.invoke(None, config(thread_id))


def thread_names(count: int, builders: Sequence[str] = ()) -> list[str]:
    names = list(builders or BUILDERS)
    return [f"{names[i % len(names)]} {i // len(names)}" for i in range(count)]


def go_on(saver: Any, thread_id: str) -> list[Any]:
    """Go on with a thread; return what the next runs say, and its history."""
    name = thread_id.partition(" ")[0]
    graph = BUILDERS[name](saver)
    said: list[Any] = []
    for _ in range(4):
        waiting = [i for task in graph.get_state(config(thread_id)).tasks for i in task.interrupts]
        answer = {getattr(i, "id", None) or i.interrupt_id: f"yes, {i.value}" for i in waiting}
        said.append(graph.invoke(Command(resume=answer) if waiting else None, config(thread_id)))
    said.append(graph.invoke(first_input(name), config(thread_id)))
    history = list(graph.get_state_history(config(thread_id)))
    return [_without_ids(values) for values in said + [state.values for state in history]] + [
        state.next for state in history
    ]


def _without_ids(values: dict[str, Any] | None) -> dict[str, Any]:
    """Return a state in which messages and interrupts have no ids: those are random, or depend on random ones."""
    values = dict(values or {})
    if "__interrupt__" in values:
        values["__interrupt__"] = sorted(found.value for found in values["__interrupt__"])
    if "messages" in values:
        values["messages"] = [(type(message), message.content) for message in values["messages"]]
    return values


def main(conninfo: str, count: str) -> None:
    from langgraph.checkpoint.postgres import PostgresSaver

    with PostgresSaver.from_conn_string(conninfo) as saver:
        saver.setup()
        for thread_id in thread_names(int(count)):
            write_thread(saver, thread_id)


if __name__ == "__main__":
    main(*sys.argv[1:])

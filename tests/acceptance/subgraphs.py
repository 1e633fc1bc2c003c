"""Graphs in graphs."""

from __future__ import annotations

import operator
from typing import Annotated, Any

from langgraph.graph import START, StateGraph
from langgraph.types import Checkpointer, interrupt
from typing_extensions import TypedDict

from tests.acceptance.graphs import Graph, Node, Record, Saver, Steps, asking, step


def nested(saver: Saver, record: Record, *, checkpointer: Checkpointer = None, asks: bool = True) -> Graph:
    """A graph in a graph in a graph; the innermost asks."""
    inner = StateGraph(Steps)
    inner.add_node("inner_first", step("inner_first", record))
    inner.add_node("inner_ask", asking("inner_ask", record) if asks else step("inner_ask", record))
    inner.add_edge(START, "inner_first")
    inner.add_edge("inner_first", "inner_ask")
    middle = StateGraph(Steps)
    middle.add_node("middle_first", step("middle_first", record))
    middle.add_node("inner", _only_new(inner.compile(checkpointer=checkpointer)))
    middle.add_edge(START, "middle_first")
    middle.add_edge("middle_first", "inner")
    outer = StateGraph(Steps)
    outer.add_node("outer_first", step("outer_first", record))
    outer.add_node("middle", _only_new(middle.compile(checkpointer=checkpointer)))
    outer.add_node("outer_last", step("outer_last", record))
    outer.add_edge(START, "outer_first")
    outer.add_edge("outer_first", "middle")
    outer.add_edge("middle", "outer_last")
    return outer.compile(checkpointer=saver)


def _only_new(subgraph: Graph) -> Node:
    """Call a subgraph with an empty trail, so that the caller's reducer adds only what it did."""

    def node(state: Any) -> dict[str, Any]:
        return {"trail": subgraph.invoke({"trail": []})["trail"]}

    return node


class Outer(TypedDict):
    outer: Annotated[list[str], operator.add]
    shared: Annotated[list[str], operator.add]


class Inner(TypedDict):
    shared: Annotated[list[str], operator.add]
    private: Annotated[list[str], operator.add]


def subgraph_node(
    saver: Saver, record: Record, *, checkpointer: Checkpointer = None, asks: bool = True
) -> Graph:
    """A subgraph added as a node, which shares a channel with its parent."""

    def remember(state: Inner) -> dict[str, Any]:
        record("remember")
        return {"private": [f"private {len(state['private'])}"]}

    def answer(state: Inner) -> dict[str, Any]:
        record("answer")
        said = interrupt("inner?") if asks else "nothing"
        return {"private": [f"said {said}"]}

    def outer_last(state: Outer) -> dict[str, Any]:
        record("outer_last")
        return {"outer": ["last"]}

    inner = StateGraph(Inner)
    inner.add_sequence([("remember", remember), ("answer", answer)])
    inner.add_edge(START, "remember")
    outer = StateGraph(Outer)
    outer.add_node("inner", inner.compile(checkpointer=checkpointer))
    outer.add_node("outer_last", outer_last)
    outer.add_edge(START, "inner")
    outer.add_edge("inner", "outer_last")
    return outer.compile(checkpointer=saver)

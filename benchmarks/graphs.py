"""A load of 200 graphs. Imports no saver, so that benchmarks.process can load only one."""

from __future__ import annotations

import asyncio
import operator
from typing import Annotated, Any, TypedDict
from uuid import uuid4

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import START, StateGraph

AnySaver = BaseCheckpointSaver[Any]
POOL_SIZE = 16
GRAPHS, STEPS = 200, 5


class State(TypedDict):
    trail: Annotated[list[str], operator.add]


def five_steps(saver: AnySaver) -> Any:
    """Return a graph of five nodes in a row, each of which adds to the state."""
    builder = StateGraph(State)
    names = [f"step_{number}" for number in range(STEPS)]
    for before, name in zip([START, *names], names, strict=False):
        builder.add_node(name, lambda _, name=name: {"trail": [name * 20]})
        builder.add_edge(before, name)
    return builder.compile(checkpointer=saver)


def new_thread() -> RunnableConfig:
    return {"configurable": {"thread_id": str(uuid4())}}


async def run_graphs(graph: Any, kilobytes: int = 0) -> None:
    """Run a graph of `five_steps` 200 times at once, each from a different state of `kilobytes`."""

    async def run() -> None:
        texts = [uuid4().hex * 32 for _ in range(kilobytes)]
        end = await graph.ainvoke({"trail": texts}, new_thread(), durability="sync")
        assert len(end["trail"]) == kilobytes + STEPS

    await asyncio.gather(*(run() for _ in range(GRAPHS)))

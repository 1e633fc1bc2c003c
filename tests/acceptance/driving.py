"""A graph's methods, sync or async behind one async name, so that each test is written once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.types import Interrupt, StateSnapshot, StateUpdate

from tests.acceptance.graphs import Graph


@dataclass(frozen=True)
class Drive:
    """Calls the async methods of a graph, or, inside the running event loop, its sync ones."""

    asynchronous: bool

    async def invoke(self, graph: Graph, input_: Any, config: RunnableConfig, **options: Any) -> Any:
        if self.asynchronous:
            return await graph.ainvoke(input_, config, **options)
        return graph.invoke(input_, config, **options)

    async def stream(self, graph: Graph, input_: Any, config: RunnableConfig, **options: Any) -> list[Any]:
        if self.asynchronous:
            return [chunk async for chunk in graph.astream(input_, config, **options)]
        return list(graph.stream(input_, config, **options))

    async def batch(self, graph: Graph, inputs: list[Any], configs: list[RunnableConfig]) -> list[Any]:
        if self.asynchronous:
            return await graph.abatch(inputs, configs)
        return graph.batch(inputs, configs)

    async def state(self, graph: Graph, config: RunnableConfig, *, subgraphs: bool = False) -> StateSnapshot:
        if self.asynchronous:
            return await graph.aget_state(config, subgraphs=subgraphs)
        return graph.get_state(config, subgraphs=subgraphs)

    async def history(self, graph: Graph, config: RunnableConfig, **options: Any) -> list[StateSnapshot]:
        if self.asynchronous:
            return [snapshot async for snapshot in graph.aget_state_history(config, **options)]
        return list(graph.get_state_history(config, **options))

    async def update(
        self,
        graph: Graph,
        config: RunnableConfig,
        values: dict[str, Any] | Any | None,
        as_node: str | None = None,
    ) -> RunnableConfig:
        if self.asynchronous:
            return await graph.aupdate_state(config, values, as_node)
        return graph.update_state(config, values, as_node)

    async def bulk_update(
        self, graph: Graph, config: RunnableConfig, supersteps: Sequence[Sequence[StateUpdate]]
    ) -> RunnableConfig:
        if self.asynchronous:
            return await graph.abulk_update_state(config, supersteps)
        return graph.bulk_update_state(config, supersteps)


def thread(thread_id: str = "thread", **configurable: Any) -> RunnableConfig:
    return {"configurable": {"thread_id": thread_id, **configurable}}


def checkpoint_id(snapshot: StateSnapshot) -> str:
    return str(snapshot.config["configurable"]["checkpoint_id"])


def interrupts(snapshot: StateSnapshot) -> list[Interrupt]:
    return [i for pending in snapshot.tasks for i in pending.interrupts]


def answers(snapshot: StateSnapshot, **by_question: Any) -> dict[str, Any]:
    """Map the ids of pending interrupts to answers, given by what was asked."""
    return {
        i.id: by_question[str(i.value).partition("?")[0]]
        for i in interrupts(snapshot)
        if str(i.value).partition("?")[0] in by_question
    }

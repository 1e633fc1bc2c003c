"""Run many threads concurrently in async code, and stream one of them."""

from __future__ import annotations

import asyncio
import operator
from typing import Annotated, Any

from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, StateGraph
from typing_extensions import TypedDict

from langgraph_durable import DurableSaver, embedded


class Steps(TypedDict):
    """The state: the steps taken."""

    done: Annotated[list[str], operator.add]


async def cook(state: Steps) -> dict[str, Any]:
    """Stand in for slow work."""
    await asyncio.sleep(0.05)
    return {"done": ["cooked"]}


async def serve(state: Steps) -> dict[str, Any]:
    """Finish the order."""
    return {"done": ["served"]}


async def order(graph: Any, number: int) -> str:
    """Run the graph for one order, and return a summary."""
    config: RunnableConfig = {"configurable": {"thread_id": f"order-{number}"}}
    async for update in graph.astream({"done": []}, config, stream_mode="updates"):
        if number == 0:
            print("streamed:", update)
    state = await graph.aget_state(config)
    return f"{config['configurable']['thread_id']}: {', '.join(state.values['done'])}"


async def run(conninfo: str) -> None:
    """Run twenty orders concurrently. Each event loop has a separate pool."""
    async with DurableSaver.from_conn_string(conninfo, max_size=8) as saver:
        await saver.asetup()
        for number in range(20):
            await saver.adelete_thread(f"order-{number}")
        builder = StateGraph(Steps)
        builder.add_sequence([("cook", cook), ("serve", serve)])
        builder.add_edge(START, "cook")
        graph = builder.compile(checkpointer=saver)
        summaries = await asyncio.gather(*(order(graph, number) for number in range(20)))
        print(f"{len(summaries)} orders ran concurrently; the last: {summaries[-1]}")


if __name__ == "__main__":
    with embedded.database() as conninfo:
        asyncio.run(run(conninfo))

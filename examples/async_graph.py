"""The same saver in async code: many threads at once, streamed."""

from __future__ import annotations

import asyncio
import operator
from typing import Annotated, Any

from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, StateGraph
from typing_extensions import TypedDict

from langgraph_durable import DurableSaver, embedded


class Steps(TypedDict):
    """What was done."""

    done: Annotated[list[str], operator.add]


async def cook(state: Steps) -> dict[str, Any]:
    """Take a while."""
    await asyncio.sleep(0.05)
    return {"done": ["cooked"]}


async def serve(state: Steps) -> dict[str, Any]:
    """Do the rest."""
    return {"done": ["served"]}


async def order(graph: Any, number: int) -> str:
    """Run the graph for one order, and say what it did."""
    config: RunnableConfig = {"configurable": {"thread_id": f"order-{number}"}}
    async for update in graph.astream({"done": []}, config, stream_mode="updates"):
        if number == 0:
            print("streamed:", update)
    state = await graph.aget_state(config)
    return f"{config['configurable']['thread_id']}: {', '.join(state.values['done'])}"


async def run(conninfo: str) -> None:
    """Run twenty orders at once, over a pool of the event loop's own."""
    async with DurableSaver.from_conn_string(conninfo, max_size=8) as saver:
        await saver.asetup()
        for number in range(20):
            await saver.adelete_thread(f"order-{number}")
        builder = StateGraph(Steps)
        builder.add_sequence([("cook", cook), ("serve", serve)])
        builder.add_edge(START, "cook")
        graph = builder.compile(checkpointer=saver)
        told = await asyncio.gather(*(order(graph, number) for number in range(20)))
        print(f"{len(told)} orders at once; the last: {told[-1]}")


if __name__ == "__main__":
    with embedded.database() as conninfo:
        asyncio.run(run(conninfo))

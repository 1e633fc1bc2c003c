"""Compare delta channels and pruning with the peer, and measure copying, which the peer lacks."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any
from uuid import uuid4

from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.graph import START, MessagesState, StateGraph

from benchmarks.graphs import AnySaver
from benchmarks.harness import Figure, both_savers, compare

TURNS = 60
COPIED = 1000


def config_of(thread_id: str, checkpoint_id: str | None = None) -> RunnableConfig:
    configurable = {"thread_id": thread_id, "checkpoint_ns": ""}
    return {"configurable": configurable | ({"checkpoint_id": checkpoint_id} if checkpoint_id else {})}


async def grow_delta_channel(saver: AnySaver, updates: int) -> RunnableConfig:
    """Put a thread with a delta channel of `updates` writes, and return the config of its latest checkpoint."""
    config = config_of(str(uuid4()))
    version: Any = None
    for step in range(updates + 1):
        checkpoint = empty_checkpoint()
        checkpoint["v"] = 4
        version = saver.get_next_version(version, None)
        checkpoint["channel_versions"] = {"messages": version}
        metadata: Any = {
            "source": "loop",
            "step": step,
            "counters_since_delta_snapshot": {"messages": (step, step)},
        }
        config = await saver.aput(config, checkpoint, metadata, checkpoint["channel_versions"])
        message = HumanMessage(f"message {step}: " + "so it goes, " * 8, id=f"m{step}")
        await saver.aput_writes(config, [("messages", [message])], str(uuid4()), "~__pregel_pull, node")
    return config


async def rebuild(saver: AnySaver, config: RunnableConfig, updates: int) -> None:
    histories = await saver.aget_delta_channel_history(config=config, channels=["messages"])
    history = histories["messages"]
    assert "seed" not in history
    assert [write[2][0].id for write in history["writes"]] == [f"m{step}" for step in range(updates)]


async def time_rebuild(saver: AnySaver, config: RunnableConfig, updates: int) -> float:
    return await timed(lambda: rebuild(saver, config, updates))


async def converse(saver: AnySaver, thread_id: str) -> None:
    def reply(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage("so it goes, and so on. " * 40, id=str(len(state["messages"])))]}

    builder = StateGraph(MessagesState)
    builder.add_node("reply", reply)
    builder.add_edge(START, "reply")
    graph = builder.compile(checkpointer=saver)
    for turn in range(TURNS):
        question = HumanMessage("and then? " * 40, id=f"question-{turn}")
        await graph.ainvoke({"messages": [question]}, config_of(thread_id))


async def timed(call: Callable[[], Awaitable[Any]]) -> float:
    began = time.perf_counter()
    await call()
    return (time.perf_counter() - began) * 1000


async def run(server: str) -> list[Figure]:
    """Measure, and print a line for each figure."""
    figures = []
    async with both_savers(server) as (ours, peer):
        for updates, target, rounds in ((300, 0.5, 15), (5000, 0.4, 5)):
            mine, its = await grow_delta_channel(ours, updates), await grow_delta_channel(peer, updates)
            work = f"delta channel of {updates} updates, rebuilt"
            figures.append(
                await compare(
                    work,
                    partial(time_rebuild, ours, mine, updates),
                    partial(time_rebuild, peer, its, updates),
                    target=target,
                    rounds=rounds,
                )
            )

    # A new database, because the rows of the delta channels would slow the prunes.
    async with both_savers(server) as (ours, peer):

        async def prune(saver: AnySaver) -> float:
            thread_id = str(uuid4())
            await converse(saver, thread_id)
            duration = await timed(lambda: saver.aprune([thread_id]))
            found = await saver.aget_tuple(config_of(thread_id))
            assert found is not None
            assert len(found.checkpoint["channel_values"]["messages"]) == 2 * TURNS
            assert len([t async for t in saver.alist(config_of(thread_id))]) == 1
            return duration

        figures.append(
            await compare(
                f"prune keep_latest, {TURNS} turns",
                lambda: prune(ours),
                lambda: prune(peer),
                target=0.5,
                rounds=5,
            )
        )
        await grow_thread(ours, "long")
        copies = sorted([await timed(lambda: ours.acopy_thread("long", str(uuid4()))) for _ in range(5)])
        print(
            f"{f'copy of a thread of {COPIED} checkpoints':<52} {copies[2]:>9.3f} {'-':>9} ms   target <= 200 ms"
        )
    return figures


async def grow_thread(saver: AnySaver, thread_id: str) -> None:
    config = config_of(thread_id)
    version: Any = None
    for step in range(COPIED):
        checkpoint = empty_checkpoint()
        checkpoint["v"] = 4
        version = saver.get_next_version(version, None)
        checkpoint["channel_values"], checkpoint["channel_versions"] = (
            {"n": {"text": "x" * 1000}},
            {"n": version},
        )
        config = await saver.aput(
            config, checkpoint, {"source": "loop", "step": step}, checkpoint["channel_versions"]
        )
        await saver.aput_writes(config, [("n", {"text": "x" * 1000})], str(uuid4()))

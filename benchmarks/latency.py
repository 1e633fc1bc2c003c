"""Measure the latency of each call, in one task on one thread."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import Checkpoint, empty_checkpoint

from benchmarks.graphs import AnySaver
from benchmarks.harness import Figure, both_savers, compare, mean_ms

CALLS = 150
HISTORY = 240


def next_checkpoint(saver: AnySaver, previous: Checkpoint | None) -> tuple[Checkpoint, dict[str, Any]]:
    """Return a checkpoint of 2 KB, in which two of five channels changed, and the new versions."""
    checkpoint = empty_checkpoint()
    checkpoint["v"] = 4
    version = saver.get_next_version(previous and max(previous["channel_versions"].values()), None)
    values: dict[str, Any] = (
        previous["channel_values"] if previous else {"kept": ["k" * 200], "flag": True, "name": "thread"}
    )
    checkpoint["channel_values"] = values | {"large": {"text": uuid4().hex * 40}, "branch:to:model": None}
    changed = {"large": version, "branch:to:model": version}
    kept: dict[str, Any] = dict(previous["channel_versions"]) if previous else dict.fromkeys(values, version)
    checkpoint["channel_versions"] = kept | changed
    checkpoint["versions_seen"] = {"model": dict(checkpoint["channel_versions"]), "__input__": {}}
    return checkpoint, changed if previous else checkpoint["channel_versions"]


class Thread:
    """A thread that grows by one checkpoint, or by one task's writes, with each call."""

    def __init__(self, saver: AnySaver) -> None:
        self.saver = saver
        self.config: RunnableConfig = {"configurable": {"thread_id": str(uuid4()), "checkpoint_ns": ""}}
        self.previous: Checkpoint | None = None
        self.step = -1

    async def put(self) -> None:
        self.previous, changed = next_checkpoint(self.saver, self.previous)
        self.step += 1
        metadata: Any = {"source": "loop", "step": self.step, "parents": {}}
        self.config = await self.saver.aput(self.config, self.previous, metadata, changed)

    async def put_writes(self) -> None:
        writes = [("large", {"text": "x" * 1000}), ("branch:to:model", None)]
        await self.saver.aput_writes(self.config, writes, str(uuid4()), "~__pregel_pull, model")

    async def put_both(self) -> None:
        await self.put_writes()
        await self.put()

    async def get(self) -> None:
        latest = {k: v for k, v in self.config["configurable"].items() if k != "checkpoint_id"}
        found = await self.saver.aget_tuple({"configurable": latest})
        assert found is not None
        assert self.previous is not None
        assert found.checkpoint["channel_values"] == self.previous["channel_values"]


async def grow_conversation(saver: AnySaver, config: RunnableConfig) -> None:
    """Put a history of checkpoints whose message list grows by one message each."""
    messages: list[Any] = []
    previous = None
    for step in range(HISTORY):
        kind = HumanMessage if step % 2 == 0 else AIMessage
        messages = [*messages, kind(f"message {step}: " + "so it goes, and so on. " * 8, id=f"m{step}")]
        checkpoint = empty_checkpoint()
        checkpoint["v"] = 4
        version = saver.get_next_version(previous, None)
        checkpoint["channel_values"], checkpoint["channel_versions"] = (
            {"messages": messages},
            {"messages": version},
        )
        metadata: Any = {"source": "loop", "step": step, "parents": {}}
        config = await saver.aput(config, checkpoint, metadata, checkpoint["channel_versions"])
        previous = version


async def run(server: str) -> list[Figure]:
    """Measure, and print a line for each figure."""
    figures = []
    async with both_savers(server) as savers:
        ours, peers = (Thread(saver) for saver in savers)

        async def pair(work: str, name: str, target: float | None = None, times: int = CALLS) -> None:
            def measure(thread: Thread) -> Any:
                return lambda: mean_ms(getattr(thread, name), times)

            figures.append(await compare(work, measure(ours), measure(peers), target=target))

        await pair("put, 2 KB", "put")
        await pair("put_writes, 2 writes, 1 KB", "put_writes")
        await pair("put + put_writes", "put_both", 0.75)
        ours.config, peers.config = start_thread(ours), start_thread(peers)
        for thread in (ours, peers):
            await thread.put()
            await thread.put_writes()
        await pair("get_tuple, latest", "get", 0.6)

        config: RunnableConfig = {"configurable": {"thread_id": "history", "checkpoint_ns": ""}}
        for saver in savers:
            await grow_conversation(saver, config)

        async def history(work: str, target: float, count: int, **options: Any) -> None:
            def measure(saver: AnySaver) -> Any:
                async def walk() -> None:
                    found = [t async for t in saver.alist(config, **options)]
                    assert len(found) == count
                    assert (
                        len(found[-1].checkpoint["channel_values"]["messages"])
                        == found[-1].metadata["step"] + 1
                    )

                return lambda: mean_ms(walk, 3)

            figures.append(await compare(work, measure(savers[0]), measure(savers[1]), target=target))

        await history(f"history of {HISTORY} checkpoints", 0.5, HISTORY)
        await history("the newest 20 of them", 0.4, 20, limit=20)
        await history("one of them, by metadata filter", 0.5, 1, filter={"step": 7})
    return figures


def start_thread(thread: Thread) -> RunnableConfig:
    """Return the config of a new thread, so that reads do not depend on a long history."""
    thread.previous = None
    return {"configurable": {"thread_id": str(uuid4()), "checkpoint_ns": ""}}

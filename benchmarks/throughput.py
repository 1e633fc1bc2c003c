"""Measure how many puts and super-steps a second one process reaches, with many tasks and threads."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres import PostgresSaver
from psycopg.rows import dict_row
from psycopg_pool import ConnectionPool

from benchmarks.graphs import GRAPHS, POOL_SIZE, STEPS, AnySaver, five_steps, new_thread, run_graphs
from benchmarks.harness import Figure, both_savers, compare, conninfo_of, gc_tuned
from benchmarks.latency import Thread

TASKS, PUTS = 64, 40
THREADS, RUNS = 32, 2
ROUNDS = 5


async def put_in_tasks(saver: AnySaver) -> float:
    """Return the puts a second of 64 tasks, each on a separate thread."""
    threads = [Thread(saver) for _ in range(TASKS)]

    async def put_many(thread: Thread) -> None:
        for _ in range(PUTS):
            await thread.put()

    began = time.perf_counter()
    await asyncio.gather(*map(put_many, threads))
    rate = TASKS * PUTS / (time.perf_counter() - began)
    await asyncio.gather(*(thread.get() for thread in threads))
    return rate


async def rate_of_graphs(saver: AnySaver) -> float:
    """Return the super-steps a second of 200 concurrent graphs."""
    graph = five_steps(saver)
    began = time.perf_counter()
    await run_graphs(graph)
    return GRAPHS * STEPS / (time.perf_counter() - began)


def run_graphs_in_threads(saver: AnySaver) -> float:
    """Return the super-steps a second of sync graphs in 32 operating system threads."""
    graph = five_steps(saver)

    def run(_: int) -> None:
        for _ in range(RUNS):
            assert len(graph.invoke({"trail": []}, new_thread(), durability="sync")["trail"]) == STEPS

    with ThreadPoolExecutor(THREADS) as threads:
        began = time.perf_counter()
        list(threads.map(run, range(THREADS)))
        return THREADS * RUNS * STEPS / (time.perf_counter() - began)


@asynccontextmanager
async def without_lock(peer: Any) -> AsyncIterator[AnySaver]:
    """Yield the peer with a semaphore instead of its lock, a workaround that its users publish."""
    lock, peer.lock = peer.lock, asyncio.Semaphore(POOL_SIZE)
    try:
        yield peer
    finally:
        peer.lock = lock


async def run(server: str) -> list[Figure]:
    """Measure, and print a line for each figure."""
    figures = []
    async with both_savers(server) as (ours, peer):

        async def rate(
            work: str,
            measure: Callable[[Any], Awaitable[float]],
            other: Any,
            target: float,
        ) -> None:
            figures.append(
                await compare(
                    work,
                    lambda: measure(ours),
                    lambda: measure(other),
                    unit="/s",
                    target=target,
                    rounds=ROUNDS,
                    more_is_better=True,
                )
            )

        async def in_threads(saver: AnySaver) -> float:
            return await asyncio.to_thread(run_graphs_in_threads, saver)

        await rate("64 tasks that put 2 KB: puts", put_in_tasks, peer, 5)
        async with without_lock(peer) as unlocked:
            await rate("the same, the peer without its lock", put_in_tasks, unlocked, 3)
        await rate("200 graphs at once: super-steps", rate_of_graphs, peer, 2.5)
        await rate("the same, vs InMemorySaver", rate_of_graphs, InMemorySaver(), 0.5)
        with gc_tuned():
            await rate("200 graphs, garbage collector tuned: super-steps", rate_of_graphs, peer, 2.5)
            await rate("the same, vs InMemorySaver", rate_of_graphs, InMemorySaver(), 0.5)
        with ConnectionPool[Any](
            conninfo_of(peer),
            min_size=POOL_SIZE,
            max_size=POOL_SIZE,
            kwargs={"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row},
        ) as pool:
            await rate("32 threads of sync graphs: super-steps", in_threads, PostgresSaver(pool), 3)
    return figures

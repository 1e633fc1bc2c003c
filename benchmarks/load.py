"""Under the load of 200 graphs at once: what the slowest calls take, and how much memory the process."""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from contextlib import nullcontext
from functools import partial
from itertools import product

from benchmarks.graphs import GRAPHS, AnySaver, a_thread, five_steps
from benchmarks.harness import Figure, both_savers, collector_tuned, compare, conninfo_of, show
from benchmarks.latency import Thread

PROBES = 20
"""Calls that are timed at once, each on a thread of its own."""
SECONDS = 10.0
ROUNDS = 5
PROCESSES = 3
MOST_MORE = 80
"""MB that ours may take more than the peer."""


async def p99_under_load(saver: AnySaver, call: str) -> float:
    """Return, in milliseconds, what one call in a hundred takes longer than while 200 graphs run without end."""
    graph = five_steps(saver)
    end = time.perf_counter() + SECONDS

    async def run_graph() -> None:
        while time.perf_counter() < end:
            await graph.ainvoke({"trail": []}, a_thread(), durability="sync")

    took: list[float] = []

    async def probe() -> None:
        thread = Thread(saver)
        await thread.put()
        while time.perf_counter() < end:
            began = time.perf_counter()
            await getattr(thread, call)()
            took.append((time.perf_counter() - began) * 1000)

    await asyncio.gather(*(run_graph() for _ in range(GRAPHS)), *(probe() for _ in range(PROBES)))
    return statistics.quantiles(took, n=100, method="inclusive")[98]


async def peak_memory(whose: str, conninfo: str, kilobytes: int) -> float:
    """Return the most memory, in MB, that a process of its own takes under the load; see process.py."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.process", whose, conninfo, str(kilobytes)),
        stdout=asyncio.subprocess.PIPE,
    )
    said, _ = await process.communicate()
    assert process.returncode == 0
    return float(said)


async def run(server: str) -> list[Figure]:
    """Measure, and print a line a figure."""
    figures = []
    calls = (("put + put_writes", "put_both"), ("get_tuple, latest", "get"))
    for tuned, (work, call) in product((False, True), calls):
        async with both_savers(server) as (ours, peer):
            with collector_tuned() if tuned else nullcontext():
                figure = await compare(
                    f"{work}, p99 under 200 graphs" + (", tuned" if tuned else ""),
                    partial(p99_under_load, ours, call),
                    partial(p99_under_load, peer, call),
                    target=0.4,
                    rounds=ROUNDS,
                )
            figures.append(figure)
    for work, kilobytes in (("small states", 0), ("states of 100 KB", 100)):
        async with both_savers(server) as (_, peer):
            conninfo = conninfo_of(peer)
            pairs = [
                (
                    await peak_memory("ours", conninfo, kilobytes),
                    await peak_memory("peer", conninfo, kilobytes),
                )
                for _ in range(PROCESSES)
            ]
        mine, its = (statistics.median(side) for side in zip(*pairs, strict=True))
        figures.append(
            show(Figure(f"200 graphs, {work}: peak memory", "MB", mine, its, (its + MOST_MORE) / its))
        )
    return figures

"""Measure tail latency and peak memory while 200 graphs run at once."""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from contextlib import nullcontext
from functools import partial
from itertools import product

from benchmarks.graphs import GRAPHS, AnySaver, five_steps, new_thread
from benchmarks.harness import Figure, both_savers, compare, conninfo_of, gc_tuned, show
from benchmarks.latency import Thread

PROBES = 20
"""Concurrent tasks that time calls, each on a separate thread."""
SECONDS = 10.0
ROUNDS = 5
PROCESSES = 3
EXTRA_MEMORY = 80
"""MB that this saver may use beyond the peer's peak."""


async def p99_under_load(saver: AnySaver, call: str) -> float:
    """Return the 99th percentile of a call's duration, in milliseconds, while 200 graphs run."""
    graph = five_steps(saver)
    end = time.perf_counter() + SECONDS

    async def run_graph() -> None:
        while time.perf_counter() < end:
            await graph.ainvoke({"trail": []}, new_thread(), durability="sync")

    durations: list[float] = []

    async def probe() -> None:
        thread = Thread(saver)
        await thread.put()
        while time.perf_counter() < end:
            began = time.perf_counter()
            await getattr(thread, call)()
            durations.append((time.perf_counter() - began) * 1000)

    await asyncio.gather(*(run_graph() for _ in range(GRAPHS)), *(probe() for _ in range(PROBES)))
    return statistics.quantiles(durations, n=100, method="inclusive")[98]


async def peak_memory(which: str, conninfo: str, kilobytes: int) -> float:
    """Return the peak memory of a separate process under the load, in MB; see process.py."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.process", which, conninfo, str(kilobytes)),
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await process.communicate()
    assert process.returncode == 0
    return float(output)


async def run(server: str) -> list[Figure]:
    """Measure, and print a line for each figure."""
    figures = []
    calls = (("put + put_writes", "put_both"), ("get_tuple, latest", "get"))
    for tuned, (work, call) in product((False, True), calls):
        async with both_savers(server) as (ours, peer):
            with gc_tuned() if tuned else nullcontext():
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
            show(Figure(f"200 graphs, {work}: peak memory", "MB", mine, its, (its + EXTRA_MEMORY) / its))
        )
    return figures

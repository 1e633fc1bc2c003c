"""Run graphs for a long time, cancel some at random, kill connections and restart the server.

Nothing acknowledged is lost, nothing is duplicated, nothing leaks. `SOAK_SECONDS` sets the duration: a few seconds by
default, ten minutes with 200 concurrent graphs in `make soak`. Each run's rows are checked after a few later runs, then
deleted, so that neither the database nor this process grows by design.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import random
import statistics
import time
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest

from langgraph_durable import DurableSaver, embedded
from langgraph_durable.embedded import EmbeddedPostgres
from tests.acceptance.driving import thread
from tests.acceptance.graphs import CHAIN, Graph, branches, chain, ignore
from tests.samples import await_until

SECONDS = float(os.environ.get("SOAK_SECONDS", "12"))
GRAPHS, POOL = (200, 16) if SECONDS >= 60 else (40, 8)
KEPT = 3
"""Threads that each of the concurrent runs has behind it, unchecked."""
MOST_GROWTH = 16 << 20
"""Bytes of memory, from the first third of the time to the last."""

LONG = [f"{number} " * 300 for number in range(30)]  # is stored in segments

KILL = """
SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend' AND random() < 0.5
"""
CONNECTIONS = """
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()
"""
DOUBLES = """
SELECT count(*) FROM (
    SELECT FROM langgraph_durable.checkpoints GROUP BY thread_id, checkpoint_ns, ulid HAVING count(*) > 1
) d
"""


class Acknowledged:
    """What the saver acknowledged of one thread."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        """Checkpoint id -> channel values."""
        self.writes: Counter[tuple[str, str, str]] = Counter()
        """Checkpoint id, task id, channel."""


class Remembering(DurableSaver):
    """Remembers what it acknowledged."""

    acknowledged: dict[str, Acknowledged]

    async def aput(self, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
        values = dict(checkpoint["channel_values"])  # the graph goes on with the checkpoint's own
        stored = await super().aput(config, checkpoint, metadata, new_versions)
        self.of(config["configurable"]["thread_id"]).values[checkpoint["id"]] = values
        return stored

    async def aput_writes(self, config: Any, writes: Any, task_id: str, task_path: str = "") -> None:
        await super().aput_writes(config, writes, task_id, task_path)
        named = config["configurable"]
        acknowledged = self.of(named["thread_id"])
        acknowledged.writes.update((named["checkpoint_id"], task_id, channel) for channel, _ in writes)

    def of(self, thread_id: str) -> Acknowledged:
        return self.acknowledged.setdefault(thread_id, Acknowledged())


class Soak:
    """The load, the faults, and the counts of both."""

    def __init__(self, cluster: EmbeddedPostgres, saver: Remembering) -> None:
        self.cluster = cluster
        self.saver = saver
        saver.acknowledged = {}
        self.graphs: list[tuple[Graph, tuple[str, ...]]] = [
            (chain(saver, ignore), CHAIN),
            (branches(saver, ignore), ("left", "middle", "right", "last")),
        ]
        self.counts: Counter[str] = Counter()
        self.memory: list[tuple[float, int]] = []
        self.began = time.monotonic()

    @property
    def passed(self) -> float:
        """The part of the time that is over; 1 and more at the end."""
        return (time.monotonic() - self.began) / SECONDS

    async def go(self) -> None:
        await asyncio.gather(self.trouble(), *(self.run(str(number)) for number in range(GRAPHS)))

    async def run(self, name: str) -> None:
        """Run graphs one after the other, each on a new thread."""
        behind: deque[tuple[str, bool]] = deque()
        turn, took = 0, 0.1
        while self.passed < 1:
            turn += 1
            began = time.monotonic()
            thread_id = f"{name} {turn}"
            behind.append((thread_id, await self.run_once(thread_id, random.random() * took)))
            took = time.monotonic() - began
            if len(behind) > KEPT:
                await self.check(*behind.popleft())
        for thread_id, whole in behind:
            await self.check(thread_id, whole)

    async def run_once(self, thread_id: str, patience: float) -> bool:
        """Run a graph on a new thread, and resume it if it was cancelled. Return whether it was not cancelled."""
        graph, steps = random.choice(self.graphs)
        said = LONG if random.random() < 0.2 else []
        config = thread(thread_id)
        call = asyncio.create_task(graph.ainvoke({"trail": said}, config, durability="sync"))
        if random.random() < 0.2:
            await asyncio.wait([call], timeout=patience)
            call.cancel()
            await asyncio.wait([call])
        if call.cancelled():
            self.counts["cancelled"] += 1
            if not self.saver.of(thread_id).values:  # its input may not be there
                return False
            self.counts["resumed"] += 1
            result = await graph.ainvoke(None, config, durability="sync")
        else:
            result = await call
        assert result["trail"] == [*said, *steps]
        self.counts["finished"] += 1
        return not call.cancelled()

    async def check(self, thread_id: str, whole: bool) -> None:
        """Check that what was acknowledged of a thread loads; if it is `whole`, that nothing else is stored."""
        acknowledged = self.saver.acknowledged.pop(thread_id)
        found = [found async for found in self.saver.alist(thread(thread_id))]
        values = {each.checkpoint["id"]: each.checkpoint["channel_values"] for each in found}
        writes = Counter(
            (each.checkpoint["id"], task_id, channel)
            for each in found
            for task_id, channel, _ in each.pending_writes or ()
        )
        assert len(values) == len(found)
        assert set(writes.values()) <= {1}
        if whole:
            assert values == acknowledged.values
            assert writes == acknowledged.writes
        else:  # what was cancelled may be there too, or be missing under writes that came before it
            assert values.items() >= acknowledged.values.items()
            assert writes.keys() >= {write for write in acknowledged.writes if write[0] in values}
        self.counts["puts"] += len(acknowledged.values)
        self.counts["writes"] += acknowledged.writes.total()
        await self.saver.adelete_thread(thread_id)

    async def trouble(self) -> None:
        """Kill connections, restart the server, watch the memory."""
        restarts = [(0.35, True), (0.65, False)]
        while self.passed < 1:
            await asyncio.sleep(1)
            self.memory.append((self.passed, resident_bytes()))
            if restarts and self.passed > restarts[0][0]:
                _, immediate = restarts.pop(0)
                await asyncio.to_thread(self.cluster.restart, immediate=immediate)
                self.counts["restarts"] += 1
            else:
                self.counts["killed"] += await self.ask(KILL)

    async def ask(self, query: str) -> int:
        """Return a number from the server."""
        async with await psycopg.AsyncConnection.connect(self.cluster.conninfo()) as connection:
            row = await (await connection.execute(query)).fetchone()
        assert row is not None
        number: int = row[0]
        return number

    def growth(self) -> int:
        """Bytes by which the memory grew from the first third of the time to the last."""
        first = [size for passed, size in self.memory if passed < 1 / 3]
        last = [size for passed, size in self.memory if passed > 2 / 3]
        return int(statistics.median(last) - statistics.median(first))


def resident_bytes() -> int:
    """Bytes of memory of this process; 0 where the system does not report it."""
    gc.collect()
    with suppress(FileNotFoundError):
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def open_files() -> int:
    """The number of this process's open files and sockets; 0 where the system does not report it."""
    with suppress(FileNotFoundError):
        return len(list(Path("/proc/self/fd").iterdir()))
    return 0


@pytest.fixture
def cluster() -> Iterator[EmbeddedPostgres]:
    """A server that this test alone restarts."""
    with embedded.start(fsync=False) as started:
        yield started


@pytest.mark.filterwarnings("default::ResourceWarning")  # psycopg's, of the connections that were killed
async def test_soak(cluster: EmbeddedPostgres, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("langgraph_durable", "psycopg"):
        caplog.set_level(logging.ERROR, name)  # or pytest keeps every warning, and this seems to leak
    tasks_before, files_before = len(asyncio.all_tasks()), open_files()
    async with Remembering.from_conn_string(
        cluster.conninfo(), max_size=POOL, segment_cache_bytes=8 << 20
    ) as saver:
        await saver.asetup()
        soak = Soak(cluster, saver)
        await soak.go()
        found = saver.metrics()
        print(
            f"\n{dict(soak.counts)}, {soak.growth() / 1e6:.1f} MB more than at first of {resident_bytes() / 1e6:.0f}"
        )
        print(found)
        assert soak.counts["restarts"] == 2
        assert soak.counts["finished"] > GRAPHS
        assert min(soak.counts[kind] for kind in ("cancelled", "resumed", "killed")) > 0
        assert not saver.acknowledged
        assert found.waiting_writes == found.waiting_bytes == 0
        assert found.batches > 0
        assert found.retries > 0
        assert await soak.ask(DOUBLES) == 0
        assert await soak.ask(CONNECTIONS) <= POOL
        assert soak.growth() < MOST_GROWTH
    await await_until(lambda: len(asyncio.all_tasks()) == tasks_before, "the saver's tasks to end")
    await await_until(lambda: open_files() <= files_before, "its connections to be closed")
    assert await soak.ask(CONNECTIONS) == 0

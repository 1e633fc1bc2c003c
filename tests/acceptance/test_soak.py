"""Graphs without end, cancelled at random, over connections that are killed: nothing acknowledged is lost.

`SOAK_SECONDS` says for how long; a few seconds if it is not set.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from typing import Any

import psycopg
from langgraph.checkpoint.base import Checkpoint, CheckpointMetadata

from langgraph_durable import DurableSaver
from tests.acceptance.driving import thread
from tests.acceptance.graphs import CHAIN, chain, ignore

SECONDS = float(os.environ.get("SOAK_SECONDS", "4"))
GRAPHS = 40
POOL = 8

KILL = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend' AND random() < 0.5
"""
DOUBLES = """
SELECT count(*) FROM (
    SELECT FROM langgraph_durable.checkpoints GROUP BY thread_id, checkpoint_ns, ulid HAVING count(*) > 1
) d
"""
CONNECTIONS = """
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()
"""


class Remembering(DurableSaver):
    """Remembers which puts it acknowledged."""

    acknowledged: set[tuple[str, str]]

    async def aput(
        self, config: Any, checkpoint: Checkpoint, metadata: CheckpointMetadata, new_versions: Any
    ) -> Any:
        stored = await super().aput(config, checkpoint, metadata, new_versions)
        self.acknowledged.add((stored["configurable"]["thread_id"], stored["configurable"]["checkpoint_id"]))
        return stored


async def test_soak(conninfo: str) -> None:
    tasks_before = len(asyncio.all_tasks())
    finished, cancelled = 0, 0
    async with Remembering.from_conn_string(conninfo, max_size=POOL) as saver:
        saver.acknowledged = set()
        graph = chain(saver, ignore)
        end = time.monotonic() + SECONDS

        async def run(number: int) -> None:
            nonlocal finished, cancelled
            turn = 0
            while time.monotonic() < end:
                turn += 1
                config = thread(f"{number} {turn}")
                call = asyncio.create_task(graph.ainvoke({"trail": []}, config, durability="sync"))
                if random.random() < 0.2:
                    await asyncio.wait([call], timeout=random.random() / 20)
                    call.cancel()
                    await asyncio.wait([call])
                    cancelled += call.cancelled()
                    if call.cancelled():
                        continue
                assert (await call)["trail"] == list(CHAIN)
                finished += 1

        async def kill() -> None:
            async with await psycopg.AsyncConnection.connect(
                conninfo, autocommit=True, application_name="observer"
            ) as connection:
                while time.monotonic() < end:
                    await asyncio.sleep(min(1.0, SECONDS / 8))
                    await connection.execute(KILL)

        await asyncio.gather(kill(), *(run(number) for number in range(GRAPHS)))
        assert finished > GRAPHS
        assert cancelled > 0
        stored: set[tuple[str, str]] = set()
        async with await psycopg.AsyncConnection.connect(conninfo) as observer:
            rows = await observer.execute(
                "SELECT thread_id, checkpoint_id FROM langgraph_durable.checkpoints"
            )
            async for thread_id, checkpoint_id in rows:
                stored.add((thread_id, checkpoint_id))
            assert saver.acknowledged <= stored
            rows = await observer.execute(DOUBLES)
            assert await rows.fetchone() == (0,)
            rows = await observer.execute(CONNECTIONS)
            [(connections,)] = await rows.fetchall()
            assert connections <= POOL
        found = saver.metrics()
        assert found.waiting_writes == 0
        assert found.batches > 0
        assert found.retries > 0
    assert len(asyncio.all_tasks()) == tasks_before

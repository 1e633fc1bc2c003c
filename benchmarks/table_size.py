"""Compare reads of a thread's latest checkpoint in tables of a million and of a thousand."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable

import psycopg
from langchain_core.runnables import RunnableConfig
from psycopg import sql

from benchmarks.graphs import STEPS, five_steps
from benchmarks.harness import Figure, both_savers, compare, conninfo_of, mean_ms
from langgraph_durable import DurableSaver
from langgraph_durable._checkpoints.read import GET_CHECKPOINT, checkpoint_key
from langgraph_durable._postgres.statement import render

SMALL, LARGE = 1_000, 1_000_000
PER_THREAD = STEPS + 2
"""Checkpoints in each thread."""
READS = 150
TABLES = ("checkpoints", "channel_values", "writes")


def copy_of(number: int) -> RunnableConfig:
    return {"configurable": {"thread_id": f"copy-{number}", "checkpoint_ns": ""}}


async def fill(saver: DurableSaver, conninfo: str, checkpoints: int) -> int:
    """Copy a graph's thread until there are that many checkpoints; return the number of copies."""
    config: RunnableConfig = {"configurable": {"thread_id": "origin"}}
    await five_steps(saver).ainvoke({"trail": ["x" * 500]}, config, durability="sync")
    copies = checkpoints // PER_THREAD
    async with await psycopg.AsyncConnection.connect(conninfo, autocommit=True) as connection:
        for name in TABLES:
            table = sql.Identifier(saver.schema, name)
            rows = await connection.execute(sql.SQL("SELECT * FROM {} LIMIT 0").format(table))
            others = [column.name for column in rows.description or () if column.name != "thread_id"]
            await connection.execute(
                sql.SQL(
                    "INSERT INTO {table} (thread_id, {others}) SELECT 'copy-' || n, {others} FROM {table}, "
                    "generate_series(1, {copies}) AS n WHERE thread_id = 'origin'"
                ).format(table=table, others=sql.SQL(", ").join(map(sql.Identifier, others)), copies=copies)
            )
            await connection.execute(sql.SQL("VACUUM ANALYZE {}").format(table))
    return copies


def latest(saver: DurableSaver, choose: Callable[[], int]) -> Callable[[], Awaitable[float]]:
    async def read() -> None:
        found = await saver.aget_tuple(copy_of(choose()))
        assert found is not None
        assert len(found.checkpoint["channel_values"]["trail"]) == STEPS + 1

    return lambda: mean_ms(read, READS)


def indexes_used(conninfo: str, schema: str) -> set[str]:
    """Return the indexes that read a thread's latest checkpoint; fail on a sequential scan."""
    query = render(GET_CHECKPOINT, schema)
    with psycopg.connect(conninfo) as connection:
        key = checkpoint_key("copy-1", "", None)
        psycopg.RawCursor(connection).execute(query.query, query.arguments(key))
        # What this transaction read: the plan itself is inside the function.
        tables = connection.execute(
            "SELECT relname FROM pg_stat_xact_user_tables WHERE schemaname = %s AND seq_scan > 0", [schema]
        ).fetchall()
        indexes = connection.execute(
            "SELECT indexrelname FROM pg_stat_user_indexes WHERE schemaname = %s "
            "AND pg_stat_get_xact_numscans(indexrelid) > 0",
            [schema],
        ).fetchall()
    assert not tables, tables
    return {name for (name,) in indexes}


async def run(server: str) -> list[Figure]:
    """Measure, and print a line for each figure."""
    figures = []
    async with both_savers(server) as (large, large_peer), both_savers(server) as (small, small_peer):
        conninfo = conninfo_of(large_peer)
        few = await fill(small, conninfo_of(small_peer), SMALL)
        many = await fill(large, conninfo, LARGE)
        indexes = ", ".join(sorted(indexes_used(conninfo, large.schema)))
        print(f"indexes that read the latest of {LARGE} checkpoints: {indexes}")
        figures.append(
            await compare(
                f"latest of {LARGE:,} checkpoints, vs of {SMALL:,}",
                latest(large, lambda: many // 2),
                latest(small, lambda: few // 2),
                target=1.2,
            )
        )
        figures.append(
            await compare(
                "the same, each time another thread",
                latest(large, lambda: random.randint(1, many)),
                latest(small, lambda: random.randint(1, few)),
            )
        )
    return figures

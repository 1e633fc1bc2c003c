"""The operation that tells what is stored."""

from __future__ import annotations

from langgraph_durable._postgres.database import Database
from langgraph_durable._retention import stats_statements as sql
from langgraph_durable.reports import StorageStats, TableStorage


async def storage_stats(db: Database, thread_id: str | None) -> StorageStats:
    """Count rows and bytes: of a thread, or of all.

    Round trips: 1. It looks at every row.
    """
    if thread_id is None:
        rows = await db.fetch(sql.GET_SIZES)
    else:
        rows = await db.fetch(sql.GET_SIZES_OF_THREAD, {"thread": thread_id})
    return StorageStats(
        thread_id,
        {name: TableStorage(int(count), int(bytes_ or 0)) for name, count, bytes_, _ in rows},
        sum(int(logical or 0) for *_, logical in rows),
    )

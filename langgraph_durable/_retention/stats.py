"""How much space checkpoints take."""

from __future__ import annotations

from langgraph_durable._metrics import measured
from langgraph_durable._postgres.database import Database
from langgraph_durable._postgres.statement import load
from langgraph_durable._validation import require_thread_id
from langgraph_durable.reports import StorageStats, TableStorage

GET_SIZES = load(__package__, "get_sizes")


@measured("storage_stats")
async def storage_stats(db: Database, thread_id: str | None) -> StorageStats:
    """Count the rows and bytes of a thread, or of all.

    Raises:
        InvalidConfigError: `thread_id` is invalid.

    Round trips: 1. It reads every row.
    """
    thread = require_thread_id(thread_id) if thread_id is not None else None
    rows = await db.fetch(GET_SIZES, {"thread": thread})
    return StorageStats(
        thread,
        {name: TableStorage(int(count), int(bytes_ or 0)) for name, count, bytes_, _ in rows},
        sum(int(logical or 0) for *_, logical in rows),
    )

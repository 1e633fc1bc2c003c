"""langgraph-checkpoint-postgres's own saver, as a second opinion on what its tables hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg

from langgraph_durable._postgres.database import Database
from langgraph_durable._transfer.postgres import PostgresReader
from langgraph_durable._transfer.source import Call, SaverSource, caller
from langgraph_durable.errors import ImportFailedError


class PeerSource(SaverSource):
    """Reads tables by PostgresSaver, on the connection and in the snapshot of a PostgresReader."""

    def __init__(self, reader: PostgresReader, saver: Any, db: Database, batch: int) -> None:
        super().__init__(saver, db, batch)
        self._reader = reader
        self._reader_call: Call = caller(db)

    async def thread_ids(self) -> Sequence[str]:
        """Return the ids of all threads."""
        return await self._reader_call(self._reader.thread_ids)


def peer_source(reader: PostgresReader, serde: Any, db: Database, batch: int) -> PeerSource | None:
    """Return the source that reads by PostgresSaver; None if that is not installed, or cannot read the tables."""
    try:
        from langgraph.checkpoint.postgres import PostgresSaver
    except ImportError:
        return None
    if reader.is_shallow or not reader.has_task_paths:
        return None
    try:
        # PostgresSaver finds its tables by the search path.
        reader.connection.execute("SELECT set_config('search_path', quote_ident(%s), true)", [reader.schema])
    except psycopg.Error as exc:
        raise ImportFailedError(f"the source cannot be read: {str(exc).strip()}") from exc
    return PeerSource(reader, PostgresSaver(reader.connection, serde=serde), db, batch)

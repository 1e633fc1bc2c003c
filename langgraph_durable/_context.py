"""The state that a saver shares with its clones and its parts (effects, retention, inspection)."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple

from langgraph_durable._checkpoints.codec import Codec
from langgraph_durable._checkpoints.known import KnownCheckpoints
from langgraph_durable._metrics import Metrics, MetricSources
from langgraph_durable._postgres.database import Database, DatabaseSettings, SchemaCheck
from langgraph_durable._postgres.drivers import AsyncDatabase, BlockingDatabase
from langgraph_durable._postgres.group_waiters import GroupCommitters
from langgraph_durable._postgres.migrate import check_schema
from langgraph_durable._postgres.own_pools import OwnPools
from langgraph_durable._postgres.pools import AsyncConnections, BlockingConnections
from langgraph_durable._segments.cache import SegmentCache
from langgraph_durable._validation import (
    require_cache_bytes,
    require_schema,
    require_seconds,
    require_segment_key,
)
from langgraph_durable.errors import InvalidConfigError

TUNING_VARIABLE = "LANGGRAPH_DURABLE_TUNING"
"""The environment variable that switches process-wide tuning off for all savers, if it is `off`."""


@dataclass(frozen=True, slots=True)
class SaverOptions:
    """The validated settings that both constructors of DurableSaver share."""

    schema: str
    indexed_metadata: Collection[str] | None
    retry_timeout: float
    segment_cache_bytes: int
    segment_key: bytes | None
    group_commit: bool
    tuning: bool

    @classmethod
    def checked(
        cls,
        *,
        schema: str,
        indexed_metadata: Collection[str] | None,
        retry_timeout: float,
        segment_cache_bytes: int,
        segment_key: bytes | None,
        group_commit: bool,
        tuning: bool,
    ) -> SaverOptions:
        """Return the settings, checked.

        Raises:
            InvalidConfigError: A setting cannot be used.
            TypeError: `indexed_metadata` is one str.
        """
        if isinstance(indexed_metadata, str):
            raise TypeError(
                f"indexed_metadata must be a collection of keys, not one str: pass [{indexed_metadata!r}]"
            )
        return cls(
            schema=require_schema(schema),
            indexed_metadata=indexed_metadata,
            retry_timeout=require_seconds(retry_timeout, "retry_timeout"),
            segment_cache_bytes=require_cache_bytes(segment_cache_bytes),
            segment_key=require_segment_key(segment_key),
            group_commit=group_commit,
            tuning=tuning and os.environ.get(TUNING_VARIABLE, "").lower() != "off",
        )


class FallbackSaver(Protocol):
    """Another saver, from which threads that are unknown here are imported when they are first used."""

    def allow(self, types: Collection[tuple[str, ...]]) -> None:
        """Let it load types of a graph's state in strict mode."""
        ...

    async def get_tuple(
        self, db: Database, codec: Codec, known: KnownCheckpoints, config: RunnableConfig
    ) -> CheckpointTuple | None:
        """Return a checkpoint, after importing its thread if it is unknown here."""
        ...

    async def import_unknown(self, db: Database, codec: Codec, thread_id: str, *, writes: bool) -> None:
        """Import a thread that is unknown here, before it is listed, copied, pruned, or written."""
        ...

    async def delete_thread(self, db: Database, thread_id: str) -> None:
        """Delete a thread there."""
        ...

    async def delete_for_runs(self, db: Database, run_ids: Sequence[str]) -> None:
        """Delete runs there, if it can do that."""
        ...


class SaverContext:
    """Everything of a saver but its serializer.

    LangGraph clones savers (`with_allowlist`), and gives each clone another serializer.
    """

    def __init__(
        self,
        options: SaverOptions,
        connections: BlockingConnections | None,
        async_connections: AsyncConnections | None,
        own_pools: OwnPools | None = None,
    ) -> None:
        self.options = options
        self.schema = options.schema
        self.connections = connections
        self.async_connections = async_connections
        self.own_pools = own_pools
        self.known = KnownCheckpoints()
        self.segments = SegmentCache(options.segment_cache_bytes)
        self.metrics = Metrics()
        committers = GroupCommitters(self.metrics) if options.group_commit else None
        self.committers = committers
        self.metric_sources = MetricSources(
            self.metrics, committers, self.segments, (connections, async_connections)
        )
        self._database_settings = DatabaseSettings(
            options.schema,
            options.retry_timeout,
            SchemaCheck(lambda session: check_schema(session, options.schema)),
            self.metrics,
            committers,
        )
        self.fallback: FallbackSaver | None = None
        self.parts: dict[str, Any] = {}
        """Objects that exist once for a saver and its clones: the effect log."""

    @cached_property
    def db(self) -> BlockingDatabase:
        """The database of the sync methods.

        Raises:
            InvalidConfigError: The saver was given only `async_pool=`.
        """
        if self.connections is None:
            raise InvalidConfigError(
                "a sync method was called on a saver that was given only async_pool=: pass pool= too, or use "
                "DurableSaver.from_conn_string(...), which serves both"
            )
        return BlockingDatabase(self.connections, self._database_settings)

    @cached_property
    def adb(self) -> AsyncDatabase:
        """The database of the async methods.

        Raises:
            InvalidConfigError: The saver was given only `pool=`.
        """
        if self.async_connections is None:
            raise InvalidConfigError(
                "an async method was called on a saver that was given only pool=: pass async_pool= too, or use "
                "DurableSaver.from_conn_string(...), which serves both"
            )
        in_threads = self.db if self.connections is not None else None
        return AsyncDatabase(self.async_connections, self._database_settings, in_threads)

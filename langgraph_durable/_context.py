"""What a saver and its clones share, and what they hand to their parts (effects, retention, inspection)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from langgraph.checkpoint.serde.base import SerializerProtocol

from langgraph_durable._checkpoints.codec import Codec
from langgraph_durable._checkpoints.known import KnownCheckpoints
from langgraph_durable._metrics import Metrics, MetricSources
from langgraph_durable._postgres.connections import AsyncConnections, BlockingConnections
from langgraph_durable._postgres.database import DatabaseSettings, SchemaCheck
from langgraph_durable._postgres.drivers import AsyncDatabase, BlockingDatabase
from langgraph_durable._postgres.group_waiters import GroupCommitters
from langgraph_durable._postgres.migrate import check_schema
from langgraph_durable._segments.cache import SegmentCache
from langgraph_durable.errors import InvalidConfigError


@dataclass(frozen=True, slots=True)
class SaverOptions:
    """The validated settings that both constructors of DurableSaver share."""

    schema: str
    indexed_metadata: Collection[str] | None
    retry_timeout: float
    segment_cache_bytes: int
    segment_key: bytes | None
    group_commit: bool


class SaverContext:
    """Shared by reference between a saver and its clones (LangGraph copies savers in `with_allowlist`).

    Everything but the serializer: each clone has its own, and LangGraph reassigns it.
    """

    def __init__(
        self,
        options: SaverOptions,
        connections: BlockingConnections | None,
        async_connections: AsyncConnections | None,
    ) -> None:
        self.options = options
        self.schema = options.schema
        self.connections = connections
        self.async_connections = async_connections
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
        self.parts: dict[str, Any] = {}
        """What is made once for a saver and its clones: the effect log."""

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
        return AsyncDatabase(self.async_connections, self._database_settings)

    def codec(self, serde: SerializerProtocol) -> Codec:
        """Return the codec for a serializer: made at every call, since callers reassign the saver's."""
        options = self.options
        return Codec(serde, options.indexed_metadata, options.segment_key, self.segments)

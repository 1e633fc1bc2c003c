"""`DurableSaver`: the checkpoint saver that a graph is compiled with."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Sequence
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
)
from langgraph.checkpoint.serde.base import SerializerProtocol
from psycopg import AsyncConnection, Connection
from psycopg_pool import AsyncConnectionPool, ConnectionPool
from typing_extensions import Self

from langgraph_durable import schema as _schema
from langgraph_durable._checkpoints.listing import Listing
from langgraph_durable._checkpoints.put import put_checkpoint, put_writes
from langgraph_durable._checkpoints.versions import next_version
from langgraph_durable._context import SaverContext, SaverOptions
from langgraph_durable._inspect.methods import InspectionMethods
from langgraph_durable._postgres.database import run_sync
from langgraph_durable._postgres.given import given_async_connections, given_connections
from langgraph_durable._postgres.own_pools import OwnPools
from langgraph_durable._postgres.pools import PoolSettings
from langgraph_durable._retention.methods import RetentionMethods
from langgraph_durable._segments.cache import DEFAULT_CACHE_BYTES
from langgraph_durable._transfer.fallback import require_fallback
from langgraph_durable._transfer.methods import TransferMethods
from langgraph_durable._validation import require_pool_sizes, require_prepare_threshold, require_seconds
from langgraph_durable.effects._lookup import log_of
from langgraph_durable.effects.log import EffectLog
from langgraph_durable.errors import InvalidConfigError


# Reports, where LangGraph's methods return None.
class DurableSaver(TransferMethods, RetentionMethods, InspectionMethods):  # pyright: ignore[reportIncompatibleMethodOverride]
    """A LangGraph checkpoint saver on Postgres: sync and async in one object.

    Make one with `from_conn_string`, call `setup()` once for a database, and compile graphs with it:

    ```python
    saver = DurableSaver.from_conn_string("postgresql://user:password@host/database")
    saver.setup()
    graph = builder.compile(checkpointer=saver)
    ```

    One instance serves any number of threads and event loops at once, `graph.invoke` as well as `graph.ainvoke`.
    Transient faults (a connection that died, a server restart, a deadlock) are retried for up to `retry_timeout`
    seconds. Writes are idempotent, so retries never duplicate rows.
    """

    def __init__(  # noqa: PLR0913 (each setting is a keyword that editors complete)
        self,
        pool: ConnectionPool[Any] | Connection[Any] | None = None,
        *,
        async_pool: AsyncConnectionPool[Any] | AsyncConnection[Any] | None = None,
        schema: str = _schema.DEFAULT_SCHEMA,
        serde: SerializerProtocol | None = None,
        indexed_metadata: Collection[str] | None = None,
        retry_timeout: float = 30.0,
        segment_cache_bytes: int = DEFAULT_CACHE_BYTES,
        segment_key: bytes | None = None,
        group_commit: bool = True,
        tuning: bool = True,
        fallback: BaseCheckpointSaver[Any] | None = None,
    ) -> None:
        """Make a saver on your pools or connections, which you open and close.

        Args:
            pool: A psycopg pool, or one connection, for the sync methods.
            async_pool: A psycopg asyncio pool, or one connection, for the async methods.
            schema: The database schema of the saver's tables.
            serde: The serializer of values and metadata; LangGraph's default if None.
            indexed_metadata: Metadata keys kept readable in the database, so that `list` filters on them there.
                Default: every key with a plain value, or, with an EncryptedSerializer, source, step and run_id.
            retry_timeout: Seconds for which transient faults are retried; 0 for never.
            segment_cache_bytes: Most bytes of segments (pieces of long lists and dicts) that this process keeps, so
                that it neither sends nor fetches them again; shared with clones.
            segment_key: 16 to 64 secret bytes, the key of the segments' names. An EncryptedSerializer requires it to
                store long values in segments, since names without a key would reveal equal contents. Keep it as long
                as what was stored with it, and give it to every saver that reads that.
            group_commit: Whether puts and put_writes that wait for the database at the same time go out together, in
                one transaction. Never on a single connection.
            tuning: Whether listings and delta histories pause Python's garbage collector for the milliseconds in which
                they decode, and listings copy messages that repeat. Off too if the environment variable
                LANGGRAPH_DURABLE_TUNING is `off` when the saver is made.
            fallback: The saver that you come from, which you open and close. A thread that is unknown here is imported
                from it when it is first used, and goes on here. Deletions reach both.

        Raises:
            InvalidConfigError: Neither `pool` nor `async_pool` is given, or an argument cannot be used.
            TypeError: `indexed_metadata` is one str.
        """
        super().__init__(serde=serde)
        if pool is None and async_pool is None:
            raise InvalidConfigError(
                "a saver needs a database: use DurableSaver.from_conn_string(...), or pass pool= and async_pool="
            )
        options = SaverOptions.checked(
            schema=schema,
            indexed_metadata=indexed_metadata,
            retry_timeout=retry_timeout,
            segment_cache_bytes=segment_cache_bytes,
            segment_key=segment_key,
            group_commit=group_commit,
            tuning=tuning,
        )
        self._context = SaverContext(
            options,
            given_connections(pool) if pool is not None else None,
            given_async_connections(async_pool) if async_pool is not None else None,
        )
        self._context.fallback = require_fallback(fallback)

    @classmethod
    def from_conn_string(  # noqa: PLR0913 (each setting is a keyword that editors complete)
        cls,
        conninfo: str | Callable[[], str | Awaitable[str]],
        *,
        schema: str = _schema.DEFAULT_SCHEMA,
        min_size: int = 1,
        max_size: int = 16,
        pool_timeout: float = 30.0,
        prepare_threshold: int | None = 0,
        serde: SerializerProtocol | None = None,
        indexed_metadata: Collection[str] | None = None,
        retry_timeout: float = 30.0,
        segment_cache_bytes: int = DEFAULT_CACHE_BYTES,
        segment_key: bytes | None = None,
        group_commit: bool = True,
        tuning: bool = True,
        fallback: BaseCheckpointSaver[Any] | None = None,
    ) -> Self:
        """Make a saver with its own pools; usable at once, also as `with` or `async with`.

        The pool of the sync methods, and that of each event loop, connect at first use.

        Args:
            conninfo: A Postgres connection string, `postgresql://...` or `host=... dbname=...`; or a function, sync
                or async, that returns one. It is called for each new connection, for passwords that rotate.
            schema: The database schema of the saver's tables.
            min_size: Connections that each pool keeps.
            max_size: Connections that each pool opens at most.
            pool_timeout: Seconds that an operation waits for a free connection.
            prepare_threshold: Runs of a statement before it is prepared; None for never (pgbouncer that prepares none).
            serde: The serializer; see `DurableSaver`, also for the arguments below.
            indexed_metadata: Metadata keys kept readable in the database.
            retry_timeout: Seconds for which transient faults are retried.
            segment_cache_bytes: Most bytes of segments that this process keeps.
            segment_key: The key of the segments' names.
            group_commit: Whether writes that wait at the same time go out together.
            tuning: Whether to pause the garbage collector and copy repeated messages.
            fallback: The saver from which unknown threads are imported.

        Raises:
            InvalidConfigError: An argument cannot be used.
        """
        min_size, max_size = require_pool_sizes(min_size, max_size)
        self = cls.__new__(cls)
        BaseCheckpointSaver.__init__(self, serde=serde)
        options = SaverOptions.checked(
            schema=schema,
            indexed_metadata=indexed_metadata,
            retry_timeout=retry_timeout,
            segment_cache_bytes=segment_cache_bytes,
            segment_key=segment_key,
            group_commit=group_commit,
            tuning=tuning,
        )
        pools = OwnPools(
            conninfo,
            PoolSettings(
                min_size=min_size,
                max_size=max_size,
                timeout=require_seconds(pool_timeout, "pool_timeout"),
                prepare_threshold=require_prepare_threshold(prepare_threshold),
                tuning=options.tuning,
            ),
        )
        self._context = SaverContext(options, pools.blocking, pools.asynchronous, pools)
        self._context.fallback = require_fallback(fallback)
        return self

    @property
    def effects(self) -> EffectLog:
        """The effect log beside the saver's checkpoints; the same one for the saver and its clones."""
        return log_of(self._context, self)

    # --- put ---

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint; its parent is the checkpoint that `config` names.

        Returns:
            The config that names the stored checkpoint, by the runtime's own id.

        Raises:
            InvalidConfigError: `config` names no thread.
            UnserializableValueError: A value cannot be stored; the message names its channel. Nothing is stored.
            ThreadDeletedError: The thread was deleted during the run. Nothing is stored.
            ParentPrunedError: The parent, which delta channels need, was pruned during the run. Nothing is stored.
            ParentMissingError: The parent, which delta channels need, is not stored: a failover lost it, or checkpoints
                are imported children first. Nothing is stored.

        Round trips: 1; more if others deleted what this process knew to be stored.
        """
        self._import_before_write(config)
        known = self._context.known
        return run_sync(
            put_checkpoint(self._db, self._codec, known, config, checkpoint, metadata, new_versions)
        )

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint; see `put`."""
        await self._aimport_before_write(config)
        known = self._context.known
        return await put_checkpoint(self._adb, self._codec, known, config, checkpoint, metadata, new_versions)

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Store a task's pending writes. The checkpoint that `config` names may be stored later.

        A repeated write changes nothing, except on special channels (error, interrupt, resume), whose last value wins.

        Raises:
            InvalidConfigError: `config` names no checkpoint.
            UnserializableValueError: A value cannot be stored; the message names its channel. Nothing is stored.

        Round trips: 1.
        """
        self._import_before_write(config)
        known = self._context.known.writes
        run_sync(put_writes(self._db, self.serde, known, config, writes, task_id, task_path))

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Store a task's pending writes; see `put_writes`."""
        await self._aimport_before_write(config)
        known = self._context.known.writes
        await put_writes(self._adb, self.serde, known, config, writes, task_id, task_path)

    # --- get ---

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return the checkpoint that `config` names (by id or ULID), or the latest of its namespace.

        What is left of a pruned checkpoint, since delta channels are replayed from it, is returned only by its id: the
        values and writes of the replay, the parent's config, and the metadata `{"pruned": True}`. LangGraph's own walk
        to a delta channel's history needs it. A run that would start there raises ParentPrunedError.

        Returns:
            The checkpoint with its pending writes, or None if it is not stored.

        Raises:
            InvalidConfigError: `config` names no thread.
            CheckpointCorruptedError: A stored row cannot be read; the message says which.

        Round trips: 1; 1 more to fetch segments that this process neither put nor got.
        """
        return run_sync(self._get_tuple(self._db, config))

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return the checkpoint that `config` names, or the latest; see `get_tuple`."""
        return await self._get_tuple(self._adb, config)

    # --- list ---

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Iterate over checkpoints, newest first, fetched in pages.

        No connection is held between pages, so other calls may be made inside the loop.

        Args:
            config: The thread to list: all its namespaces, or the one it names; None for every thread.
            filter: Metadata that a checkpoint must contain. Nested dicts and lists may hold more. None matches a None
                that is present.
            before: Only checkpoints older than the one this names, by id or ULID.
            limit: At most this many.

        Raises:
            InvalidConfigError: An argument cannot be used.
            CheckpointCorruptedError: A stored row cannot be read; the message says which.
        """
        listing = Listing(self._codec, self._context.metrics, config, filter, before, limit)
        return self._iterate(listing)

    def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """Iterate over checkpoints, newest first; see `list`."""
        listing = Listing(self._codec, self._context.metrics, config, filter, before, limit)
        return self._aiterate(listing)

    # --- versions ---

    def get_next_version(self, current: Any, channel: None) -> Any:
        """Return a channel's next version: the number after `current`, and a random part.

        A thread from another saver keeps the form of its versions.
        """
        return next_version(current)

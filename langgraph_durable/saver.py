"""`DurableSaver`: the checkpoint saver that a graph is compiled with."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
)
from langgraph.checkpoint.serde.base import SerializerProtocol
from psycopg import AsyncConnection, Connection
from psycopg_pool import AsyncConnectionPool, ConnectionPool
from typing_extensions import Self

from langgraph_durable import schema as _schema
from langgraph_durable._checkpoints.history import get_delta_channel_history
from langgraph_durable._checkpoints.listing import Listing, list_checkpoints
from langgraph_durable._checkpoints.put import put_checkpoint, put_writes
from langgraph_durable._checkpoints.read import get_tuple, get_ulid
from langgraph_durable._checkpoints.versions import next_version
from langgraph_durable._context import SaverContext, SaverOptions
from langgraph_durable._inspect.methods import InspectionMethods
from langgraph_durable._postgres.connections import (
    AsyncConnections,
    AsyncGivenConnection,
    AsyncGivenPool,
    BlockingConnections,
    GivenConnection,
    GivenPool,
)
from langgraph_durable._postgres.database import run_sync
from langgraph_durable._postgres.migrate import set_up
from langgraph_durable._postgres.pools import OwnPools
from langgraph_durable._retention.methods import RetentionMethods
from langgraph_durable._segments.cache import DEFAULT_CACHE_BYTES
from langgraph_durable._validation import (
    require_cache_bytes,
    require_pool_sizes,
    require_prepare_threshold,
    require_schema,
    require_seconds,
    require_segment_key,
)
from langgraph_durable.effects._lookup import log_of
from langgraph_durable.effects.log import EffectLog
from langgraph_durable.errors import InvalidConfigError

"""Of a new thread's versions: as many as other savers write, since a shorter number compares as newer than theirs."""


# Reports, where LangGraph's methods return None.
class DurableSaver(RetentionMethods, InspectionMethods):  # pyright: ignore[reportIncompatibleMethodOverride]
    """A LangGraph checkpoint saver on Postgres: sync and async in one object.

    Make one with `from_conn_string`, call `setup()` once for a database, and compile graphs with it:

    ```python
    saver = DurableSaver.from_conn_string("postgresql://user:password@host/database")
    saver.setup()
    graph = builder.compile(checkpointer=saver)
    ```

    One instance serves any number of threads and event loops at once, and `graph.invoke` as well as
    `graph.ainvoke`. Transient faults (a connection that died, a server that restarts, a deadlock) are retried
    for up to `retry_timeout` seconds; everything stored is keyed, so a retry doubles nothing.
    """

    def __init__(
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
    ) -> None:
        """Make a saver on pools or connections of yours, which stay yours to open and to close.

        Args:
            pool: A psycopg pool, or one connection, for the sync methods.
            async_pool: A psycopg asyncio pool, or one connection, for the async methods.
            schema: The database schema of the saver's tables.
            serde: The serializer of values and metadata; LangGraph's own by default.
            indexed_metadata: Metadata keys kept readable in the database, so that `list` filters on them there.
                Default: every key with a plain value, or, with an EncryptedSerializer, source, step and run_id.
            retry_timeout: Seconds for which transient faults are retried; 0 for not at all.
            segment_cache_bytes: What this process keeps, at most, of the segments that long lists and dicts are stored
                in, so that it neither sends nor fetches them again; shared with clones.
            segment_key: 16 to 64 secret bytes that the segments' names are made with. With an EncryptedSerializer long
                values are stored in segments only if it is given: names made without a key would tell equal contents.
                Keep it as long as what was stored with it, and give it to every saver that reads that.
            group_commit: Whether puts and put_writes that wait for the database at the same time go out together, in
                one transaction. Never on a single connection.

        Raises:
            InvalidConfigError: Neither `pool` nor `async_pool` is given, or an argument cannot be used.
            TypeError: `indexed_metadata` is one str.
        """
        super().__init__(serde=serde)
        if pool is None and async_pool is None:
            raise InvalidConfigError(
                "a saver needs a database: use DurableSaver.from_conn_string(...), or pass pool= and async_pool="
            )
        self._own: OwnPools | None = None
        self._context = SaverContext(
            _options(schema, indexed_metadata, retry_timeout, segment_cache_bytes, segment_key, group_commit),
            _given(pool) if pool is not None else None,
            _async_given(async_pool) if async_pool is not None else None,
        )

    @classmethod
    def from_conn_string(
        cls,
        conninfo: str,
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
    ) -> Self:
        """Make a saver with pools of its own. It is usable at once, bare, or as `with` or `async with`.

        Nothing is connected yet: one pool for the sync methods, and one for each event loop, open at first use.

        Args:
            conninfo: A Postgres connection string, `postgresql://...` or `host=... dbname=...`.
            schema: The database schema of the saver's tables.
            min_size: Connections each pool keeps.
            max_size: Connections each pool opens at most.
            pool_timeout: Seconds an operation waits for a free connection.
            prepare_threshold: Times a statement runs before it is prepared; None for never, as pgbouncer
                needs it unless its max_prepared_statements is above 0.
            serde: The serializer of values and metadata; LangGraph's own by default.
            indexed_metadata: See `DurableSaver`.
            retry_timeout: Seconds for which transient faults are retried; 0 for not at all.
            segment_cache_bytes: See `DurableSaver`.
            segment_key: See `DurableSaver`.
            group_commit: See `DurableSaver`.

        Raises:
            InvalidConfigError: The connection string, a size or another argument cannot be used.
            TypeError: `indexed_metadata` is one str.
        """
        min_size, max_size = require_pool_sizes(min_size, max_size)
        self = cls.__new__(cls)
        BaseCheckpointSaver.__init__(self, serde=serde)
        self._own = OwnPools(
            conninfo,
            min_size=min_size,
            max_size=max_size,
            timeout=require_seconds(pool_timeout, "pool_timeout"),
            prepare_threshold=require_prepare_threshold(prepare_threshold),
        )
        self._context = SaverContext(
            _options(schema, indexed_metadata, retry_timeout, segment_cache_bytes, segment_key, group_commit),
            self._own.blocking,
            self._own.asynchronous,
        )
        return self

    @property
    def schema(self) -> str:
        """The database schema of the saver's tables."""
        return self._context.schema

    @property
    def effects(self) -> EffectLog:
        """The effect log beside the saver's checkpoints; the same one for the saver and its clones."""
        return log_of(self._context, self)

    # --- lifetime ---

    def close(self) -> None:
        """Close the saver's own pools; pools given to it stay open. Further calls raise SaverClosedError."""
        if self._own is not None:
            self._own.close()

    async def aclose(self) -> None:
        """Close the saver's own pools, from an event loop."""
        if self._own is not None:
            await self._own.aclose()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.aclose()

    def setup(self, *, verify_only: bool = False) -> None:
        """Create or migrate the tables; safe to call at every start, by any number of processes at once.

        Args:
            verify_only: Change nothing, only raise if something would have to be changed.

        Raises:
            SchemaOutOfDateError: The tables are newer than this package, or, with `verify_only`, not current.
        """
        run_sync(set_up(self._db, verify_only=verify_only))

    async def asetup(self, *, verify_only: bool = False) -> None:
        """Create or migrate the tables; see `setup`."""
        await set_up(self._adb, verify_only=verify_only)

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
            ThreadDeletedError: The thread was deleted while this run was going. Nothing is stored.
            ParentPrunedError: The parent was pruned while this run was going, and delta channels are replayed from it.
                Nothing is stored.
            ParentMissingError: The parent is not stored, and delta channels are replayed from it: a failover lost it, or
                checkpoints are imported children first. Nothing is stored.

        Round trips: 1; more if others deleted what this process knew to be stored.
        """
        return run_sync(
            put_checkpoint(
                self._db, self._codec, self._context.known, config, checkpoint, metadata, new_versions
            )
        )

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint; see `put`."""
        return await put_checkpoint(
            self._adb, self._codec, self._context.known, config, checkpoint, metadata, new_versions
        )

    def put_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """Store what a task wrote, hung on the checkpoint that `config` names; it may come before that one.

        A write is stored once: a task that runs again changes nothing, but for what it writes to special channels
        (error, interrupt, resume), whose last value stands.

        Raises:
            InvalidConfigError: `config` names no thread or no checkpoint.
            UnserializableValueError: A value cannot be stored; the message names its channel. Nothing is stored.

        Round trips: 1.
        """
        run_sync(put_writes(self._db, self.serde, config, writes, task_id, task_path))

    async def aput_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """Store what a task wrote; see `put_writes`."""
        await put_writes(self._adb, self.serde, config, writes, task_id, task_path)

    # --- get ---

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return the checkpoint that `config` names (by id or ULID), or the latest of its namespace.

        A checkpoint that was pruned is gone, unless delta channels of later ones are replayed from it: then this
        returns what is left, if asked for it by its id. That is the values that replays start from, the writes that
        are replayed, and the parent's config. LangGraph's own walk to a delta channel's history, which the Agent
        Server takes, depends on it. Its metadata are `{"pruned": True}`; a run that would start there raises
        ParentPrunedError. `list` does not show it, nor is it ever the latest.

        Returns:
            The checkpoint with its pending writes, or None if there is none.

        Raises:
            InvalidConfigError: `config` names no thread.
            CheckpointCorruptedError: A stored row cannot be read; the message says which.

        Round trips: 1; 1 more to fetch segments that this process neither put nor got.
        """
        return run_sync(get_tuple(self._db, self._codec, self._context.known, config))

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return the checkpoint that `config` names, or the latest; see `get_tuple`."""
        return await get_tuple(self._adb, self._codec, self._context.known, config)

    def get(self, config: RunnableConfig) -> Checkpoint | None:
        """Return the checkpoint of `get_tuple`, without what belongs to it."""
        found = self.get_tuple(config)
        return found.checkpoint if found else None

    async def aget(self, config: RunnableConfig) -> Checkpoint | None:
        """Return the checkpoint of `aget_tuple`, without what belongs to it."""
        found = await self.aget_tuple(config)
        return found.checkpoint if found else None

    def get_ulid(self, config: RunnableConfig) -> str | None:
        """Return the ULID of the checkpoint that `config` names, or of the latest; None if there is none.

        A ULID tells a checkpoint's place in the order of its thread, and is accepted wherever a
        checkpoint_id is.
        """
        return run_sync(get_ulid(self._db, config))

    async def aget_ulid(self, config: RunnableConfig) -> str | None:
        """Return the ULID of the checkpoint that `config` names, or of the latest; see `get_ulid`."""
        return await get_ulid(self._adb, config)

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
            config: The thread to list; all of its namespaces, or the one it names; None for every thread.
            filter: Metadata that a checkpoint must contain: nested dicts and lists may hold more, and None
                matches a None that is there.
            before: Only checkpoints older than the one this names, by id or ULID.
            limit: At most this many.

        Raises:
            InvalidConfigError: An argument cannot be used.
            CheckpointCorruptedError: A stored row cannot be read; the message says which.
        """
        return self._list(config, filter, before, limit).iterate(self._db)

    def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """Iterate over checkpoints, newest first; see `list`."""
        return self._list(config, filter, before, limit).aiterate(self._adb)

    # --- delta channels ---

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Return what delta channels are replayed from at the checkpoint that `config` names.

        Returns:
            For each channel the writes of the checkpoint's ancestors, oldest first, from the nearest ancestor
            that has the channel's value; that value is its `seed`, absent if no ancestor has one.

        Raises:
            TypeError: `channels` is one str.
            InvalidConfigError: `config` names no thread.
            CheckpointCorruptedError: A stored row is missing or cannot be read; the message says which.

        Round trips: 1, for any number of channels and ancestors; 1 more if seeds' segments must be fetched.
        """
        return run_sync(get_delta_channel_history(self._db, self._codec, config, channels))

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Return what delta channels are replayed from; see `get_delta_channel_history`."""
        return await get_delta_channel_history(self._adb, self._codec, config, channels)

    # --- versions ---

    def get_next_version(self, current: Any, channel: None) -> Any:
        """Return a channel's next version: the number after `current`, and a random part.

        The random part keeps branches apart that write the same channel; the zeros keep versions in order as text,
        beside those of the other savers too, which all have 32 digits. A thread that began with another width keeps
        it, and versions that are numbers stay numbers, so that old and new compare.
        """
        return next_version(current)

    def _list(
        self,
        config: RunnableConfig | None,
        filter_: dict[str, Any] | None,
        before: RunnableConfig | None,
        limit: int | None,
    ) -> Listing:
        return list_checkpoints(self._codec, self._context.metrics, config, filter_, before, limit)


def _given(pool: Any) -> BlockingConnections:
    if isinstance(pool, ConnectionPool):
        return GivenPool(pool)
    if isinstance(pool, Connection):
        return GivenConnection(pool)
    raise InvalidConfigError(
        f"pool must be a psycopg ConnectionPool or Connection, got {type(pool).__name__}"
        + ("; pass it as async_pool=" if isinstance(pool, (AsyncConnectionPool, AsyncConnection)) else "")
    )


def _async_given(pool: Any) -> AsyncConnections:
    if isinstance(pool, AsyncConnectionPool):
        return AsyncGivenPool(pool)
    if isinstance(pool, AsyncConnection):
        return AsyncGivenConnection(pool)
    raise InvalidConfigError(
        f"async_pool must be a psycopg AsyncConnectionPool or AsyncConnection, got {type(pool).__name__}"
        + ("; pass it as pool=" if isinstance(pool, (ConnectionPool, Connection)) else "")
    )


def _options(
    schema: str,
    indexed_metadata: Collection[str] | None,
    retry_timeout: float,
    segment_cache_bytes: int,
    segment_key: bytes | None,
    group_commit: bool,
) -> SaverOptions:
    """Check the settings that both constructors share."""
    if isinstance(indexed_metadata, str):
        raise TypeError(
            f"indexed_metadata must be a collection of keys, not one str: pass [{indexed_metadata!r}]"
        )
    return SaverOptions(
        schema=require_schema(schema),
        indexed_metadata=indexed_metadata,
        retry_timeout=require_seconds(retry_timeout, "retry_timeout"),
        segment_cache_bytes=require_cache_bytes(segment_cache_bytes),
        segment_key=require_segment_key(segment_key),
        group_commit=group_commit,
    )

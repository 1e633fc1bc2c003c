"""`DurableSaver`: the checkpoint saver that a graph is compiled with."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from datetime import timedelta
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

from langgraph_durable import _config
from langgraph_durable import schema as _schema
from langgraph_durable._connections import (
    AsyncConnections,
    AsyncGivenConnection,
    AsyncGivenPool,
    BlockingConnections,
    GivenConnection,
    GivenPool,
)
from langgraph_durable._database import SchemaCheck, run_now
from langgraph_durable._group_waiting import Groups
from langgraph_durable._metrics import Metrics, MetricSources
from langgraph_durable._pools import OwnPools
from langgraph_durable._saver_operations import SaverOperations, StoredCheckpoints
from langgraph_durable._segment_cache import DEFAULT_CACHE_BYTES, SegmentCache
from langgraph_durable._timeline import Timeline
from langgraph_durable.errors import InvalidConfig
from langgraph_durable.reports import EraseReceipt, PruneReport, StorageStats, SweepProgress, SweepReport
from langgraph_durable.timeline import TimelineEntry

_VERSION_DIGITS = 32
"""Of a new thread's versions: as many as other savers write, since a shorter number compares as newer than theirs."""


class DurableSaver(SaverOperations):
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
        filter_keys: Collection[str] | None = None,
        retry_timeout: float = 30.0,
        segment_cache_bytes: int = DEFAULT_CACHE_BYTES,
        hash_key: bytes | None = None,
        group_commit: bool = True,
    ) -> None:
        """Make a saver on pools or connections of yours, which stay yours to open and to close.

        Args:
            pool: A psycopg pool, or one connection, for the sync methods.
            async_pool: A psycopg asyncio pool, or one connection, for the async methods.
            schema: The database schema of the saver's tables.
            serde: The serializer of values and metadata; LangGraph's own by default.
            filter_keys: Metadata keys kept readable in the database, so that `list` filters on them there.
                Default: every key with a plain value, or, with an EncryptedSerializer, source, step and run_id.
            retry_timeout: Seconds for which transient faults are retried; 0 for not at all.
            segment_cache_bytes: What this process keeps, at most, of the segments that long lists and dicts are stored
                in, so that it neither sends nor fetches them again; shared with clones.
            hash_key: 16 to 64 secret bytes that the segments' names are made with. With an EncryptedSerializer long
                values are stored in segments only if it is given: names made without a key would tell equal contents.
                Keep it as long as what was stored with it, and give it to every saver that reads that.
            group_commit: Whether puts and put_writes that wait for the database at the same time go out together, in
                one transaction. Never on a single connection.

        Raises:
            InvalidConfig: Neither `pool` nor `async_pool` is given, or an argument cannot be used.
            TypeError: `filter_keys` is one str.
        """
        super().__init__(serde=serde)
        if pool is None and async_pool is None:
            raise InvalidConfig(
                "a saver needs a database: use DurableSaver.from_conn_string(...), or pass pool= and async_pool="
            )
        self._blocking: BlockingConnections | None = _given(pool) if pool is not None else None
        self._asynchronous: AsyncConnections | None = (
            _async_given(async_pool) if async_pool is not None else None
        )
        self._own: OwnPools | None = None
        self._configure(schema, filter_keys, retry_timeout, segment_cache_bytes, hash_key, group_commit)

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
        filter_keys: Collection[str] | None = None,
        retry_timeout: float = 30.0,
        segment_cache_bytes: int = DEFAULT_CACHE_BYTES,
        hash_key: bytes | None = None,
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
            filter_keys: See `DurableSaver`.
            retry_timeout: Seconds for which transient faults are retried; 0 for not at all.
            segment_cache_bytes: See `DurableSaver`.
            hash_key: See `DurableSaver`.
            group_commit: See `DurableSaver`.

        Raises:
            InvalidConfig: The connection string, a size or another argument cannot be used.
            TypeError: `filter_keys` is one str.
        """
        min_size, max_size = _config.require_pool_sizes(min_size, max_size)
        self = cls.__new__(cls)
        BaseCheckpointSaver.__init__(self, serde=serde)
        self._own = OwnPools(
            conninfo,
            min_size=min_size,
            max_size=max_size,
            timeout=_config.require_seconds(pool_timeout, "pool_timeout"),
            prepare_threshold=_config.require_prepare_threshold(prepare_threshold),
        )
        self._blocking = self._own.blocking
        self._asynchronous = self._own.asynchronous
        self._configure(schema, filter_keys, retry_timeout, segment_cache_bytes, hash_key, group_commit)
        return self

    def _configure(
        self,
        schema: str,
        filter_keys: Collection[str] | None,
        retry_timeout: float,
        segment_cache_bytes: int,
        hash_key: bytes | None,
        group_commit: bool,
    ) -> None:
        # LangGraph copies savers (with_allowlist): what is set here is shared by reference, and must be.
        if isinstance(filter_keys, str):
            raise TypeError(f"filter_keys must be a collection of keys, not one str: pass [{filter_keys!r}]")
        self.schema = _config.require_schema(schema)
        self._filter_keys = filter_keys
        self._retry_timeout = _config.require_seconds(retry_timeout, "retry_timeout")
        self._segments = SegmentCache(_config.require_cache_bytes(segment_cache_bytes))
        self._hash_key = _config.require_hash_key(hash_key)
        self._stored = StoredCheckpoints()
        self._metrics = Metrics()
        self._groups = Groups(self._metrics) if group_commit else None
        self._metric_sources = MetricSources(
            self._metrics, self._groups, self._segments, (self._blocking, self._asynchronous)
        )
        self._shared: dict[str, Any] = {}
        self._schema_check = SchemaCheck(lambda session: _schema.check_schema(session, self.schema))

    # --- lifetime ---

    @property
    def durable_saver(self) -> Self:
        """This saver.

        The base class has no such name, so a proxy that forwards what it lacks, as the Agent Server's adapter does,
        gives the saver behind it.
        """
        return self

    def close(self) -> None:
        """Close the saver's own pools; pools given to it stay open. Further calls raise SaverClosed."""
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
            SchemaOutOfDate: The tables are newer than this package, or, with `verify_only`, not current.
        """
        run_now(self._set_up(self._db, verify_only=verify_only))

    async def asetup(self, *, verify_only: bool = False) -> None:
        """Create or migrate the tables; see `setup`."""
        await self._set_up(self._adb, verify_only=verify_only)

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
            InvalidConfig: `config` names no thread.
            UnserializableValue: A value cannot be stored; the message names its channel. Nothing is stored.
            ThreadDeleted: The thread was deleted while this run was going. Nothing is stored.
            ParentPruned: The parent was pruned while this run was going, and delta channels are replayed from it.
                Nothing is stored.
            ParentMissing: The parent is not stored, and delta channels are replayed from it: a failover lost it, or
                checkpoints are imported children first. Nothing is stored.

        Round trips: 1; more if others deleted what this process knew to be stored.
        """
        return run_now(self._put(self._db, config, checkpoint, metadata, new_versions))

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint; see `put`."""
        return await self._put(self._adb, config, checkpoint, metadata, new_versions)

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
            InvalidConfig: `config` names no thread or no checkpoint.
            UnserializableValue: A value cannot be stored; the message names its channel. Nothing is stored.

        Round trips: 1.
        """
        run_now(self._put_writes(self._db, config, writes, task_id, task_path))

    async def aput_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """Store what a task wrote; see `put_writes`."""
        await self._put_writes(self._adb, config, writes, task_id, task_path)

    # --- get ---

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return the checkpoint that `config` names (by id or ULID), or the latest of its namespace.

        A checkpoint that was pruned is gone, unless delta channels of later ones are replayed from it: then this
        returns what is left, if asked for it by its id. That is the values that replays start from, the writes that
        are replayed, and the parent's config. LangGraph's own walk to a delta channel's history, which the Agent
        Server takes, depends on it. Its metadata are `{"pruned": True}`; a run that would start there raises
        ParentPruned. `list` does not show it, nor is it ever the latest.

        Returns:
            The checkpoint with its pending writes, or None if there is none.

        Raises:
            InvalidConfig: `config` names no thread.
            CheckpointCorrupted: A stored row cannot be read; the message says which.

        Round trips: 1; 1 more to fetch segments that this process neither put nor got.
        """
        return run_now(self._get_tuple(self._db, config))

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return the checkpoint that `config` names, or the latest; see `get_tuple`."""
        return await self._get_tuple(self._adb, config)

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
        return run_now(self._get_ulid(self._db, config))

    async def aget_ulid(self, config: RunnableConfig) -> str | None:
        """Return the ULID of the checkpoint that `config` names, or of the latest; see `get_ulid`."""
        return await self._get_ulid(self._adb, config)

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
            InvalidConfig: An argument cannot be used.
            CheckpointCorrupted: A stored row cannot be read; the message says which.
        """
        return self._listing(config, filter, before, limit).iterate(self._db)

    def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """Iterate over checkpoints, newest first; see `list`."""
        return self._listing(config, filter, before, limit).aiterate(self._adb)

    def timeline(self, thread_id: str) -> Iterator[TimelineEntry]:
        """Iterate over what happened in a thread, oldest first, fetched in pages; an unknown thread has nothing.

        No connection is held between pages. What is told, and in which order: see `langgraph_durable.timeline`.

        Raises:
            InvalidConfig: `thread_id` cannot be used.
        """
        return Timeline(self.serde, thread_id, self._metrics).iterate(self._db)

    def atimeline(self, thread_id: str) -> AsyncIterator[TimelineEntry]:
        """Iterate over what happened in a thread, oldest first; see `timeline`."""
        return Timeline(self.serde, thread_id, self._metrics).aiterate(self._adb)

    # --- delete ---

    def delete_thread(self, thread_id: str, *, force: bool = False) -> None:
        """Delete a thread: its checkpoints, values and writes in every namespace. An unknown one is no error.

        A run of the thread that is still going gets ThreadDeleted at its next save, instead of bringing half
        of the thread back. A run that starts from an input afterwards starts the thread afresh. Of its effects, that
        they took place is kept, without arguments, results, errors and notes.

        Args:
            thread_id: The thread's id.
            force: Whether also with effects that may have happened and that nobody has decided on.

        Raises:
            EffectUnresolved: There are such effects, and `force` is not given; nothing was deleted.
        """
        run_now(self._erase(self._db, thread_id, force=force))

    async def adelete_thread(self, thread_id: str, *, force: bool = False) -> None:
        """Delete a thread; see `delete_thread`."""
        await self._erase(self._adb, thread_id, force=force)

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints that runs made, in every thread and namespace.

        What surviving checkpoints' delta channels are replayed from stays; see `prune`.

        Raises:
            TypeError: `run_ids` is one str.
            InvalidConfig: `filter_keys` leaves out run_id, so that the database cannot tell runs.
        """
        run_now(self._delete_for_runs(self._db, run_ids))

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints that runs made; see `delete_for_runs`."""
        await self._delete_for_runs(self._adb, run_ids)

    def erase(self, thread_id: str, *, force: bool = False) -> EraseReceipt:
        """Delete a thread as `delete_thread` does, and return a receipt: rows and bytes, time, ULID."""
        return run_now(self._erase(self._db, thread_id, force=force))

    async def aerase(self, thread_id: str, *, force: bool = False) -> EraseReceipt:
        """Delete a thread and return a receipt; see `erase`."""
        return await self._erase(self._adb, thread_id, force=force)

    # --- prune, copy, sweep ---

    # A report, where LangGraph's method returns None: nobody depends on getting nothing.
    def prune(  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        thread_ids: Sequence[str],
        *,
        strategy: str = "keep_latest",
        keep_last: int | None = None,
        older_than: timedelta | None = None,
        dry_run: bool = False,
    ) -> PruneReport:
        """Delete old checkpoints of threads; unknown threads are no error.

        The state of every checkpoint that survives stays as it is: its values, its pending writes, and what its
        delta channels are replayed from. The namespace of a subgraph's call goes with the root checkpoint that
        it started from. Safe beside a running graph. Each thread is pruned in a transaction of its own.

        Args:
            thread_ids: The threads to prune.
            strategy: "keep_latest", or "delete" for everything; "delete_all", as the Agent Server says, is the same.
            keep_last: How many checkpoints each namespace keeps; 1 by default.
            older_than: Only checkpoints at least this old are deleted, by the server's clock at their put.
            dry_run: Only count.

        Returns:
            Rows and bytes removed, by thread and table.

        Raises:
            TypeError: `thread_ids` is one str.
            InvalidConfig: An argument cannot be used.
            PruneFailed: Some threads could not be pruned; the others were.
        """
        policy = _config.require_policy(strategy, keep_last, older_than)
        return run_now(self._prune(self._db, thread_ids, policy, dry_run))

    async def aprune(  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        thread_ids: Sequence[str],
        *,
        strategy: str = "keep_latest",
        keep_last: int | None = None,
        older_than: timedelta | None = None,
        dry_run: bool = False,
    ) -> PruneReport:
        """Delete old checkpoints of threads; see `prune`."""
        policy = _config.require_policy(strategy, keep_last, older_than)
        return await self._prune(self._adb, thread_ids, policy, dry_run)

    def compact(self, graph: Any, thread_ids: Sequence[str]) -> PruneReport:
        """Fold the delta channels of threads into snapshots, then prune each namespace to its latest checkpoint.

        Where `prune` must keep the ancestors that delta channels are replayed from, this keeps only the value.
        That a thread's state is the same before and after is proved before anything is committed.

        Args:
            graph: The compiled graph of the threads, whose checkpointer is this saver.
            thread_ids: The threads to compact; unknown ones are no error.

        Raises:
            TypeError: `thread_ids` is one str.
            InvalidConfig: The graph has another saver, or none.
            PruneFailed: Some threads could not be compacted, and are as they were; the others were.
        """

        async def get_state(config: RunnableConfig) -> Any:
            return graph.get_state(config)

        return run_now(self._compact(self._db, graph, get_state, thread_ids))

    async def acompact(self, graph: Any, thread_ids: Sequence[str]) -> PruneReport:
        """Fold the delta channels of threads, then prune them; see `compact`."""

        async def get_state(config: RunnableConfig) -> Any:
            return await graph.aget_state(config)

        return await self._compact(self._adb, graph, get_state, thread_ids)

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy a thread, on the server: every checkpoint, value and write, in every namespace, as of one moment.

        Its effects are copied with it: the copy is given the outcomes of those that were done, and what may have
        happened waits for a decision there too. An unknown thread copies nothing.

        Raises:
            InvalidConfig: Source and target are one.
            ThreadExists: The target has checkpoints.

        Round trips: 1.
        """
        run_now(self._copy_thread(self._db, source_thread_id, target_thread_id))

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy a thread; see `copy_thread`."""
        await self._copy_thread(self._adb, source_thread_id, target_thread_id)

    def sweep(
        self,
        *,
        older_than: timedelta | None = None,
        keep_last: int | None = None,
        dry_run: bool = False,
        after: str = "",
        progress: Callable[[SweepProgress], object] | None = None,
        effects_older_than: timedelta | None = None,
    ) -> SweepReport:
        """Prune every thread, one small transaction each, and remove writes whose checkpoint never came.

        Args:
            older_than: See `prune`.
            keep_last: See `prune`.
            dry_run: Only count.
            after: Resume after this thread, as `progress` named it.
            progress: Called after every few threads.
            effects_older_than: Drop the arguments and results of effects that ended at least so long ago, and the
                errors and notes in their history; by default none. That they took place is kept, and so is what
                nobody has decided on.

        Raises:
            InvalidConfig: An argument cannot be used, or neither `older_than` nor `keep_last` is given.
            PruneFailed: Some threads could not be pruned; all else was done.
        """
        policy = _config.require_sweep_policy(keep_last, older_than)
        effects = _config.require_age(effects_older_than, "effects_older_than")
        return run_now(self._sweep(self._db, policy, dry_run, after, progress, effects))

    async def asweep(
        self,
        *,
        older_than: timedelta | None = None,
        keep_last: int | None = None,
        dry_run: bool = False,
        after: str = "",
        progress: Callable[[SweepProgress], object] | None = None,
        effects_older_than: timedelta | None = None,
    ) -> SweepReport:
        """Prune every thread; see `sweep`."""
        policy = _config.require_sweep_policy(keep_last, older_than)
        effects = _config.require_age(effects_older_than, "effects_older_than")
        return await self._sweep(self._adb, policy, dry_run, after, progress, effects)

    # --- statistics ---

    def storage_stats(self, thread_id: str | None = None) -> StorageStats:
        """Return what checkpoints take in the database, and what they would take without segments and compression.

        Args:
            thread_id: The thread to look at; None for all. Of a thread, indexes and free space are not counted.

        Raises:
            InvalidConfig: `thread_id` cannot be used.

        Round trips: 1, but every row is looked at.
        """
        return run_now(self._storage_stats(self._db, thread_id))

    async def astorage_stats(self, thread_id: str | None = None) -> StorageStats:
        """Return what checkpoints take in the database; see `storage_stats`."""
        return await self._storage_stats(self._adb, thread_id)

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
            InvalidConfig: `config` names no thread.
            CheckpointCorrupted: A stored row is missing or cannot be read; the message says which.

        Round trips: 1, for any number of channels and ancestors; 1 more if seeds' segments must be fetched.
        """
        return run_now(self._get_history(self._db, config, channels))

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Return what delta channels are replayed from; see `get_delta_channel_history`."""
        return await self._get_history(self._adb, config, channels)

    # --- versions ---

    def get_next_version(self, current: Any, channel: None) -> Any:
        """Return a channel's next version: the number after `current`, and a random part.

        The random part keeps branches apart that write the same channel; the zeros keep versions in order as text,
        beside those of the other savers too, which all have 32 digits. A thread that began with another width keeps
        it, and versions that are numbers stay numbers, so that old and new compare.
        """
        if isinstance(current, (int, float)):  # of a thread from another saver
            return int(current) + 1 + random.random()  # noqa: S311 (unique, not secret)
        digits = current.partition(".")[0] if current else "0" * _VERSION_DIGITS
        return f"{int(digits) + 1:0{len(digits)}}.{random.getrandbits(52):013x}"


def require_saver(saver: Any, user: str) -> DurableSaver:
    """Return the DurableSaver that something is, or stands in front of.

    Raises:
        InvalidConfig: It is none.
    """
    found = getattr(saver, "durable_saver", None)
    if not isinstance(found, DurableSaver):
        raise InvalidConfig(
            f"{user} needs a DurableSaver, got {type(saver).__name__}: pass DurableSaver.from_conn_string(...), or "
            "compile the graph with it as checkpointer"
        )
    return found


def _given(pool: Any) -> BlockingConnections:
    if isinstance(pool, ConnectionPool):
        return GivenPool(pool)
    if isinstance(pool, Connection):
        return GivenConnection(pool)
    raise InvalidConfig(
        f"pool must be a psycopg ConnectionPool or Connection, got {type(pool).__name__}"
        + ("; pass it as async_pool=" if isinstance(pool, (AsyncConnectionPool, AsyncConnection)) else "")
    )


def _async_given(pool: Any) -> AsyncConnections:
    if isinstance(pool, AsyncConnectionPool):
        return AsyncGivenPool(pool)
    if isinstance(pool, AsyncConnection):
        return AsyncGivenConnection(pool)
    raise InvalidConfig(
        f"async_pool must be a psycopg AsyncConnectionPool or AsyncConnection, got {type(pool).__name__}"
        + ("; pass it as pool=" if isinstance(pool, (ConnectionPool, Connection)) else "")
    )

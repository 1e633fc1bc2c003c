"""`DurableSaver`: the checkpoint saver that a graph is compiled with."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from dataclasses import replace
from types import TracebackType
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
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from psycopg import AsyncConnection, Connection
from psycopg_pool import AsyncConnectionPool, ConnectionPool
from typing_extensions import Self
from ulid import ULID

from langgraph_durable import _checkpoints, _codec, _config
from langgraph_durable import schema as _schema
from langgraph_durable._checkpoints import CheckpointWalk
from langgraph_durable._connections import (
    AsyncConnections,
    AsyncGivenConnection,
    AsyncGivenPool,
    BlockingConnections,
    GivenConnection,
    GivenPool,
)
from langgraph_durable._database import AsyncDatabase, BlockingDatabase, Database, SchemaCheck, run_now
from langgraph_durable._listing import Listing
from langgraph_durable._pools import OwnPools
from langgraph_durable._rows import StoredCheckpoint
from langgraph_durable._ulids import show_ulid
from langgraph_durable.errors import InvalidConfig


class DurableSaver(BaseCheckpointSaver[str]):
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

    Source: design/contract.md, design/storage.md.
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

        Raises:
            InvalidConfig: Neither `pool` nor `async_pool` is given, or one is something else.
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
        self._configure(schema, filter_keys, retry_timeout)

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

        Raises:
            InvalidConfig: The connection string or a size cannot be used.
        """
        if not 0 <= min_size <= max_size or max_size < 1:
            raise InvalidConfig(
                f"pool sizes must be 0 <= min_size <= max_size, got min_size={min_size}, max_size={max_size}"
            )
        self = cls.__new__(cls)
        BaseCheckpointSaver.__init__(self, serde=serde)
        self._own = OwnPools(
            conninfo,
            min_size=min_size,
            max_size=max_size,
            timeout=pool_timeout,
            prepare_threshold=prepare_threshold,
        )
        self._blocking = self._own.blocking
        self._asynchronous = self._own.asynchronous
        self._configure(schema, filter_keys, retry_timeout)
        return self

    def _configure(self, schema: str, filter_keys: Collection[str] | None, retry_timeout: float) -> None:
        # LangGraph copies savers (with_allowlist): what is set here is shared by reference, and must be.
        if not schema:
            raise InvalidConfig('schema must name a database schema, got ""')
        if isinstance(filter_keys, str):
            raise TypeError(f"filter_keys must be a collection of keys, not one str: pass [{filter_keys!r}]")
        self.schema = _config.require_text(schema, "schema")
        self._filter_keys = filter_keys
        self._retry_timeout = retry_timeout
        self._schema_check = SchemaCheck(lambda session: _schema.check_schema(session, self.schema))

    # --- lifetime ---

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
        run_now(_schema.verify(self._db) if verify_only else _schema.set_up(self._db))

    async def asetup(self, *, verify_only: bool = False) -> None:
        """Create or migrate the tables; see `setup`."""
        await (_schema.verify(self._adb) if verify_only else _schema.set_up(self._adb))

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

        Round trips: 1.
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

        A write is stored once: a task that runs again changes nothing, unless all it writes is to special
        channels (error, interrupt, resume), whose last value stands.

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

        Returns:
            The checkpoint with its pending writes, or None if there is none.

        Raises:
            InvalidConfig: `config` names no thread.
            CheckpointCorrupted: A stored row cannot be read; the message says which.

        Round trips: 1.
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

    # --- delete ---

    def delete_thread(self, thread_id: str) -> None:
        """Delete a thread: its checkpoints, values and writes in every namespace. An unknown one is no error.

        A run of the thread that is still going gets ThreadDeleted at its next save, instead of bringing half
        of the thread back. A run that starts from an input afterwards starts the thread afresh.
        """
        run_now(self._delete_thread(self._db, thread_id))

    async def adelete_thread(self, thread_id: str) -> None:
        """Delete a thread; see `delete_thread`."""
        await self._delete_thread(self._adb, thread_id)

    # --- versions ---

    def get_next_version(self, current: Any, channel: None) -> Any:
        """Return a channel's next version: the number after `current`, and a random part.

        The random part keeps branches apart that write the same channel; the zeros keep versions in order
        as text. A version from another saver keeps its width, or stays a number, so that old and new compare.
        """
        if isinstance(current, (int, float)):  # of a thread from another saver
            return int(current) + 1 + random.random()  # noqa: S311 (unique, not secret)
        digits = current.partition(".")[0] if current else "0000000000"
        return f"{int(digits) + 1:0{len(digits)}}.{random.getrandbits(52):013x}"

    # --- each operation, once, over either database ---

    @property
    def _db(self) -> BlockingDatabase:
        if self._blocking is None:
            raise InvalidConfig(
                "a sync method was called on a saver that was given only async_pool=: pass pool= too, or use "
                "DurableSaver.from_conn_string(...), which serves both"
            )
        return BlockingDatabase(self._blocking, self.schema, self._retry_timeout, self._schema_check)

    @property
    def _adb(self) -> AsyncDatabase:
        if self._asynchronous is None:
            raise InvalidConfig(
                "an async method was called on a saver that was given only pool=: pass async_pool= too, or use "
                "DurableSaver.from_conn_string(...), which serves both"
            )
        return AsyncDatabase(self._asynchronous, self.schema, self._retry_timeout, self._schema_check)

    async def _put(
        self,
        db: Database,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        ref = _config.checkpoint_ref(config)
        if ref.checkpoint_id is not None:
            parent_id = await _checkpoints.resolve_checkpoint_id(db, ref, ref.checkpoint_id)
            ref = replace(ref, checkpoint_id=parent_id)
        row = _codec.encode_checkpoint(
            self.serde, self._index_keys, ref, config, checkpoint, metadata, new_versions
        )
        await _checkpoints.put_checkpoint(db, row)
        return _codec.config_of(row, row.checkpoint_id)

    async def _put_writes(
        self,
        db: Database,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str,
    ) -> None:
        ref, checkpoint_id = _config.stored_checkpoint_ref(config)
        rows = _codec.encode_writes(self.serde, ref, writes, _config.require_text(task_id, "task_id"))
        if rows:
            await _checkpoints.put_writes(
                db,
                ref,
                await _checkpoints.resolve_checkpoint_id(db, ref, checkpoint_id),
                rows,
                task_id,
                _config.require_text(task_path, "task_path"),
                last_wins=_codec.may_overwrite(writes),
            )

    async def _get_tuple(self, db: Database, config: RunnableConfig) -> CheckpointTuple | None:
        stored = await _checkpoints.get_checkpoint(db, _config.checkpoint_ref(config))
        return self._decode(stored) if stored is not None else None

    async def _get_ulid(self, db: Database, config: RunnableConfig) -> str | None:
        stored = await _checkpoints.get_checkpoint(db, _config.checkpoint_ref(config))
        return show_ulid(stored.ulid) if stored is not None else None

    async def _delete_thread(self, db: Database, thread_id: str) -> None:
        await _checkpoints.delete_thread(db, _config.require_thread_id(thread_id), ULID().to_uuid())

    def _listing(
        self,
        config: RunnableConfig | None,
        filter_: dict[str, Any] | None,
        before: RunnableConfig | None,
        limit: int | None,
    ) -> Listing:
        wanted = _config.require_filter(filter_)
        walk = CheckpointWalk(
            _config.checkpoint_ref(config) if config is not None else None,
            _config.before_ref(before, config) if before is not None else None,
            wanted,
        )
        return Listing(walk, self._decode, wanted, _config.require_limit(limit))

    def _decode(self, stored: StoredCheckpoint) -> CheckpointTuple:
        return _codec.decode_checkpoint(self.serde, stored, next_version=self.get_next_version)

    @property
    def _index_keys(self) -> Collection[str] | None:
        # Asked at every put, since LangGraph and callers reassign serde.
        if self._filter_keys is None and isinstance(self.serde, EncryptedSerializer):
            return _codec.DEFAULT_FILTER_KEYS
        return self._filter_keys


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

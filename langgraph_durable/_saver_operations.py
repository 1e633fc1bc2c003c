"""What each method of the saver does, written once, over either database: check, encode, operate, decode."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import cached_property
from typing import Any

import psycopg
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
from ulid import ULID

from langgraph_durable._checkpoints import history as _history
from langgraph_durable._checkpoints.codec import (
    DEFAULT_INDEXED_METADATA,
    config_of,
    decode_ancestor,
    decode_checkpoint,
    decode_history,
    encode_checkpoint,
    encode_writes,
    may_overwrite,
)
from langgraph_durable._checkpoints.filters import require_filter
from langgraph_durable._checkpoints.listing import CheckpointWalk, Listing
from langgraph_durable._checkpoints.put import put_checkpoint, put_writes
from langgraph_durable._checkpoints.read import get_checkpoint, resolve_checkpoint_id
from langgraph_durable._checkpoints.refs import before_ref, checkpoint_ref, stored_checkpoint_ref
from langgraph_durable._checkpoints.rows import Fold, StoredCheckpoint
from langgraph_durable._checkpoints.serialization import encrypts
from langgraph_durable._checkpoints.ulids import format_ulid
from langgraph_durable._metrics import Metrics, MetricSources, measured
from langgraph_durable._postgres.connections import AsyncConnections, BlockingConnections
from langgraph_durable._postgres.database import Database, SchemaCheck
from langgraph_durable._postgres.drivers import AsyncDatabase, BlockingDatabase
from langgraph_durable._postgres.group_waiters import GroupCommitters
from langgraph_durable._postgres.migrate import set_up, verify
from langgraph_durable._retention.compact import GetState, fold_checkpoint, graph_has
from langgraph_durable._retention.copy import copy_thread
from langgraph_durable._retention.erase import erase, erase_thread
from langgraph_durable._retention.plan import newest_survive
from langgraph_durable._retention.policy import Policy
from langgraph_durable._retention.prune import (
    Choice,
    keep_newest,
    keep_other_runs,
    list_nodes,
    remove_checkpoints,
    threads_of_runs,
)
from langgraph_durable._retention.prune_all import count_threads, delete_orphans, next_threads
from langgraph_durable._retention.stats import storage_stats
from langgraph_durable._segments.cache import SegmentCache
from langgraph_durable._segments.reading import SegmentReader
from langgraph_durable._segments.values import open_segment
from langgraph_durable._validation import require_ids, require_limit, require_text, require_thread_id
from langgraph_durable.effects import _store as _effects_ops
from langgraph_durable.errors import (
    CheckpointCorruptedError,
    CompactionRefusedError,
    EffectUnresolvedError,
    InvalidConfigError,
    PruneFailedError,
    UnserializableValueError,
)
from langgraph_durable.reports import (
    DeleteReceipt,
    PruneAllReport,
    PruneProgress,
    PruneReport,
    Removed,
    SaverMetrics,
    StorageStats,
)

_SWEEP_BATCH = 50
_OF_ONE_THREAD = (
    CheckpointCorruptedError,
    CompactionRefusedError,
    EffectUnresolvedError,
    UnserializableValueError,
)
"""What keeps one thread from being pruned, and tells nothing of the others."""


class StoredCheckpoints:
    """The checkpoints that this process put or got last, so that whoever must know them stored need not ask."""

    _generation = 4096

    def __init__(self) -> None:
        self._older: dict[tuple[str, str, str], None] = {}
        self._newer: dict[tuple[str, str, str], None] = {}
        self.coming: dict[tuple[str, str], asyncio.AbstractEventLoop] = {}
        """Threads and namespaces, and the event loops that put checkpoints of them just now."""

    def note(self, thread_id: str, checkpoint_ns: str, checkpoint_id: str) -> None:
        """Remember one. Threads may come between any two lines: the worst is to forget, and then to ask."""
        self._newer[thread_id, checkpoint_ns, checkpoint_id] = None
        if len(self._newer) >= self._generation:
            self._older, self._newer = self._newer, {}

    def __contains__(self, key: tuple[str, str, str]) -> bool:
        return key in self._newer or key in self._older


class SaverOperations(BaseCheckpointSaver[str]):
    """The half of DurableSaver that does not wait."""

    schema: str
    _blocking: BlockingConnections | None
    _asynchronous: AsyncConnections | None
    _indexed_metadata: Collection[str] | None
    _segment_key: bytes | None
    _segments: SegmentCache
    _retry_timeout: float
    _schema_check: SchemaCheck
    _stored: StoredCheckpoints
    _committers: GroupCommitters | None
    _metrics: Metrics
    _metric_sources: MetricSources
    _shared: dict[str, Any]
    """What a saver and its copies have in common: the effect log."""

    @cached_property
    def _db(self) -> BlockingDatabase:
        if self._blocking is None:
            raise InvalidConfigError(
                "a sync method was called on a saver that was given only async_pool=: pass pool= too, or use "
                "DurableSaver.from_conn_string(...), which serves both"
            )
        return BlockingDatabase(
            self._blocking,
            self.schema,
            self._retry_timeout,
            self._schema_check,
            self._committers,
            self._metrics,
        )

    @cached_property
    def _adb(self) -> AsyncDatabase:
        if self._asynchronous is None:
            raise InvalidConfigError(
                "an async method was called on a saver that was given only pool=: pass async_pool= too, or use "
                "DurableSaver.from_conn_string(...), which serves both"
            )
        return AsyncDatabase(
            self._asynchronous,
            self.schema,
            self._retry_timeout,
            self._schema_check,
            self._committers,
            self._metrics,
        )

    @measured("setup")
    async def _set_up(self, db: Database, *, verify_only: bool) -> None:
        await (verify(db) if verify_only else set_up(db))

    @measured("put")
    async def _put(
        self,
        db: Database,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        ref = checkpoint_ref(config)
        if ref.checkpoint_id is not None:
            parent_id = await resolve_checkpoint_id(db, ref, ref.checkpoint_id)
            if parent_id != ref.checkpoint_id:
                ref = replace(ref, checkpoint_id=parent_id)
        row = encode_checkpoint(
            self.serde,
            self._index_keys,
            self._segment_key,
            ref,
            config,
            checkpoint,
            metadata,
            new_versions,
        )
        place = row.thread_id, row.checkpoint_ns
        if isinstance(db, AsyncDatabase):
            self._stored.coming[place] = asyncio.get_running_loop()
        try:
            await put_checkpoint(db, row, self._segments)
        finally:
            self._stored.coming.pop(place, None)
        self._stored.note(*place, row.checkpoint_id)
        return config_of(row, row.checkpoint_id)

    @measured("put_writes")
    async def _put_writes(
        self,
        db: Database,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str,
    ) -> None:
        ref, checkpoint_id = stored_checkpoint_ref(config)
        rows = encode_writes(self.serde, ref, writes, require_text(task_id, "task_id"))
        if rows:
            await put_writes(
                db,
                ref,
                await resolve_checkpoint_id(db, ref, checkpoint_id),
                rows,
                task_id,
                require_text(task_path, "task_path"),
                last_wins=may_overwrite(writes),
            )

    @measured("get_tuple")
    async def _get_tuple(self, db: Database, config: RunnableConfig) -> CheckpointTuple | None:
        ref = checkpoint_ref(config)
        stored = await get_checkpoint(db, ref, self._reader, or_ancestor=True)
        if stored is None:
            return None
        if stored.metadata is None:
            return decode_ancestor(self.serde, stored)
        self._stored.note(stored.thread_id, stored.checkpoint_ns, stored.checkpoint_id)
        return self._decode(stored)

    @measured("get_ulid")
    async def _get_ulid(self, db: Database, config: RunnableConfig) -> str | None:
        stored = await get_checkpoint(db, checkpoint_ref(config), None)
        return format_ulid(stored.ulid) if stored is not None else None

    @measured("delete_thread")
    async def _erase(self, db: Database, thread_id: str, *, force: bool) -> DeleteReceipt:
        return await erase_thread(db, require_thread_id(thread_id), _new_ulid(), force=force)

    @measured("delete_for_runs")
    async def _delete_for_runs(self, db: Database, run_ids: Sequence[str]) -> None:
        wanted = require_ids(run_ids, "run_ids")
        if self._index_keys is not None and "run_id" not in self._index_keys:
            raise InvalidConfigError(
                "delete_for_runs cannot tell the runs: this saver's indexed_metadata leave out run_id. Make it with "
                "indexed_metadata that have it"
            )
        threads = await threads_of_runs(db, wanted) if wanted else []
        await self._remove_from(db, threads, keep_other_runs(wanted), dry_run=False)

    @measured("prune")
    async def _prune(
        self, db: Database, thread_ids: Sequence[str], policy: Policy, dry_run: bool
    ) -> PruneReport:
        wanted = require_ids(thread_ids, "thread_ids")
        if policy.keep_last > 0:
            choose = keep_newest(policy.keep_last, policy.older_than)
            return await self._remove_from(db, wanted, choose, dry_run=dry_run)
        return await _from_each(
            wanted,
            lambda thread_id: erase(db, thread_id, _new_ulid(), dry_run=dry_run),
            dry_run=dry_run,
        )

    @measured("compact")
    async def _compact(
        self, db: Database, graph: Any, get_state: GetState, thread_ids: Sequence[str]
    ) -> PruneReport:
        wanted = require_ids(thread_ids, "thread_ids")
        if not self._is_of(graph):
            raise InvalidConfigError(
                "compact needs a graph compiled with this saver, since it folds channels with the graph's own "
                "reducers: builder.compile(checkpointer=saver)"
            )
        newest = keep_newest(1, None)

        async def fold(thread_id: str) -> list[Fold]:
            nodes = await list_nodes(db, thread_id)
            survivors = newest_survive(nodes, 1, None)
            latest = [n for n in nodes if n.key in survivors and n.delta_channels]
            folded = [n for n in latest if graph_has(graph, n.checkpoint_ns)]
            folds = [
                await fold_checkpoint(
                    db, thread_id, node, get_state, self.serde, self._segment_key, self._reader, self._decode
                )
                for node in folded
            ]
            return [made for made in folds if made is not None]

        return await self._remove_from(db, wanted, newest, dry_run=False, fold=fold)

    def metrics(self) -> SaverMetrics:
        """Return what this saver and its clones have counted in this process; asks no database.

        Pools of event loops that have ended are no more counted.
        """
        return self._metric_sources.read()

    def _is_of(self, graph: Any) -> bool:
        """Tell whether a graph has this saver, or a clone of it, which shares its connections."""
        saver = getattr(getattr(graph, "checkpointer", None), "durable_saver", None)
        if not isinstance(saver, SaverOperations):
            return False
        mine, its = (self._blocking, self._asynchronous), (saver._blocking, saver._asynchronous)
        return mine == its and self.schema == saver.schema

    async def _remove_from(
        self,
        db: Database,
        thread_ids: Iterable[str],
        choose: Choice,
        *,
        dry_run: bool,
        fold: Callable[[str], Awaitable[list[Fold]]] | None = None,
    ) -> PruneReport:
        async def remove(thread_id: str) -> Removed:
            folds = await fold(thread_id) if fold is not None else []
            return await remove_checkpoints(db, self._reader, thread_id, choose, dry_run=dry_run, folds=folds)

        return await _from_each(thread_ids, remove, dry_run=dry_run)

    @measured("copy_thread")
    async def _copy_thread(self, db: Database, source: str, target: str) -> None:
        source, target = require_thread_id(source), require_thread_id(target)
        if source == target:
            raise InvalidConfigError(f"thread {source!r} cannot be copied onto itself: choose another target")
        await copy_thread(db, source, target)

    @measured("prune_all")
    async def _prune_all(
        self,
        db: Database,
        policy: Policy,
        dry_run: bool,
        after: str,
        progress: Callable[[PruneProgress], object] | None,
        effects_older_than: timedelta | None,
    ) -> PruneAllReport:
        choose = keep_newest(policy.keep_last, policy.older_than)
        require_text(after, "after")
        total = await count_threads(db) if progress is not None else 0
        seen, pruned, removed = 0, 0, Removed({}, {})
        failures: dict[str, Exception] = {}
        while batch := await next_threads(db, after, _SWEEP_BATCH):
            try:
                report = await self._remove_from(db, batch, choose, dry_run=dry_run)
            except PruneFailedError as exc:
                report = exc.report
                failures |= exc.failures
            after = batch[-1]
            seen, pruned = seen + len(batch), pruned + len(report.threads)
            removed = Removed.sum([removed, report.total])
            if progress is not None:
                progress(PruneProgress(after, seen, total, removed))
        orphans = await delete_orphans(db, dry_run=dry_run)
        expired = 0
        if effects_older_than is not None:
            expired = await _effects_ops.expire_effects(db, effects_older_than, dry_run=dry_run)
        if failures:
            raise PruneFailedError(PruneReport({}, dry_run), failures) from next(iter(failures.values()))
        orphaned = await _effects_ops.count_orphans(db)
        return PruneAllReport(seen, pruned, removed, orphans, dry_run, expired, orphaned)

    @measured("storage_stats")
    async def _storage_stats(self, db: Database, thread_id: str | None) -> StorageStats:
        return await storage_stats(db, require_thread_id(thread_id) if thread_id is not None else None)

    @measured("get_delta_channel_history")
    async def _get_history(
        self, db: Database, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        wanted = require_ids(channels, "channels")
        if not wanted:
            return {}
        ref = checkpoint_ref(config)
        where = f"thread {ref.thread_id!r}, namespace {ref.namespace!r}, checkpoint {ref.checkpoint_id!r}"
        found = await _history.get_delta_history(db, ref, wanted, self._reader)
        return {c: decode_history(self.serde, c, history, where) for c, history in found.items()}

    def _listing(
        self,
        config: RunnableConfig | None,
        filter_: dict[str, Any] | None,
        before: RunnableConfig | None,
        limit: int | None,
    ) -> Listing:
        wanted = require_filter(filter_)
        walk = CheckpointWalk(
            checkpoint_ref(config) if config is not None else None,
            before_ref(before, config) if before is not None else None,
            wanted,
        )
        limit = require_limit(limit)
        return Listing(walk, self._reader, self._decode, self.serde, wanted, limit, self._metrics)

    def _decode(self, stored: StoredCheckpoint, serde: SerializerProtocol | None = None) -> CheckpointTuple:
        serde = self.serde if serde is None else serde
        return decode_checkpoint(serde, stored, next_version=self.get_next_version)

    @property
    def _reader(self) -> SegmentReader:
        # Made at every call, since LangGraph and callers reassign serde.
        cipher = self.serde.cipher if encrypts(self.serde) else None
        return SegmentReader(
            self._segments, lambda hash_, data: open_segment(hash_, data, self._segment_key, cipher)
        )

    @property
    def _index_keys(self) -> Collection[str] | None:
        # Asked at every put, since LangGraph and callers reassign serde.
        if self._indexed_metadata is None and encrypts(self.serde):
            return DEFAULT_INDEXED_METADATA
        return self._indexed_metadata


async def _from_each(
    thread_ids: Iterable[str], remove: Callable[[str], Awaitable[Removed]], *, dry_run: bool
) -> PruneReport:
    """Remove from each thread by itself: where one fails, the others have lost what they were to lose."""
    threads: dict[str, Removed] = {}
    failures: dict[str, Exception] = {}
    for thread_id in thread_ids:
        try:
            removed = await remove(thread_id)
        except (psycopg.Error, *_OF_ONE_THREAD) as exc:
            failures[thread_id] = exc
            continue
        if removed.total_rows:
            threads[thread_id] = removed
    report = PruneReport(threads, dry_run)
    if failures:
        raise PruneFailedError(report, failures) from next(iter(failures.values()))
    return report


def _new_ulid() -> uuid.UUID:
    return uuid.UUID(bytes=ULID().bytes)

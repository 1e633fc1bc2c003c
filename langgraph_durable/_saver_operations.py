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

from langgraph_durable import _checkpoints, _codec, _config, _effects_ops, _history, _retention, schema
from langgraph_durable._checkpoints import CheckpointWalk
from langgraph_durable._compaction import GetState, fold_checkpoint, graph_has
from langgraph_durable._config import Policy
from langgraph_durable._connections import AsyncConnections, BlockingConnections
from langgraph_durable._database import AsyncDatabase, BlockingDatabase, Database, SchemaCheck
from langgraph_durable._group_waiting import Groups
from langgraph_durable._listing import Listing
from langgraph_durable._metrics import Metrics, MetricSources, measured
from langgraph_durable._pruning import newest_survive
from langgraph_durable._rows import Fold, StoredCheckpoint
from langgraph_durable._segment_cache import SegmentCache
from langgraph_durable._segment_reading import SegmentReader
from langgraph_durable._segments import open_segment
from langgraph_durable._storage import storage_stats
from langgraph_durable._ulids import show_ulid
from langgraph_durable.errors import (
    CheckpointCorrupted,
    CompactionRefused,
    EffectUnresolved,
    InvalidConfig,
    PruneFailed,
    UnserializableValue,
)
from langgraph_durable.reports import (
    EraseReceipt,
    PruneReport,
    Removed,
    SaverMetrics,
    StorageStats,
    SweepProgress,
    SweepReport,
)

_SWEEP_BATCH = 50
_OF_ONE_THREAD = (CheckpointCorrupted, CompactionRefused, EffectUnresolved, UnserializableValue)
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
    _filter_keys: Collection[str] | None
    _hash_key: bytes | None
    _segments: SegmentCache
    _retry_timeout: float
    _schema_check: SchemaCheck
    _stored: StoredCheckpoints
    _groups: Groups | None
    _metrics: Metrics
    _metric_sources: MetricSources
    _shared: dict[str, Any]
    """What a saver and its copies have in common: the effect log."""

    @cached_property
    def _db(self) -> BlockingDatabase:
        if self._blocking is None:
            raise InvalidConfig(
                "a sync method was called on a saver that was given only async_pool=: pass pool= too, or use "
                "DurableSaver.from_conn_string(...), which serves both"
            )
        return BlockingDatabase(
            self._blocking, self.schema, self._retry_timeout, self._schema_check, self._groups, self._metrics
        )

    @cached_property
    def _adb(self) -> AsyncDatabase:
        if self._asynchronous is None:
            raise InvalidConfig(
                "an async method was called on a saver that was given only pool=: pass async_pool= too, or use "
                "DurableSaver.from_conn_string(...), which serves both"
            )
        return AsyncDatabase(
            self._asynchronous,
            self.schema,
            self._retry_timeout,
            self._schema_check,
            self._groups,
            self._metrics,
        )

    @measured("setup")
    async def _set_up(self, db: Database, *, verify_only: bool) -> None:
        await (schema.verify(db) if verify_only else schema.set_up(db))

    @measured("put")
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
            if parent_id != ref.checkpoint_id:
                ref = replace(ref, checkpoint_id=parent_id)
        row = _codec.encode_checkpoint(
            self.serde,
            self._index_keys,
            self._hash_key,
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
            await _checkpoints.put_checkpoint(db, row, self._segments)
        finally:
            self._stored.coming.pop(place, None)
        self._stored.note(*place, row.checkpoint_id)
        return _codec.config_of(row, row.checkpoint_id)

    @measured("put_writes")
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

    @measured("get_tuple")
    async def _get_tuple(self, db: Database, config: RunnableConfig) -> CheckpointTuple | None:
        ref = _config.checkpoint_ref(config)
        stored = await _checkpoints.get_checkpoint(db, ref, self._reader, or_ancestor=True)
        if stored is None:
            return None
        if stored.metadata is None:
            return _codec.decode_ancestor(self.serde, stored)
        self._stored.note(stored.thread_id, stored.checkpoint_ns, stored.checkpoint_id)
        return self._decode(stored)

    @measured("get_ulid")
    async def _get_ulid(self, db: Database, config: RunnableConfig) -> str | None:
        stored = await _checkpoints.get_checkpoint(db, _config.checkpoint_ref(config), None)
        return show_ulid(stored.ulid) if stored is not None else None

    @measured("delete_thread")
    async def _erase(self, db: Database, thread_id: str, *, force: bool) -> EraseReceipt:
        return await _retention.erase_thread(
            db, _config.require_thread_id(thread_id), _new_ulid(), force=force
        )

    @measured("delete_for_runs")
    async def _delete_for_runs(self, db: Database, run_ids: Sequence[str]) -> None:
        wanted = _config.require_ids(run_ids, "run_ids")
        if self._index_keys is not None and "run_id" not in self._index_keys:
            raise InvalidConfig(
                "delete_for_runs cannot tell the runs: this saver's filter_keys leave out run_id. Make it with "
                "filter_keys that have it"
            )
        threads = await _retention.threads_of_runs(db, wanted) if wanted else []
        await self._remove_from(db, threads, _retention.keep_other_runs(wanted), dry_run=False)

    @measured("prune")
    async def _prune(
        self, db: Database, thread_ids: Sequence[str], policy: Policy, dry_run: bool
    ) -> PruneReport:
        wanted = _config.require_ids(thread_ids, "thread_ids")
        if policy.keep_last > 0:
            choose = _retention.keep_newest(policy.keep_last, policy.older_than)
            return await self._remove_from(db, wanted, choose, dry_run=dry_run)
        return await _from_each(
            wanted,
            lambda thread_id: _retention.erase(db, thread_id, _new_ulid(), dry_run=dry_run),
            dry_run=dry_run,
        )

    @measured("compact")
    async def _compact(
        self, db: Database, graph: Any, get_state: GetState, thread_ids: Sequence[str]
    ) -> PruneReport:
        wanted = _config.require_ids(thread_ids, "thread_ids")
        if not self._is_of(graph):
            raise InvalidConfig(
                "compact needs a graph compiled with this saver, since it folds channels with the graph's own "
                "reducers: builder.compile(checkpointer=saver)"
            )
        newest = _retention.keep_newest(1, None)

        async def fold(thread_id: str) -> list[Fold]:
            nodes = await _retention.list_nodes(db, thread_id)
            survivors = newest_survive(nodes, 1, None)
            latest = [n for n in nodes if n.key in survivors and n.delta_channels]
            folded = [n for n in latest if graph_has(graph, n.checkpoint_ns)]
            folds = [
                await fold_checkpoint(
                    db, thread_id, node, get_state, self.serde, self._hash_key, self._reader, self._decode
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
        choose: _retention.Choice,
        *,
        dry_run: bool,
        fold: Callable[[str], Awaitable[list[Fold]]] | None = None,
    ) -> PruneReport:
        async def remove(thread_id: str) -> Removed:
            folds = await fold(thread_id) if fold is not None else []
            return await _retention.remove_checkpoints(
                db, self._reader, thread_id, choose, dry_run=dry_run, folds=folds
            )

        return await _from_each(thread_ids, remove, dry_run=dry_run)

    @measured("copy_thread")
    async def _copy_thread(self, db: Database, source: str, target: str) -> None:
        source, target = _config.require_thread_id(source), _config.require_thread_id(target)
        if source == target:
            raise InvalidConfig(f"thread {source!r} cannot be copied onto itself: choose another target")
        await _retention.copy_thread(db, source, target)

    @measured("sweep")
    async def _sweep(
        self,
        db: Database,
        policy: Policy,
        dry_run: bool,
        after: str,
        progress: Callable[[SweepProgress], object] | None,
        effects_older_than: timedelta | None,
    ) -> SweepReport:
        choose = _retention.keep_newest(policy.keep_last, policy.older_than)
        _config.require_text(after, "after")
        total = await _retention.count_threads(db) if progress is not None else 0
        seen, pruned, removed = 0, 0, Removed({}, {})
        failures: dict[str, Exception] = {}
        while batch := await _retention.next_threads(db, after, _SWEEP_BATCH):
            try:
                report = await self._remove_from(db, batch, choose, dry_run=dry_run)
            except PruneFailed as exc:
                report = exc.report
                failures |= exc.failures
            after = batch[-1]
            seen, pruned = seen + len(batch), pruned + len(report.threads)
            removed = Removed.sum([removed, report.total])
            if progress is not None:
                progress(SweepProgress(after, seen, total, removed))
        orphans = await _retention.sweep_orphans(db, dry_run=dry_run)
        expired = 0
        if effects_older_than is not None:
            expired = await _effects_ops.expire_effects(db, effects_older_than, dry_run=dry_run)
        if failures:
            raise PruneFailed(PruneReport({}, dry_run), failures) from next(iter(failures.values()))
        orphaned = await _effects_ops.count_orphans(db)
        return SweepReport(seen, pruned, removed, orphans, dry_run, expired, orphaned)

    @measured("storage_stats")
    async def _storage_stats(self, db: Database, thread_id: str | None) -> StorageStats:
        return await storage_stats(
            db, _config.require_thread_id(thread_id) if thread_id is not None else None
        )

    @measured("get_delta_channel_history")
    async def _get_history(
        self, db: Database, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        wanted = _config.require_ids(channels, "channels")
        if not wanted:
            return {}
        ref = _config.checkpoint_ref(config)
        where = f"thread {ref.thread_id!r}, namespace {ref.namespace!r}, checkpoint {ref.checkpoint_id!r}"
        found = await _history.get_delta_history(db, ref, wanted, self._reader)
        return {c: _codec.decode_history(self.serde, c, history, where) for c, history in found.items()}

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
        limit = _config.require_limit(limit)
        return Listing(walk, self._reader, self._decode, self.serde, wanted, limit, self._metrics)

    def _decode(self, stored: StoredCheckpoint, serde: SerializerProtocol | None = None) -> CheckpointTuple:
        serde = self.serde if serde is None else serde
        return _codec.decode_checkpoint(serde, stored, next_version=self.get_next_version)

    @property
    def _reader(self) -> SegmentReader:
        # Made at every call, since LangGraph and callers reassign serde.
        cipher = self.serde.cipher if _codec.encrypts(self.serde) else None
        return SegmentReader(
            self._segments, lambda hash_, data: open_segment(hash_, data, self._hash_key, cipher)
        )

    @property
    def _index_keys(self) -> Collection[str] | None:
        # Asked at every put, since LangGraph and callers reassign serde.
        if self._filter_keys is None and _codec.encrypts(self.serde):
            return _codec.DEFAULT_FILTER_KEYS
        return self._filter_keys


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
        raise PruneFailed(report, failures) from next(iter(failures.values()))
    return report


def _new_ulid() -> uuid.UUID:
    return uuid.UUID(bytes=ULID().bytes)

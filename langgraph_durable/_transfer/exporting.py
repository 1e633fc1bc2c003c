"""Export threads into any saver, by its public methods."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, Protocol

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import WRITES_IDX_MAP, BaseCheckpointSaver, CheckpointTuple

from langgraph_durable._checkpoints.codec import Codec, decode
from langgraph_durable._checkpoints.decoding import decode_ancestor, decode_checkpoint
from langgraph_durable._checkpoints.read import get_checkpoint
from langgraph_durable._checkpoints.refs import CheckpointRef, config_of
from langgraph_durable._checkpoints.rows import StoredCheckpoint, StoredWrite
from langgraph_durable._metrics import measured
from langgraph_durable._postgres.database import Database
from langgraph_durable._postgres.drivers import AsyncDatabase
from langgraph_durable._postgres.statement import load
from langgraph_durable._transfer.importing import FAILURES, Progress
from langgraph_durable._transfer.records import Node
from langgraph_durable._transfer.source import caller, is_missing
from langgraph_durable._validation import require_ids
from langgraph_durable.reports import ExportReport, TransferProgress

EXPORT_THREADS = load(__package__, "export_threads")
EXPORT_NODES = load(__package__, "export_nodes")


class _Target(Protocol):
    async def put(self, config: Any, checkpoint: Any, metadata: Any, versions: Any) -> RunnableConfig: ...
    async def put_writes(self, config: Any, writes: Any, task_id: str, path: str) -> None: ...


class _SaverTarget:
    """A saver's put and put_writes: the async ones if they are wanted and it has them."""

    def __init__(self, saver: BaseCheckpointSaver[Any], db: Database) -> None:
        self._saver = saver
        self._call = caller(db)
        self._asynchronous = isinstance(db, AsyncDatabase) and not is_missing(saver, "aput")

    async def put(self, config: Any, checkpoint: Any, metadata: Any, versions: Any) -> RunnableConfig:
        if self._asynchronous:
            return await self._saver.aput(config, checkpoint, metadata, versions)
        return await self._call(self._saver.put, config, checkpoint, metadata, versions)

    async def put_writes(self, config: Any, writes: Any, task_id: str, path: str) -> None:
        if self._asynchronous:
            await self._saver.aput_writes(config, writes, task_id, path)
        else:
            await self._call(self._saver.put_writes, config, writes, task_id, path)


@measured("export_to")
async def export_threads(
    db: Database,
    codec: Codec,
    target: BaseCheckpointSaver[Any],
    thread_ids: Sequence[str] | None,
    *,
    progress: Progress | None,
) -> ExportReport:
    """Put threads into another saver; see DurableSaver.export_to."""
    if thread_ids is not None:
        wanted = require_ids(thread_ids, "thread_ids")
    else:
        wanted = [thread_id for (thread_id,) in await db.fetch(EXPORT_THREADS)]
    threads, checkpoints, writes = 0, 0, 0
    failures: dict[str, Exception] = {}
    for number, thread_id in enumerate(wanted, start=1):
        export = _ThreadExport(db, codec, _SaverTarget(target, db), thread_id)
        try:
            await export.run()
        except FAILURES as exc:
            failures[thread_id] = exc
        else:
            threads += export.checkpoints > 0
        checkpoints, writes = checkpoints + export.checkpoints, writes + export.writes
        if progress is not None:
            progress(TransferProgress(thread_id, number, len(wanted)))
    return ExportReport(threads, checkpoints, writes, failures)


class _ThreadExport:
    """Exports one thread, parents before their children."""

    def __init__(self, db: Database, codec: Codec, target: _Target, thread_id: str) -> None:
        self._db = db
        self._codec = codec
        self._target = target
        self._thread_id = thread_id
        self._sent: dict[tuple[str, str, str], bool] = {}
        """(namespace, channel, version) -> whether it was sent with a value."""
        self.checkpoints = 0
        self.writes = 0

    async def run(self) -> None:
        """Export the checkpoints, with those that are left of pruned ones, since delta channels need them."""
        rows = await self._db.fetch(EXPORT_NODES, {"thread": self._thread_id})
        for node in (Node(*row) for row in rows):
            ref = CheckpointRef(self._thread_id, node.checkpoint_ns, node.checkpoint_id)
            stored = await get_checkpoint(self._db, ref, self._codec, or_ancestor=True)
            if stored is not None:  # else it was deleted meanwhile
                await self._put(stored)

    async def _put(self, stored: StoredCheckpoint) -> None:
        serde = self._codec.serde
        found = decode_checkpoint(serde, stored) if stored.metadata is not None else _ancestor(serde, stored)
        ns = stored.checkpoint_ns
        checkpoint = found.checkpoint
        new = {}
        for channel, version in checkpoint["channel_versions"].items():
            has_value = channel in checkpoint["channel_values"]
            if (ns, channel, str(version)) not in self._sent or (
                has_value and not self._sent[ns, channel, str(version)]
            ):
                new[channel] = version
                self._sent[ns, channel, str(version)] = has_value
        parent: RunnableConfig = found.parent_config or {
            "configurable": {"thread_id": self._thread_id, "checkpoint_ns": ns}
        }
        await self._target.put(parent, checkpoint, found.metadata, new)
        self.checkpoints += 1
        config = config_of(self._thread_id, ns, stored.checkpoint_id)
        for task_id, path, writes in _calls(stored.writes):
            where = f"a write of task {task_id!r}, thread {self._thread_id!r}, checkpoint {stored.checkpoint_id!r}"
            decoded = [(write.channel, decode(serde, write.value, where)) for write in writes]
            await self._target.put_writes(config, decoded, task_id, path)
            self.writes += len(writes)


def _calls(writes: Sequence[StoredWrite]) -> Iterator[tuple[str, str, list[StoredWrite]]]:
    """Yield the calls of put_writes: savers number a call's writes by their places in it, but for special channels.

    A special write fills each place that is not taken, as in the call that stored it. The others are a separate call.
    """
    ordered = sorted(writes, key=lambda w: (w.task_path, w.task_id, w.idx))
    for (path, task_id), group in groupby(ordered, lambda w: (w.task_path, w.task_id)):
        of_task = list(group)
        special = [write for write in of_task if write.channel in WRITES_IDX_MAP]
        regular: list[StoredWrite] = []
        for write in of_task:
            if write.channel in WRITES_IDX_MAP:
                continue
            while special and len(regular) < write.idx:
                regular.append(special.pop())
            regular.append(write)
        for call in (special, regular):
            if call:
                yield task_id, path, call


def _ancestor(serde: Any, stored: StoredCheckpoint) -> CheckpointTuple:
    """Return what is left of a pruned checkpoint as one that other savers can list."""
    found = decode_ancestor(serde, stored)
    versions: Any = {channel: stored.versions[channel] or "0" for channel in stored.versions}
    checkpoint: Any = {**found.checkpoint, "channel_versions": versions}
    metadata: Any = {"source": "loop", "step": -2, "parents": {}, "pruned": True}
    return found._replace(checkpoint=checkpoint, metadata=metadata)

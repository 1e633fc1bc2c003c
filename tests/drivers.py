"""One suite over both drivers: the sync methods behind async names."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, TypeAlias

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
)

from langgraph_durable import DurableSaver
from langgraph_durable.reports import DeleteReceipt, PruneAllReport, PruneReport


class SyncDriver(BaseCheckpointSaver[Any]):
    """A saver whose async methods call the sync ones of another, on the event loop's thread."""

    def __init__(self, inner: DurableSaver) -> None:
        super().__init__(serde=inner.serde)
        self.inner = inner

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        return self.inner.put(config, checkpoint, metadata, new_versions)

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        self.inner.put_writes(config, writes, task_id, task_path)

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        return self.inner.get_tuple(config)

    async def aget(self, config: RunnableConfig) -> Checkpoint | None:
        return self.inner.get(config)

    async def aget_ulid(self, config: RunnableConfig) -> str | None:
        return self.inner.get_ulid(config)

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        for found in self.inner.list(config, filter=filter, before=before, limit=limit):
            yield found

    async def adelete_thread(self, thread_id: str) -> DeleteReceipt:  # type: ignore[override]
        return self.inner.delete_thread(thread_id)

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        self.inner.delete_for_runs(run_ids)

    async def aprune(self, thread_ids: Sequence[str], **options: Any) -> PruneReport:  # type: ignore[override]
        return self.inner.prune(thread_ids, **options)

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        self.inner.copy_thread(source_thread_id, target_thread_id)

    async def aprune_all(self, **options: Any) -> PruneAllReport:
        return self.inner.prune_all(**options)

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        return self.inner.get_delta_channel_history(config=config, channels=channels)

    async def asetup(self, *, verify_only: bool = False) -> None:
        self.inner.setup(verify_only=verify_only)

    def get_next_version(self, current: Any, channel: None) -> Any:
        return self.inner.get_next_version(current, channel)


Saver: TypeAlias = DurableSaver | SyncDriver

"""Checkpoints to put, as the runtime makes them."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import Checkpoint, CheckpointMetadata, empty_checkpoint

from tests.drivers import Saver
from tests.samples import config


def config_for(
    thread_id: Any = None, checkpoint_id: str | None = None, checkpoint_ns: str = ""
) -> RunnableConfig:
    """Return a config of a new thread, if none is named."""
    return config(thread_id or str(uuid4()), checkpoint_id, checkpoint_ns)


def checkpoint_with(values: dict[str, Any] | None = None, **others: Any) -> Checkpoint:
    made = empty_checkpoint()
    made["v"] = 4
    made["channel_values"] = values or {}
    made["channel_versions"] = dict.fromkeys(values or {}, f"{1:032}.{uuid4().hex[:13]}")
    made.update(others)  # type: ignore[typeddict-item]
    return made


async def put(
    saver: Saver,
    config: RunnableConfig,
    values: dict[str, Any] | None = None,
    *,
    metadata: CheckpointMetadata | None = None,
    checkpoint: Checkpoint | None = None,
) -> RunnableConfig:
    checkpoint = checkpoint or checkpoint_with(values)
    return await saver.aput(
        config, checkpoint, metadata or {"source": "loop", "step": 0}, checkpoint["channel_versions"]
    )


async def get_values(saver: Saver, config: RunnableConfig) -> dict[str, Any]:
    found = await saver.aget_tuple(config)
    assert found is not None
    return found.checkpoint["channel_values"]


async def listed_ids(saver: Saver, config: RunnableConfig | None, **options: Any) -> list[str]:
    return [t.checkpoint["id"] async for t in saver.alist(config, **options)]

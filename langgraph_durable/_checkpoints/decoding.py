"""Stored checkpoints and writes to what LangGraph reads: pure, without waiting."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any, cast

from langgraph.checkpoint.base import (
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    PendingWrite,
    writes_sort_key,
)
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.types import TASKS

from langgraph_durable._checkpoints.codec import decode, decode_value, unreadable
from langgraph_durable._checkpoints.refs import config_of
from langgraph_durable._checkpoints.rows import StoredCheckpoint, StoredWrite
from langgraph_durable._checkpoints.ulids import derive_ulid
from langgraph_durable._checkpoints.versions import next_version
from langgraph_durable.errors import CheckpointCorruptedError, ParentPrunedError

# --- checkpoints ---


def decode_checkpoint(serde: SerializerProtocol, stored: StoredCheckpoint) -> CheckpointTuple:
    """Turn a stored checkpoint into the tuple that LangGraph reads.

    Args:
        serde: The saver's present serializer.
        stored: The row with its values, its writes and, for format v<4, its parent's sends.

    Raises:
        CheckpointCorruptedError: A row is missing or cannot be read; the message says which.
    """
    if stored.fault:
        raise CheckpointCorruptedError(stored.fault)
    where = _where(stored)
    checkpoint, versions, values = _inside(serde, stored, where)
    values |= _large_values(serde, stored, where)
    if stored.parent_sends:
        values[TASKS] = [send for _, _, send in decode_writes(serde, stored.parent_sends, where)]
        try:
            versions[TASKS] = max(versions.values()) if versions else next_version(None)
        except TypeError as exc:
            raise unreadable(f"the channel versions, {where}", exc) from exc
    metadata = decode(serde, stored.metadata, f"the metadata, {where}") if stored.metadata else None
    if not isinstance(metadata, dict):
        raise CheckpointCorruptedError(f"the stored metadata is not a dict: {where}")
    return _tuple(serde, stored, checkpoint, metadata, where)


def _inside(
    serde: SerializerProtocol, stored: StoredCheckpoint, where: str
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Return the serialized part of a checkpoint, and its channels' versions and values in there."""
    checkpoint = decode(serde, stored.checkpoint, f"the checkpoint, {where}") if stored.checkpoint else None
    if not isinstance(checkpoint, dict) or checkpoint.get("id") != stored.checkpoint_id:
        raise CheckpointCorruptedError(f"the stored checkpoint is not the one its key names: {where}")
    versions, values = checkpoint.get("channel_versions"), checkpoint.get("channel_values")
    if not isinstance(versions, dict) or not isinstance(values, dict):
        raise CheckpointCorruptedError(f"the stored checkpoint has no channel versions or values: {where}")
    return checkpoint, versions, values


def _large_values(serde: SerializerProtocol, stored: StoredCheckpoint, where: str) -> dict[str, Any]:
    """Return the channel values that a checkpoint names."""
    values = {}
    for channel, version in stored.versions.items():
        if version is None:
            continue
        if channel not in stored.values:
            raise CheckpointCorruptedError(
                f"the value of channel {channel!r} at version {version!r} is not stored: {where}"
            )
        values[channel] = decode_value(serde, stored.values[channel], f"channel {channel!r}, {where}")
    return values


def _tuple(
    serde: SerializerProtocol, stored: StoredCheckpoint, checkpoint: Any, metadata: Any, where: str
) -> CheckpointTuple:
    parent = stored.parent_checkpoint_id
    return CheckpointTuple(
        config=config_of(stored.thread_id, stored.checkpoint_ns, stored.checkpoint_id),
        checkpoint=cast("Checkpoint", checkpoint),
        metadata=cast("CheckpointMetadata", metadata),
        parent_config=config_of(stored.thread_id, stored.checkpoint_ns, parent) if parent else None,
        pending_writes=decode_writes(serde, stored.writes, where),
    )


def _where(stored: StoredCheckpoint) -> str:
    return (
        f"thread {stored.thread_id!r}, namespace {stored.checkpoint_ns!r}, "
        f"checkpoint {stored.checkpoint_id!r}"
    )


# --- ancestors ---


class _MetadataOfAncestor(dict[str, Any]):
    """The metadata of what is left of a pruned checkpoint; it has no step, so a run cannot start from there."""

    def __init__(self, where: str) -> None:
        super().__init__(pruned=True)
        self._where = where

    def __missing__(self, key: str) -> Any:
        if key != "step":
            raise KeyError(key)
        raise ParentPrunedError(
            f"a run cannot start from a checkpoint that was pruned: {self._where}. Only the writes and values that "
            "later checkpoints' delta channels are replayed from are left. Run from a checkpoint that is still stored."
        )


def decode_ancestor(serde: SerializerProtocol, stored: StoredCheckpoint) -> CheckpointTuple:
    """Turn an ancestor into a tuple that LangGraph's own walk to a delta channel's history can follow.

    Its values are the seeds that are left, its writes those that are replayed, and its parent config leads on. It has
    no versions and no step: a run cannot start there.

    Raises:
        CheckpointCorruptedError: A row is missing or cannot be read; the message says which.
    """
    if stored.fault:
        raise CheckpointCorruptedError(stored.fault)
    where = _where(stored)
    seeds = _large_values(serde, stored, where)
    if inside := [channel for channel, version in stored.versions.items() if version is None]:
        _, _, values = _inside(serde, stored, where)
        if lost := [channel for channel in inside if channel not in values]:
            raise CheckpointCorruptedError(f"the value of channel {lost[0]!r} is not stored: {where}")
        seeds |= {channel: values[channel] for channel in inside}
    checkpoint: Checkpoint = {
        "v": 4,
        "id": stored.checkpoint_id,
        "ts": _time_of(stored.checkpoint_id),
        "channel_values": seeds,
        "channel_versions": {},
        "versions_seen": {},
        "updated_channels": None,
    }
    return _tuple(serde, stored, checkpoint, _MetadataOfAncestor(where), where)


def _time_of(checkpoint_id: str) -> str:
    """Return when a checkpoint was made, if its id holds the time."""
    ulid = derive_ulid(checkpoint_id)
    try:
        return datetime.fromtimestamp((ulid.int >> 80) / 1000, timezone.utc).isoformat() if ulid else ""
    except (OverflowError, ValueError):  # after the year 9999
        return ""


# --- writes ---


def decode_writes(serde: SerializerProtocol, writes: Sequence[StoredWrite], where: str) -> list[PendingWrite]:
    """Turn stored writes into LangGraph's triples, in the order in which live execution applies them.

    Raises:
        CheckpointCorruptedError: A write cannot be read.
    """
    ordered = sorted(writes, key=lambda w: writes_sort_key(w.task_path, w.task_id, w.idx))
    return [
        (
            w.task_id,
            w.channel,
            decode(serde, w.value, f"a write of task {w.task_id!r} to {w.channel!r}, {where}"),
        )
        for w in ordered
    ]

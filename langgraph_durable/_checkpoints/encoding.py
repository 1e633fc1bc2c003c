"""LangGraph's checkpoints and writes to rows: pure, without waiting.

Which values are rows by themselves, and which are stored inside the checkpoint: docs/design/segments.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import orjson
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    get_serializable_checkpoint_metadata,
)
from langgraph.checkpoint.serde.base import SerializerProtocol

from langgraph_durable._checkpoints.codec import Codec, decode, encode, encode_value, pack
from langgraph_durable._checkpoints.refs import CheckpointRef
from langgraph_durable._checkpoints.rows import CheckpointRow, Encoded, WriteRow
from langgraph_durable._checkpoints.ulids import derive_ulid
from langgraph_durable._postgres.statement import Column
from langgraph_durable._segments.values import EncodedValue
from langgraph_durable._validation import require_text

_LONGEST_INLINE = 256
_SOURCE = "source"
"""LangGraph's name of what made a checkpoint: input, loop, update or fork."""


# --- checkpoints ---


def encode_checkpoint(
    codec: Codec,
    ref: CheckpointRef,
    config: RunnableConfig,
    checkpoint: Checkpoint,
    metadata: CheckpointMetadata,
    new_versions: ChannelVersions,
) -> CheckpointRow:
    """Turn the arguments of `put` into a row.

    `ref` is what `config` names, with the parent's id. The values of the channels in `new_versions` may not be stored
    yet.

    Raises:
        UnserializableValueError: A value, named by its channel, or the metadata cannot be serialized.
    """
    full_metadata = get_serializable_checkpoint_metadata(config, metadata)
    return encode_row(codec, ref, checkpoint, full_metadata, new_versions)


def encode_row(
    codec: Codec,
    ref: CheckpointRef,
    checkpoint: Checkpoint,
    full_metadata: Mapping[str, Any],
    new_versions: ChannelVersions,
) -> CheckpointRow:
    """Turn a checkpoint with all of its metadata into a row; see `encode_checkpoint`.

    Raises:
        UnserializableValueError: A value, named by its channel, or the metadata cannot be serialized.
    """
    serde = codec.serde
    checkpoint_id = require_text(checkpoint["id"], 'checkpoint["id"]')
    where = f"thread {ref.thread_id!r}, checkpoint {checkpoint_id!r}"
    inline, large = _split_values(checkpoint)
    versions = checkpoint["channel_versions"]
    body_type, body = encode(serde, {**checkpoint, "channel_values": inline}, where)
    metadata_type, encoded_metadata = encode(serde, full_metadata, f"metadata of {where}")
    unmentioned = {
        require_text(c, "a channel's name"): _version_key(v, c)
        for c, v in versions.items()
        if c not in checkpoint["channel_values"] and c not in new_versions
    }
    unsent = _LargeValues(serde, codec.segment_key, large, where)
    return CheckpointRow(
        thread_id=ref.thread_id,
        checkpoint_ns=ref.namespace,
        checkpoint_id=checkpoint_id,
        parent_checkpoint_id=ref.checkpoint_id,
        columns={
            "thread": ref.thread_id,
            "ns": ref.namespace,
            "id": checkpoint_id,
            "derived_ulid": ulid.hex if (ulid := derive_ulid(checkpoint_id)) is not None else None,
            "parent": ref.checkpoint_id,
            "root": _root_id(full_metadata) if ref.namespace else None,
            "format": checkpoint["v"],
            "type": body_type,
            "checkpoint_size": len(body),
            "metadata_type": metadata_type,
            "metadata_size": len(encoded_metadata),
            **_index_columns(full_metadata, codec),
        },
        checkpoint=body,
        metadata=encoded_metadata,
        versions={
            require_text(c, "a channel's name"): _version_key(versions[c], c) if c in large else None
            for c in (*inline, *large)
        },
        unmentioned=unmentioned if ref.checkpoint_id is not None else {},
        delta_channels=_delta_channels(full_metadata, checkpoint),
        values={c: unsent.encode(c) for c in large if c in new_versions},
        unsent=unsent,
    )


def _split_values(checkpoint: Checkpoint) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the values to store inside the checkpoint, and those that get rows by themselves."""
    inline: dict[str, Any] = {}
    large: dict[str, Any] = {}
    for channel, value in checkpoint["channel_values"].items():
        if channel in checkpoint["channel_versions"]:
            (inline if is_small(value) else large)[channel] = value
    return inline, large


def is_small(value: Any) -> bool:
    """Return whether a value is cheaper inside its checkpoint than in a row by itself.

    Exact types only: an enum that is a str must come back as the enum, by way of the serializer.
    """
    kind = type(value)
    if value is None or kind is bool or kind is float:
        return True
    if kind is int:
        return bool(-(2**63) <= value < 2**63)
    return kind is str and len(value) <= _LONGEST_INLINE and bool(value.isascii())


class _LargeValues(NamedTuple):
    """The channel values of a checkpoint that are not inside it."""

    serde: SerializerProtocol
    segment_key: bytes | None
    values: Mapping[str, Any]
    where: str

    def encode(self, channel: str) -> EncodedValue:
        what = f"channel {channel!r} of {self.where}"
        return encode_value(self.serde, self.segment_key, self.values[channel], what)

    def encode_inherited(self, parent: Encoded, channel: str, version: str) -> EncodedValue | None:
        what = f"channel {channel!r} of the parent of {self.where}"
        inside = decode(self.serde, parent, what)
        if str(inside["channel_versions"].get(channel)) != version or channel not in inside["channel_values"]:
            return None
        return encode_value(self.serde, self.segment_key, inside["channel_values"][channel], what)


def _root_id(metadata: Mapping[str, Any]) -> str | None:
    """Return the id of the root graph's checkpoint that a subgraph's call started from."""
    parents = metadata.get("parents")
    root_id = parents.get("") if isinstance(parents, Mapping) else None
    return require_text(root_id, "the root checkpoint's id") if root_id else None


def _delta_channels(metadata: Mapping[str, Any], checkpoint: Checkpoint) -> list[str]:
    """Return the delta channels without a value here: the runtime counts the steps since each one's snapshot."""
    counters = metadata.get("counters_since_delta_snapshot")
    if not isinstance(counters, Mapping):
        return []
    versions, values = checkpoint["channel_versions"], checkpoint["channel_values"]
    return [require_text(c, "a channel's name") for c in counters if c in versions and c not in values]


def _version_key(version: Any, channel: str) -> str:
    return require_text(str(version), f"the version of channel {channel!r}")


# --- metadata ---


def _index_columns(metadata: Mapping[str, Any], codec: Codec) -> dict[str, Column]:
    """Return the columns of the metadata that stays readable in the database."""
    wanted = codec.index_keys
    # The effect log needs the source, by which it tells a step of the graph from new input and from a fork.
    keys = metadata if wanted is None else [k for k in {*wanted, _SOURCE} if k in metadata]
    index = {k: metadata[k] for k in keys if is_indexable(metadata[k]) and is_indexable(k)}
    run_id = index.get("run_id")
    return {
        "metadata_index": orjson.dumps(index, option=orjson.OPT_NON_STR_KEYS).decode(),
        "run_id": str(run_id) if run_id is not None else None,
    }


def is_indexable(value: Any) -> bool:
    """Return whether jsonb holds a metadata value exactly, so that the database can filter on it."""
    if value is None or isinstance(value, bool):
        return True
    if type(value) is int:
        return -(2**63) <= value < 2**63  # what serializers hold, and orjson
    if type(value) is float:
        return math.isfinite(value)
    # Longer text would store the metadata twice, for filters that are unlikely.
    return type(value) is str and len(value) <= _LONGEST_INLINE and value.isascii() and "\0" not in value


# --- writes ---


def encode_writes(
    serde: SerializerProtocol, ref: CheckpointRef, writes: Sequence[tuple[str, Any]], task_id: str
) -> list[WriteRow]:
    """Turn the writes of a task into rows, one for each index: of two writes the last wins.

    Raises:
        UnserializableValueError: A value cannot be serialized; the message names its channel.
    """
    rows: dict[int, WriteRow] = {}
    for position, (channel, value) in enumerate(writes):
        idx = WRITES_IDX_MAP.get(channel, position)
        what = f"channel {channel!r}, written by task {task_id!r} of thread {ref.thread_id!r}"
        kind, data = pack(encode(serde, value, what))
        rows[idx] = WriteRow(idx, require_text(channel, "a channel's name"), kind, data)
    return list(rows.values())


def may_overwrite(writes: Sequence[tuple[str, Any]]) -> bool:
    """Return whether some of a call's writes replace earlier ones: those to special channels.

    A task that runs again may end with another error or interrupt, but its first writes stand. The last of several
    answers comes with what the task wrote, or with an update: without it a resume would ask, or answer, wrongly.
    """
    return any(channel in WRITES_IDX_MAP for channel, _ in writes)

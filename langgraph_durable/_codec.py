"""Values to rows and back: pure, no waiting.

The saver's serializer does the work; this file decides what is serialized together.

A checkpoint is stored in parts. Its large channel values are rows of their own, one per version, shared by
every checkpoint that names the version. What is left (ids, versions, small values) is one serialized dict.
The names and versions of the large values stand beside it in the clear, so that one query fetches
everything, and so that a missing row is known to be missing: a channel with no value (an empty one, or a
delta channel between snapshots) is named nowhere and needs no row to say so.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timezone
from functools import lru_cache, partial
from typing import Any, NamedTuple, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
    PendingWrite,
    get_serializable_checkpoint_metadata,
    writes_sort_key,
)
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.types import TASKS
from typing_extensions import TypeIs

from langgraph_durable._collector import collector_paused
from langgraph_durable._compression import compress, decompress
from langgraph_durable._config import CheckpointRef, indexable, require_text
from langgraph_durable._rows import (
    CheckpointRow,
    Encoded,
    StoredCheckpoint,
    StoredHistory,
    StoredSeed,
    StoredValue,
    StoredWrite,
    WriteRow,
)
from langgraph_durable._segments import EncodedValue, SegmentedValue, encode_segments, join
from langgraph_durable._ulids import derive_ulid
from langgraph_durable.errors import CheckpointCorrupted, ParentPruned, UnserializableValue

DEFAULT_FILTER_KEYS = ("source", "step", "run_id")
"""The metadata that stays readable in the database when the serializer encrypts."""

_INLINE_CHARACTERS = 256


def encrypts(serde: SerializerProtocol) -> TypeIs[EncryptedSerializer]:
    """Tell whether a serializer is LangGraph's that encrypts."""
    return _encrypts(type(serde))


@lru_cache
def _encrypts(kind: type[SerializerProtocol]) -> bool:
    # Once for a class: SerializerProtocol is one that asks for each of its methods, at every isinstance.
    return issubclass(kind, EncryptedSerializer)


# --- checkpoints ---


def encode_checkpoint(
    serde: SerializerProtocol,
    filter_keys: Collection[str] | None,
    hash_key: bytes | None,
    ref: CheckpointRef,
    config: RunnableConfig,
    checkpoint: Checkpoint,
    metadata: CheckpointMetadata,
    new_versions: ChannelVersions,
) -> CheckpointRow:
    """Turn the arguments of `put` into a row.

    Args:
        serde: The saver's serializer, as it is now.
        filter_keys: Metadata keys readable in the database; None for all that jsonb can hold.
        hash_key: What the hashes of segments are keyed with, if with anything.
        ref: What `config` points at: the thread, the namespace, and the parent's id.
        config: As given to `put`; its metadata and configurable keys join the checkpoint's.
        checkpoint: As given to `put`.
        metadata: As given to `put`.
        new_versions: As given to `put`: the channels whose values may not be stored yet.

    Raises:
        UnserializableValue: A value, named by its channel, or the metadata cannot be serialized.
    """
    checkpoint_id = require_text(checkpoint["id"], 'checkpoint["id"]')
    channel_versions = checkpoint["channel_versions"]
    where = f"thread {ref.thread_id!r}, checkpoint {checkpoint_id!r}"
    inline: dict[str, Any] = {}
    large: dict[str, Any] = {}
    for channel, value in checkpoint["channel_values"].items():
        if channel in channel_versions:
            (inline if _is_small(value) else large)[channel] = value

    unsent = _LargeValues(serde, hash_key, large, where)
    full_metadata = get_serializable_checkpoint_metadata(config, metadata)
    run_id = full_metadata.get("run_id")
    parents = full_metadata.get("parents")
    root_id = parents.get("") if ref.namespace and isinstance(parents, Mapping) else None
    index = _index(full_metadata, filter_keys)
    deltas = _delta_channels(full_metadata, checkpoint)
    stated = {*checkpoint["channel_values"], *new_versions}
    kept = {
        require_text(c, "a channel's name"): _version_key(v, c)
        for c, v in channel_versions.items()
        if c not in stated
    }
    return CheckpointRow(
        thread_id=ref.thread_id,
        checkpoint_ns=ref.namespace,
        checkpoint_id=checkpoint_id,
        format=checkpoint["v"],
        derived_ulid=derive_ulid(checkpoint_id),
        parent_checkpoint_id=ref.checkpoint_id,
        root_checkpoint_id=require_text(root_id, "the root checkpoint's id") if root_id else None,
        run_id=str(run_id) if "run_id" in index and run_id is not None else None,
        checkpoint=encode(serde, {**checkpoint, "channel_values": inline}, where),
        metadata=encode(serde, full_metadata, f"metadata of {where}"),
        metadata_index=index,
        versions={
            require_text(c, "a channel's name"): _version_key(channel_versions[c], c) if c in large else None
            for c in (*inline, *large)
        },
        kept=kept if ref.checkpoint_id is not None else {},
        delta_channels=deltas,
        values={c: unsent.encode(c) for c in large if c in new_versions},
        unsent=unsent,
    )


class _LargeValues(NamedTuple):
    """The channel values of a checkpoint that are not inside of it."""

    serde: SerializerProtocol
    hash_key: bytes | None
    values: Mapping[str, Any]
    where: str

    def encode(self, channel: str) -> EncodedValue:
        what = f"channel {channel!r} of {self.where}"
        return encode_value(self.serde, self.hash_key, self.values[channel], what)

    def encode_kept(self, parent: Encoded, channel: str, version: str) -> EncodedValue | None:
        what = f"channel {channel!r} of the parent of {self.where}"
        inside = decode(self.serde, parent, what)
        if str(inside["channel_versions"].get(channel)) != version or channel not in inside["channel_values"]:
            return None
        return encode_value(self.serde, self.hash_key, inside["channel_values"][channel], what)


def decode_checkpoint(
    serde: SerializerProtocol, stored: StoredCheckpoint, *, next_version: Any
) -> CheckpointTuple:
    """Turn a stored checkpoint into the tuple LangGraph reads.

    Args:
        serde: The saver's serializer, as it is now.
        stored: The row with its values, its writes and, for format v<4, its parent's sends.
        next_version: The saver's `get_next_version`, for pending sends moved into a checkpoint without
            versions.

    Raises:
        CheckpointCorrupted: A row is missing or cannot be read; the message says which.
    """
    if stored.fault:
        raise CheckpointCorrupted(stored.fault)
    where = _where(stored)
    checkpoint, versions, values = _inside(serde, stored, where)
    values |= _large_values(serde, stored, where)
    if stored.parent_sends:
        values[TASKS] = [send for _, _, send in decode_writes(serde, stored.parent_sends, where)]
        try:
            versions[TASKS] = max(versions.values()) if versions else next_version(None, None)
        except TypeError as exc:
            raise _unreadable(f"the channel versions, {where}", exc) from exc
    metadata = decode(serde, stored.metadata, f"the metadata, {where}") if stored.metadata else None
    if not isinstance(metadata, dict):
        raise CheckpointCorrupted(f"the stored metadata is not a dict: {where}")
    return _tuple(serde, stored, checkpoint, metadata, where)


class _MetadataOfAncestor(dict[str, Any]):
    """The metadata of what is left of a pruned checkpoint. It has no step, so no run can start from there."""

    def __init__(self, where: str) -> None:
        super().__init__(pruned=True)
        self._where = where

    def __missing__(self, key: str) -> Any:
        if key != "step":
            raise KeyError(key)
        raise ParentPruned(
            f"a run cannot start from a checkpoint that was pruned: {self._where}. All that is left of it is what "
            "delta channels of later ones are replayed from. Run from a checkpoint that is left"
        )


def decode_ancestor(serde: SerializerProtocol, stored: StoredCheckpoint) -> CheckpointTuple:
    """Turn an ancestor into a tuple that LangGraph's own walk to a delta channel's history can go by.

    Its values are the seeds that are left there, its writes those that are replayed, and it leads on to its parent. It
    has neither versions nor a step: nothing is to be run there.

    Raises:
        CheckpointCorrupted: A row is missing or cannot be read; the message says which.
    """
    if stored.fault:
        raise CheckpointCorrupted(stored.fault)
    where = _where(stored)
    seeds = _large_values(serde, stored, where)
    if inside := [channel for channel, version in stored.versions.items() if version is None]:
        _, _, values = _inside(serde, stored, where)
        if lost := [channel for channel in inside if channel not in values]:
            raise CheckpointCorrupted(f"the value of channel {lost[0]!r} is not stored: {where}")
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
    """Return when a checkpoint was made, as far as its id tells."""
    ulid = derive_ulid(checkpoint_id)
    try:
        return datetime.fromtimestamp((ulid.int >> 80) / 1000, timezone.utc).isoformat() if ulid else ""
    except (OverflowError, ValueError):  # past the year 9999
        return ""


def _inside(
    serde: SerializerProtocol, stored: StoredCheckpoint, where: str
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Return what is inside a checkpoint, and of that its channels' versions and values."""
    checkpoint = decode(serde, stored.checkpoint, f"the checkpoint, {where}") if stored.checkpoint else None
    if not isinstance(checkpoint, dict) or checkpoint.get("id") != stored.checkpoint_id:
        raise CheckpointCorrupted(f"the stored checkpoint is not the one its key names: {where}")
    versions, values = checkpoint.get("channel_versions"), checkpoint.get("channel_values")
    if not isinstance(versions, dict) or not isinstance(values, dict):
        raise CheckpointCorrupted(f"the stored checkpoint has no channel versions or values: {where}")
    return checkpoint, versions, values


def _large_values(serde: SerializerProtocol, stored: StoredCheckpoint, where: str) -> dict[str, Any]:
    """Return the channel values that a checkpoint names."""
    values = {}
    for channel, version in stored.versions.items():
        if version is None:
            continue
        if channel not in stored.values:
            raise CheckpointCorrupted(
                f"the value of channel {channel!r} at version {version!r} is not stored: {where}"
            )
        values[channel] = decode_value(serde, stored.values[channel], f"channel {channel!r}, {where}")
    return values


def _tuple(
    serde: SerializerProtocol, stored: StoredCheckpoint, checkpoint: Any, metadata: Any, where: str
) -> CheckpointTuple:
    parent = stored.parent_checkpoint_id
    return CheckpointTuple(
        config=config_of(stored, stored.checkpoint_id),
        checkpoint=cast("Checkpoint", checkpoint),
        metadata=cast("CheckpointMetadata", metadata),
        parent_config=config_of(stored, parent) if parent else None,
        pending_writes=decode_writes(serde, stored.writes, where),
    )


def config_of(stored: StoredCheckpoint | CheckpointRow, checkpoint_id: str) -> RunnableConfig:
    """Return the config that names a checkpoint in a stored one's thread and namespace."""
    return {
        "configurable": {
            "thread_id": stored.thread_id,
            "checkpoint_ns": stored.checkpoint_ns,
            "checkpoint_id": checkpoint_id,
        }
    }


def _where(stored: StoredCheckpoint) -> str:
    return (
        f"thread {stored.thread_id!r}, namespace {stored.checkpoint_ns!r}, "
        f"checkpoint {stored.checkpoint_id!r}"
    )


def _is_small(value: Any) -> bool:
    """Tell whether a value is cheaper inside its checkpoint than in a row of its own.

    Exact types only: an enum that is a str must come back as the enum, which the serializer sees to.
    """
    kind = type(value)
    if value is None or kind is bool or kind is float:
        return True
    if kind is int:
        return bool(-(2**63) <= value < 2**63)
    return kind is str and len(value) <= _INLINE_CHARACTERS and bool(value.isascii())


def _delta_channels(metadata: Mapping[str, Any], checkpoint: Checkpoint) -> list[str]:
    """Return the delta channels without a value here: the runtime counts the steps since each one's snapshot."""
    counters = metadata.get("counters_since_delta_snapshot")
    if not isinstance(counters, Mapping):
        return []
    versions, values = checkpoint["channel_versions"], checkpoint["channel_values"]
    return [require_text(c, "a channel's name") for c in counters if c in versions and c not in values]


def _version_key(version: Any, channel: str) -> str:
    return require_text(str(version), f"the version of channel {channel!r}")


def _index(metadata: Mapping[str, Any], filter_keys: Collection[str] | None) -> dict[str, Any]:
    keys = metadata if filter_keys is None else [k for k in filter_keys if k in metadata]
    return {k: metadata[k] for k in keys if indexable(metadata[k]) and indexable(k)}


# --- writes ---


def encode_writes(
    serde: SerializerProtocol, ref: CheckpointRef, writes: Sequence[tuple[str, Any]], task_id: str
) -> list[WriteRow]:
    """Turn the writes of a task into rows, at most one for each index: of two the last wins.

    Raises:
        UnserializableValue: A value cannot be serialized; the message names its channel.
    """
    rows: dict[int, WriteRow] = {}
    for position, (channel, value) in enumerate(writes):
        idx = WRITES_IDX_MAP.get(channel, position)
        what = f"channel {channel!r}, written by task {task_id!r} of thread {ref.thread_id!r}"
        rows[idx] = WriteRow(
            idx, require_text(channel, "a channel's name"), *_pack(encode(serde, value, what))
        )
    return list(rows.values())


def may_overwrite(writes: Sequence[tuple[str, Any]]) -> bool:
    """Tell whether some of a call's writes replace earlier ones: those to special channels.

    A task that runs again may end with another error or interrupt, but what it wrote first stands. The last of several
    answers comes with what the task wrote, or with an update: without it a resume would ask, or answer, wrongly.
    """
    return any(channel in WRITES_IDX_MAP for channel, _ in writes)


def decode_writes(serde: SerializerProtocol, writes: Sequence[StoredWrite], where: str) -> list[PendingWrite]:
    """Turn stored writes into LangGraph's triples, in the order in which live execution applies them.

    Raises:
        CheckpointCorrupted: A write cannot be read.
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


def decode_history(
    serde: SerializerProtocol, channel: str, history: StoredHistory, where: str
) -> DeltaChannelHistory:
    """Turn what a delta channel is replayed from into LangGraph's form.

    Raises:
        CheckpointCorrupted: A write or the seed is missing or cannot be read.
    """
    task_id = ""
    writes: list[PendingWrite] = []
    try:  # around all of them, and their names put into words only if one fails: there may be thousands
        with collector_paused():
            for _, _, _, task_id, _, _, kind, data, *_ in history.writes:
                writes.append((task_id, channel, _decode(serde, (kind, data))))
    except Exception as exc:
        raise _unreadable(f"a write of task {task_id!r} to {channel!r}, {where}", exc) from exc
    decoded: DeltaChannelHistory = {"writes": writes}
    if (seed := history.seed) is not None:
        what = f"the value of channel {channel!r} at its ancestor {seed.checkpoint_id!r}, {where}"
        if seed.value is not None:
            decoded["seed"] = decode_value(serde, seed.value, what)
        else:
            decoded["seed"] = _value_inside(serde, seed, channel, what)
    return decoded


def _value_inside(serde: SerializerProtocol, seed: StoredSeed, channel: str, what: str) -> Any:
    if seed.checkpoint is None or seed.checkpoint[0] is None:
        raise CheckpointCorrupted(f"{what}, is not stored")
    checkpoint = decode(serde, seed.checkpoint, what)
    try:
        return checkpoint["channel_values"][channel]
    except (KeyError, TypeError):
        raise CheckpointCorrupted(f"{what}, is not in the checkpoint that is to hold it") from None


# --- single values ---


def encode_value(serde: SerializerProtocol, hash_key: bytes | None, value: Any, what: str) -> EncodedValue:
    """Serialize a channel's value, and cut it into segments if it is a long one.

    Under encryption it is cut only if hashes are keyed, and only by LangGraph's own class: one made from it may do more
    than encrypt.

    Raises:
        UnserializableValue: It cannot be; the message names `what` it is.
    """
    if hash_key is not None and type(serde) is EncryptedSerializer:
        kind, data = encode(serde.serde, value, what)
        segmented = encode_segments(kind, kind.removeprefix(_ESCAPED), data, hash_key, serde.cipher)
        if segmented is not None:
            return segmented
        cipher, data = serde.cipher.encrypt(data)
        return EncodedValue(f"{kind}+{cipher}", data)
    kind, data = encode(serde, value, what)
    segmented = None
    if not encrypts(serde):
        segmented = encode_segments(kind, kind.removeprefix(_ESCAPED), data, hash_key)
    return segmented or EncodedValue(*_pack((kind, data)))


def decode_value(serde: SerializerProtocol, stored: StoredValue, what: str) -> Any:
    """Load a channel's value.

    Raises:
        CheckpointCorrupted: Its bytes, or those of a segment, are missing or cannot be read.
    """
    if not isinstance(stored, SegmentedValue):
        return decode(serde, stored, what)
    if stored.fault:
        raise CheckpointCorrupted(f"cannot read {what}: {stored.fault}")
    try:
        kind, _, cipher_name = stored.kind.partition(_ENCRYPTED_MARK)
        if cipher_name and encrypts(serde):
            whole = join(stored, partial(serde.cipher.decrypt, cipher_name))
            return _decode(serde.serde, (kind, whole))
        return _decode(serde, (stored.kind, join(stored, None)))
    except Exception as exc:
        raise _unreadable(what, exc) from exc


def encode(serde: SerializerProtocol, value: Any, what: str) -> Encoded:
    """Serialize one value.

    Raises:
        UnserializableValue: It cannot be; the message names `what` it is.
    """
    try:
        return _encode(serde, value)
    except Exception as exc:
        raise UnserializableValue(
            f"cannot serialize {what}, a {type(value).__name__}: {exc}. Store plain data, a dataclass or a "
            "pydantic model, or pass the saver a serde that knows the type"
        ) from exc


def _encode(serde: SerializerProtocol, value: Any) -> Encoded:
    try:
        kind, data = serde.dumps_typed(value)
        if not ((_LOSSY_MARK in data or _ENCRYPTED_MARK in kind) and _has_surrogates(value)):
            return _own(kind), data
    except Exception:
        if not _has_surrogates(value):
            raise
    kind, data = serde.dumps_typed(_map_strings(value, _escape))
    return _ESCAPED + _own(kind), data


def _own(kind: str) -> str:
    """Return a serializer's tag so that it cannot be taken for one of the marks made here."""
    return _OWN + kind if kind.startswith((_COMPRESSED, _ESCAPED, _OWN)) else kind


def decode(serde: SerializerProtocol, encoded: Encoded, what: str) -> Any:
    """Load one value.

    Raises:
        CheckpointCorrupted: Its bytes cannot be read; the message names `what` it is.
    """
    try:
        return _decode(serde, encoded)
    except Exception as exc:
        raise _unreadable(what, exc) from exc


def _decode(serde: SerializerProtocol, encoded: Encoded) -> Any:
    kind, data = encoded
    if kind.startswith(_COMPRESSED):
        kind, data = kind[len(_COMPRESSED) :], decompress(data)
    is_escaped = kind.startswith(_ESCAPED)
    value = serde.loads_typed((kind.removeprefix(_ESCAPED).removeprefix(_OWN), data))
    return _map_strings(value, _unescape) if is_escaped else value


def _pack(encoded: Encoded) -> Encoded:
    """Compress a value that Postgres would compress, and that is not encrypted."""
    kind, data = encoded
    packed = compress(data, _SHORTEST_PACKED) if _ENCRYPTED_MARK not in kind else None
    return encoded if packed is None else (_COMPRESSED + kind, packed)


def _unreadable(what: str, exc: Exception) -> CheckpointCorrupted:
    return CheckpointCorrupted(
        f"cannot read {what}: {type(exc).__name__}: {exc}. The row's bytes are damaged, or were written "
        "with another serializer or key than this saver has"
    )


# Lone surrogates (half of an emoji, as models stream them) are no UTF-8, and LangGraph's serializer turns
# each into "?". Where a value may have lost one so, its strings are escaped first, one to one: U+10FFFF, which
# is no character, and four hex digits. Strings inside objects of other types are the serializer's own affair.

_ESCAPED = "escaped:"
_COMPRESSED = "zlib:"  # comes before it
_OWN = "own:"  # comes after it, before a serializer's tag that begins as one of these
_SHORTEST_PACKED = 1000
_LOSSY_MARK = b"?"
_ENCRYPTED_MARK = "+"  # what EncryptedSerializer joins the cipher's name to the type with
_UNSTORABLE = re.compile("[\ud800-\udfff\U0010ffff]")
_ESCAPE = re.compile("\U0010ffff([0-9a-f]{4})")


def _has_surrogates(value: Any) -> bool:
    # Without recursion, and each container once: a serializer that pickles goes deep, and in circles.
    left, seen = [value], set()
    while left:
        value = left.pop()
        kind = type(value)
        if kind is str:
            if not value.isascii() and _is_unencodable(value):
                return True
        elif (kind is list or kind is tuple or kind is dict) and id(value) not in seen:
            seen.add(id(value))
            left += value
            if kind is dict:
                left += value.values()
    return False


def _is_unencodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def _map_strings(value: Any, change: Any) -> Any:
    kind = type(value)
    if kind is str:
        return change(value)
    if kind is dict:
        return {_map_strings(k, change): _map_strings(v, change) for k, v in value.items()}
    if kind is list or kind is tuple:
        return kind(_map_strings(v, change) for v in value)
    return value


def _escape(text: str) -> str:
    return _UNSTORABLE.sub(lambda m: f"\U0010ffff{ord(m[0]) & 0xFFFF:04x}", text)


def _unescape(text: str) -> str:
    return _ESCAPE.sub(lambda m: m[0][0] if m[1] == "ffff" else chr(int(m[1], 16)), text)

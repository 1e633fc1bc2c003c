"""Compare imported threads with their source, checkpoint by checkpoint."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from langgraph.checkpoint.base import CheckpointTuple
from langgraph.checkpoint.serde.base import SerializerProtocol

from langgraph_durable._checkpoints.codec import Codec
from langgraph_durable._checkpoints.known import KnownCheckpoints
from langgraph_durable._checkpoints.read import get_tuple
from langgraph_durable._checkpoints.refs import checkpoint_ref, config_of
from langgraph_durable._metrics import measured
from langgraph_durable._postgres.database import Database
from langgraph_durable._transfer.importing import FAILURES, Progress, find_known
from langgraph_durable._transfer.records import REPEATED, SourceCheckpoint
from langgraph_durable._transfer.source import Source
from langgraph_durable._transfer.store import Outcome, closing
from langgraph_durable._transfer.values import SeenValues
from langgraph_durable._validation import require_ids
from langgraph_durable.reports import Difference, TransferProgress, VerifyReport

_MISSING = object()


@measured("verify_import")
async def verify_threads(
    db: Database,
    codec: Codec,
    source: Source,
    thread_ids: Sequence[str] | None,
    *,
    progress: Progress | None,
) -> VerifyReport:
    """Compare threads with a source; see DurableSaver.verify_import."""
    wanted = require_ids(thread_ids, "thread_ids") if thread_ids is not None else await source.thread_ids()
    known = await find_known(db, wanted)
    threads = [thread_id for thread_id in wanted if known.get(thread_id) is not Outcome.DELETED]
    differences: list[Difference] = []
    failures: dict[str, Exception] = {}
    checkpoints = 0
    for number, thread_id in enumerate(threads, start=1):
        try:
            batches = await source.read(thread_id)
            seen = SeenValues()
            async with closing(batches()) as found:
                async for batch in found:
                    for item in batch:
                        differences += await _compare(db, codec, thread_id, item, seen)
                    checkpoints += len(batch)
        except FAILURES as exc:
            failures[thread_id] = exc
        if progress is not None:
            progress(TransferProgress(thread_id, number, len(threads)))
    compared = len(threads) - len(failures)
    return VerifyReport(compared, checkpoints, differences, failures, len(wanted) - len(threads))


async def _compare(
    db: Database, codec: Codec, thread_id: str, item: SourceCheckpoint, seen: SeenValues
) -> list[Difference]:
    seen.replace_repeated(item)
    config = config_of(thread_id, item.checkpoint_ns, item.checkpoint_id)
    ours = await get_tuple(db, codec, KnownCheckpoints(), config)
    return [
        Difference(thread_id, item.checkpoint_ns, item.checkpoint_id, what)
        for what in _differences(codec.serde, item, ours)
    ]


def _differences(
    serde: SerializerProtocol, item: SourceCheckpoint, ours: CheckpointTuple | None
) -> Iterator[str]:
    """Yield what differs, in words."""
    if ours is None:
        yield "it is not stored here"
        return
    parent = checkpoint_ref(ours.parent_config).checkpoint_id if ours.parent_config else None
    if parent != (item.parent_id or None):
        yield f"its parent is {parent!r}, not {item.parent_id!r}"
    checkpoint: dict[str, Any] = dict(ours.checkpoint)
    for name in sorted(item.checkpoint.keys() | checkpoint.keys()):
        if name not in ("channel_values", "channel_versions") and not _are_equal(
            serde, item.checkpoint.get(name), checkpoint.get(name)
        ):
            yield f"{name} is {checkpoint.get(name)!r:.100}, not {item.checkpoint.get(name)!r:.100}"
    yield from _channel_differences(serde, item, checkpoint)
    if not _are_equal(serde, dict(item.metadata), dict(ours.metadata)):
        yield f"metadata is {ours.metadata!r:.200}, not {item.metadata!r:.200}"
    writes = [(write.task_id, write.channel, write.value) for write in item.writes]
    if len(writes) != len(ours.pending_writes or ()) or not all(
        theirs[:2] == own[:2] and _are_equal(serde, theirs[2], own[2])
        for theirs, own in zip(writes, ours.pending_writes or (), strict=True)
    ):
        yield f"pending writes are {ours.pending_writes!r:.200}, not {writes!r:.200}"


def _channel_differences(
    serde: SerializerProtocol, item: SourceCheckpoint, ours: Mapping[str, Any]
) -> Iterator[str]:
    """Yield how channels differ.

    Pending sends of formats below 4 are their parent's writes, which are compared there: readers derive the channel.
    A delta channel whose snapshot is still an ancestor's may have it here and not in the source.
    """
    derived = {"__pregel_tasks"} if item.checkpoint.get("v", 1) < 4 else set[str]()
    counters = item.metadata.get("counters_since_delta_snapshot")
    inherited = set(counters) if isinstance(counters, Mapping) else set[str]()
    theirs, own = item.checkpoint["channel_values"], ours["channel_values"]
    versions = item.checkpoint["channel_versions"]
    for channel in sorted((versions.keys() | ours["channel_versions"].keys()) - derived):
        version, own_version = versions.get(channel), ours["channel_versions"].get(channel)
        if version != own_version:
            yield f"channel {channel!r} is at version {own_version!r}, not {version!r}"
        value, own_value = theirs.get(channel, _MISSING), own.get(channel, _MISSING)
        if value is REPEATED:
            if own_value is _MISSING:
                yield f"channel {channel!r} has no value here"
        elif own_value is _MISSING or value is _MISSING:
            if value is not own_value and not (value is _MISSING and channel in inherited):
                yield f"channel {channel!r} has {'no' if own_value is _MISSING else 'a'} value here"
        elif not _are_equal(serde, value, own_value):
            yield f"channel {channel!r} is {own_value!r:.100}, not {value!r:.100}"


def _are_equal(serde: SerializerProtocol, first: Any, second: Any) -> bool:
    """Return whether two values are equal: as Python compares them, or by their bytes (NaN, arrays)."""
    with suppress(Exception):
        if type(first) is type(second) and bool(first == second):
            return True
    with suppress(Exception):
        return bool(serde.dumps_typed(first) == serde.dumps_typed(second))
    return False

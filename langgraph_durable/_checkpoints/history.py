"""The history of delta channels, read up the parent chain.

What a delta channel is replayed from: docs/design/pruning.md.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import DeltaChannelHistory, PendingWrite

from langgraph_durable._checkpoints.codec import Codec, decode, decode_value, loads, unreadable
from langgraph_durable._checkpoints.gc_pause import gc_paused
from langgraph_durable._checkpoints.read import stored_value
from langgraph_durable._checkpoints.refs import CheckpointRef, checkpoint_ref, resolve_checkpoint_id
from langgraph_durable._checkpoints.rows import HistoryWrite, StoredHistory, StoredSeed
from langgraph_durable._metrics import measured
from langgraph_durable._postgres.database import Database, Session
from langgraph_durable._postgres.statement import Row, load
from langgraph_durable._segments.reading import fill_values, reread_locked
from langgraph_durable._segments.values import SegmentedValue
from langgraph_durable._validation import require_ids
from langgraph_durable.errors import CheckpointCorruptedError

GET_DELTA_HISTORY = load(__package__, "get_delta_history")

_RUN, _SEED_VALUE, _SEED_CHECKPOINT, _SEED_INDEX = -1, -2, -3, -4
"""The kinds of rows that GET_DELTA_HISTORY returns, besides writes."""


@measured("get_delta_channel_history")
async def get_delta_channel_history(
    db: Database, codec: Codec, config: RunnableConfig, channels: Sequence[str]
) -> Mapping[str, DeltaChannelHistory]:
    """Fetch and decode what delta channels are replayed from; see DurableSaver.get_delta_channel_history."""
    wanted = require_ids(channels, "channels")
    if not wanted:
        return {}
    ref = checkpoint_ref(config)
    where = f"thread {ref.thread_id!r}, namespace {ref.namespace!r}, checkpoint {ref.checkpoint_id!r}"
    found = await _fetch_histories(db, codec, ref, wanted)
    return {c: _decode_history(codec, c, history, where) for c, history in found.items()}


# --- fetching ---


async def _fetch_histories(
    db: Database, codec: Codec, ref: CheckpointRef, channels: Sequence[str]
) -> dict[str, StoredHistory]:
    """Fetch what channels are replayed from at a checkpoint: the named one, or the namespace's latest.

    The checkpoint's own writes are not included, since they make its child. Its ancestors' are, also those of the
    seed's checkpoint.

    Raises:
        CheckpointCorruptedError: The columns of an ancestor that name its values are damaged.

    Round trips: 1, for any number of channels and ancestors; 1 more if seeds' segments are not cached; 1 more if the
    checkpoint is named by a ULID.
    """
    checkpoint_id = ref.checkpoint_id
    if checkpoint_id is not None:
        checkpoint_id = await resolve_checkpoint_id(db, ref, checkpoint_id)
    params = {"thread": ref.thread_id, "ns": ref.namespace, "id": checkpoint_id, "channels": channels}
    histories = _assemble(ref, channels, await db.fetch(GET_DELTA_HISTORY, params))
    if not (seeds := _segmented_seeds(histories)):
        return histories
    reader = codec.reader
    missing = await fill_values(db, reader, seeds)
    if not missing:
        return histories

    async def reread(session: Session) -> tuple[dict[str, StoredHistory], Collection[SegmentedValue]]:
        histories = _assemble(ref, channels, await session.fetch(GET_DELTA_HISTORY, params))
        return histories, _segmented_seeds(histories)

    return await reread_locked(db, reader, missing, reread)


def _segmented_seeds(histories: Mapping[str, StoredHistory]) -> list[SegmentedValue]:
    seeds = [h.seed.value for h in histories.values() if h.seed is not None]
    return [value for value in seeds if isinstance(value, SegmentedValue)]


def _assemble(ref: CheckpointRef, channels: Sequence[str], rows: Sequence[Row]) -> dict[str, StoredHistory]:
    """Return the histories that the rows of GET_DELTA_HISTORY make up."""
    indexes: dict[bytes, bytes] = {}
    runs: dict[int, list[str]] = {}
    writes: defaultdict[int, list[HistoryWrite]] = defaultdict(list)
    histories = {channel: StoredHistory() for channel in channels}
    for row in rows:
        kind = row[0]
        if kind > 0:
            writes[kind].append(row)
            continue
        _, ancestor_id, _, _, number, channel, type_, data, ids, entries = row
        if kind == _RUN:
            if ancestor_id is not None:
                raise CheckpointCorruptedError(
                    f"value_channels and value_versions do not pair: thread {ref.thread_id!r}, "
                    f"namespace {ref.namespace!r}, checkpoint {ancestor_id!r}"
                )
            runs[number] = ids
        elif kind == _SEED_VALUE:
            value = stored_value(ref.thread_id, type_, data, entries) if type_ is not None else None
            histories[channel].seed = StoredSeed(ancestor_id, value=value)
        elif kind == _SEED_INDEX:
            indexes[entries[0]] = data
        else:
            histories[channel].seed = StoredSeed(ancestor_id, checkpoint=(type_, data))
    for value in _segmented_seeds(histories):
        value.indexes = {entry: indexes[entry] for entry in value.entries if entry in indexes}
    for number, ids in reversed(_without_rings(runs)):
        for write in _in_order(writes[number], ids):
            histories[write[5]].writes.append(write)
    return histories


def _without_rings(runs: dict[int, list[str]]) -> list[tuple[int, list[str]]]:
    """Return the runs, newest first, up to where the chain reaches an ancestor for the second time."""
    seen: set[str] = set()
    walked = []
    for number in sorted(runs):
        ids = runs[number]
        if not seen.isdisjoint(ids):
            ids = ids[: next(i for i, ancestor_id in enumerate(ids) if ancestor_id in seen)]
        seen.update(ids)
        walked.append((number, ids))
    return walked


def _in_order(writes: list[HistoryWrite], ids: list[str]) -> list[HistoryWrite]:
    """Return the writes of a run's ancestors as they were applied: the oldest ancestor's first, by task and index."""
    places = {ancestor_id: place for place, ancestor_id in enumerate(ids)}
    own = [write for write in writes if write[1] in places]
    own.sort()  # by ancestor, task_path, task_id, idx, which together are unique
    if ids != sorted(ids, reverse=True):
        own.sort(key=lambda write: -places[write[1]])
    return own


# --- decoding ---


def _decode_history(codec: Codec, channel: str, history: StoredHistory, where: str) -> DeltaChannelHistory:
    """Turn what a delta channel is replayed from into LangGraph's form.

    Raises:
        CheckpointCorruptedError: A write or the seed is missing or cannot be read.
    """
    serde = codec.serde
    task_id = ""
    writes: list[PendingWrite] = []
    try:  # one for all of them, since there may be thousands: a write's name is formatted only if it fails
        with gc_paused(codec.tuning):
            for _, _, _, task_id, _, _, kind, data, *_ in history.writes:
                writes.append((task_id, channel, loads(serde, (kind, data))))
    except Exception as exc:
        raise unreadable(f"a write of task {task_id!r} to {channel!r}, {where}", exc) from exc
    decoded: DeltaChannelHistory = {"writes": writes}
    if (seed := history.seed) is not None:
        what = f"the value of channel {channel!r} at its ancestor {seed.checkpoint_id!r}, {where}"
        if seed.value is not None:
            decoded["seed"] = decode_value(serde, seed.value, what)
        else:
            decoded["seed"] = _value_inside(codec, seed, channel, what)
    return decoded


def _value_inside(codec: Codec, seed: StoredSeed, channel: str, what: str) -> Any:
    if seed.checkpoint is None or seed.checkpoint[0] is None:
        raise CheckpointCorruptedError(f"{what}, is not stored")
    checkpoint = decode(codec.serde, seed.checkpoint, what)
    try:
        return checkpoint["channel_values"][channel]
    except (KeyError, TypeError):
        raise CheckpointCorruptedError(f"{what}, is not in the checkpoint that should hold it") from None

"""Delta channels: their history, read up the parent chain.

A delta channel is stored as what its writers wrote, not as what it was then: its value at a checkpoint is replayed
from the writes of the checkpoint's ancestors, from the nearest one that has the channel's value (its seed) on. The
chain goes by parents only. Ids and ULIDs tell when a checkpoint was made, not what it was made from.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from langgraph_durable import _get_statements as sql
from langgraph_durable._checkpoints import resolve_checkpoint_id, stored_value
from langgraph_durable._config import CheckpointRef
from langgraph_durable._database import Database
from langgraph_durable._rows import HistoryWrite, StoredHistory, StoredSeed
from langgraph_durable._segment_reading import Fetches, SegmentReader, read_segmented
from langgraph_durable._segments import SegmentedValue
from langgraph_durable._sessions import Row
from langgraph_durable.errors import CheckpointCorrupted


async def get_delta_history(
    db: Database, ref: CheckpointRef, channels: Sequence[str], reader: SegmentReader
) -> dict[str, StoredHistory]:
    """Fetch what channels are replayed from at a checkpoint: the named one, or the namespace's latest.

    The checkpoint's own writes are not part of it: they make its child. An ancestor's are, the seed's too.

    Raises:
        CheckpointCorrupted: An ancestor does not tell which channels it has a value of.

    Round trips: 1, for any number of channels and ancestors; 1 more if seeds' segments are not at hand; 1 more if the
    checkpoint is named by a ULID.
    """
    checkpoint_id = ref.checkpoint_id
    if checkpoint_id is not None:
        checkpoint_id = await resolve_checkpoint_id(db, ref, checkpoint_id)
    params = {
        "thread": ref.thread_id,
        "ns": ref.namespace,
        "id": checkpoint_id,
        "channels": list(dict.fromkeys(channels)),
    }

    async def read(fetches: Fetches) -> tuple[dict[str, StoredHistory], list[SegmentedValue]]:
        histories = _assemble(ref, channels, await fetches.fetch(sql.GET_DELTA_HISTORY, params))
        seeds = [h.seed.value for h in histories.values() if h.seed is not None]
        return histories, [value for value in seeds if isinstance(value, SegmentedValue)]

    return await read_segmented(db, reader, read)


def _assemble(ref: CheckpointRef, channels: Sequence[str], rows: Sequence[Row]) -> dict[str, StoredHistory]:
    """Put the rows of a history together."""
    thread_id, checkpoint_ns = ref.thread_id, ref.namespace
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
        if kind == sql.RUN:
            if ancestor_id is not None:
                raise CheckpointCorrupted(
                    f"value_channels and value_versions do not pair: thread {thread_id!r}, "
                    f"namespace {checkpoint_ns!r}, checkpoint {ancestor_id!r}"
                )
            runs[number] = ids
        elif kind == sql.SEED_VALUE:
            value = stored_value(thread_id, type_, data, entries) if type_ is not None else None
            histories[channel].seed = StoredSeed(ancestor_id, value=value)
        elif kind == sql.SEED_INDEX:
            indexes[entries[0]] = data
        else:
            histories[channel].seed = StoredSeed(ancestor_id, checkpoint=(type_, data))
    for history in histories.values():
        if history.seed is not None and isinstance(history.seed.value, SegmentedValue):
            entries = history.seed.value.entries
            history.seed.value.indexes = {entry: indexes[entry] for entry in entries if entry in indexes}
    for number, ids in reversed(_without_rings(runs)):
        for write in _in_order(writes[number], ids):
            histories[write[5]].writes.append(write)
    return histories


def _without_rings(runs: dict[int, list[str]]) -> list[tuple[int, list[str]]]:
    """Return the runs, newest first, up to where the chain comes to an ancestor again."""
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
    own.sort()  # by ancestor, task_path, task_id, idx: no two have all of them alike
    if ids != sorted(ids, reverse=True):
        own.sort(key=lambda write: -places[write[1]])
    return own

"""Delta channels: their history, read up the parent chain.

A delta channel is stored as what its writers wrote, not as what it was then: its value at a checkpoint is replayed
from the writes of the checkpoint's ancestors, from the nearest one that has the channel's value (its seed) on. The
chain goes by parents only. Ids and ULIDs tell when a checkpoint was made, not what it was made from.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from langgraph_durable import _statements as sql
from langgraph_durable._checkpoints import resolve_checkpoint_id
from langgraph_durable._config import CheckpointRef
from langgraph_durable._database import Database
from langgraph_durable._rows import StoredHistory, StoredSeed, StoredWrite


async def get_delta_history(
    db: Database, ref: CheckpointRef, channels: Sequence[str]
) -> dict[str, StoredHistory]:
    """Fetch what channels are replayed from at a checkpoint: the named one, or the namespace's latest.

    The checkpoint's own writes are not part of it: they make its child. An ancestor's are, the seed's too.

    Round trips: 1, for any number of channels and ancestors; 2 if the checkpoint is named by a ULID.
    """
    checkpoint_id = ref.checkpoint_id
    if checkpoint_id is not None:
        checkpoint_id = await resolve_checkpoint_id(db, ref, checkpoint_id)
    rows = await db.fetch(
        sql.GET_DELTA_HISTORY,
        {
            "thread": ref.thread_id,
            "ns": ref.namespace,
            "id": checkpoint_id,
            "channels": list(dict.fromkeys(channels)),
        },
    )
    parents: dict[str | None, str | None] = {}
    writes: defaultdict[tuple[str, str], list[StoredWrite]] = defaultdict(list)
    seeds: dict[str, StoredSeed] = {}
    for kind, ancestor_id, parent_id, task_path, task_id, idx, channel, type_, data in rows:
        if kind == sql.ANCESTOR:
            parents[ancestor_id] = parent_id
            if channel is not None:
                writes[ancestor_id, channel].append(
                    StoredWrite(task_path, task_id, idx, channel, (type_, data))
                )
        elif kind == sql.SEED_VALUE:
            seeds[channel] = StoredSeed(ancestor_id, value=(type_, data) if type_ is not None else None)
        else:
            seeds[channel] = StoredSeed(ancestor_id, checkpoint=(type_, data))
    chain: list[str] = []
    cursor = parents.pop(None, None)
    while cursor in parents:
        assert cursor is not None  # noqa: S101 (None was popped)
        chain.append(cursor)
        cursor = parents.pop(cursor)
    return {channel: _history_of(channel, chain, writes, seeds.get(channel)) for channel in channels}


def _history_of(
    channel: str,
    chain: Sequence[str],
    writes: dict[tuple[str, str], list[StoredWrite]],
    seed: StoredSeed | None,
) -> StoredHistory:
    if seed is not None:
        chain = chain[: chain.index(seed.checkpoint_id) + 1]
    history = StoredHistory(seed=seed)
    for ancestor_id in reversed(chain):
        history.writes += sorted(
            writes.get((ancestor_id, channel), ()), key=lambda w: (w.task_path, w.task_id, w.idx)
        )
    return history

"""Rows as the statements take them that store any number at once: as JSON, and all their bytes in one string.

Bytes need neither escapes nor copies that way, and a row needs no more parameters than a hundred. A row that goes
alone is a parameter a column, which the server need not take apart; its lists are written as Postgres' arrays here,
since psycopg takes longer to write one than the server to store it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import orjson

from langgraph_durable._checkpoints.refs import CheckpointRef
from langgraph_durable._checkpoints.rows import CheckpointRow, Fold, WriteRow
from langgraph_durable._postgres.batch import Column, SentRow
from langgraph_durable._segments.values import EncodedValue, plan_segments


def checkpoint_row(row: CheckpointRow, known: set[bytes]) -> SentRow:
    """Return a checkpoint with the values it sends; of these only the segments that are not known to be stored."""
    sent = SentRow(
        {
            "thread": row.thread_id,
            "ns": row.checkpoint_ns,
            "id": row.checkpoint_id,
            "derived_ulid": row.derived_ulid.hex if row.derived_ulid is not None else None,
            "parent": row.parent_checkpoint_id,
            "root": row.root_checkpoint_id,
            "run_id": row.run_id,
            "format": row.format,
            "type": row.checkpoint[0],
            "metadata_type": row.metadata[0],
            "metadata_index": orjson.dumps(row.metadata_index, option=orjson.OPT_NON_STR_KEYS).decode(),
            "value_channels": list(row.versions),
            "value_versions": list(row.versions.values()),
            "delta_channels": row.delta_channels,
            "kept": list(row.kept),
            "kept_versions": list(row.kept.values()),
        }
    )
    for name, data in (("checkpoint_size", row.checkpoint[1]), ("metadata_size", row.metadata[1])):
        sent.add_bytes(data)
        sent.columns[name] = len(data)
    add_values(sent, row.values, row.versions, known)
    return sent


_NO_VALUES: dict[str, Column] = {
    **dict.fromkeys(("channels", "versions", "types"), ()),
    **dict.fromkeys(
        ("data_ats", "data_sizes", "entries_ats", "entries_sizes", "segment_ats", "segment_sizes"), ()
    ),
    **dict.fromkeys(("hashes_at", "needed_at", "needed"), 0),
}
"""What most puts send besides their checkpoint."""


def add_values(
    sent: SentRow, values: Mapping[str, EncodedValue], versions: Mapping[str, str | None], known: set[bytes]
) -> None:
    """Add values to a row, and their segments as far as they are not known to be stored."""
    if not values:
        sent.columns |= _NO_VALUES
        return
    segments, needed = plan_segments(values.values(), known)
    sent.columns |= {
        "channels": list(values),
        "versions": [versions[channel] for channel in values],
        "types": [value.kind for value in values.values()],
        "hashes_at": sent.add_bytes(b"".join(segments)),
        "needed_at": sent.add_bytes(b"".join(needed)),
        "needed": len(needed),
    }
    sent.add_parts("data", [value.data for value in values.values()])
    sent.add_parts(
        "entries", [v.entries if v.entries is None else b"".join(v.entries) for v in values.values()]
    )
    sent.add_parts("segment", list(segments.values()))


def fold_row(thread_id: str, fold: Fold) -> SentRow:
    """Return what is to be stored at a checkpoint."""
    sent = SentRow({"thread": thread_id, "ns": fold.checkpoint_ns, "id": fold.checkpoint_id})
    add_values(sent, fold.values, fold.versions, known=set())
    return sent


def writes_row(
    ref: CheckpointRef, checkpoint_id: str, writes: Sequence[WriteRow], task_id: str, task_path: str
) -> SentRow:
    """Return the writes of a task."""
    sent = SentRow(
        {
            "thread": ref.thread_id,
            "ns": ref.namespace,
            "id": checkpoint_id,
            "task_id": task_id,
            "task_path": task_path,
            "indexes": [write.idx for write in writes],
            "channels": [write.channel for write in writes],
            "types": [write.type for write in writes],
        }
    )
    sent.add_parts("value", [write.value for write in writes])
    return sent

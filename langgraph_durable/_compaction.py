"""Folding delta channels: what a checkpoint is replayed from becomes a snapshot that stands for itself.

The values come from the graph, so from its own reducers. Before anything is deleted or committed, the checkpoint is
read back as it would be stored, and must be the same but for its delta channels, and these the values they were.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import psycopg
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.types import _DeltaSnapshot

from langgraph_durable import _checkpoints, _codec
from langgraph_durable._config import CheckpointRef
from langgraph_durable._database import Database
from langgraph_durable._pruning import Node
from langgraph_durable._rows import Fold, StoredCheckpoint
from langgraph_durable._segment_reading import SegmentReader
from langgraph_durable.errors import CheckpointCorrupted, CompactionRefused, DurableError

GetState = Callable[[RunnableConfig], Awaitable[Any]]
"""The graph's get_state, under an async name."""

_ROOT_CHANNEL = "__root__"


def graph_has(graph: Any, checkpoint_ns: str) -> bool:
    """Tell whether a namespace is a graph's own, or of a subgraph that it knows.

    A graph asked for the state of any other would replay it with reducers that may not be its own.
    """
    parts = [part.partition(":")[0] for part in checkpoint_ns.split("|") if not part.isdigit()]
    return not checkpoint_ns or "|".join(parts) in {name for name, _ in graph.get_subgraphs(recurse=True)}


async def fold_checkpoint(
    db: Database,
    thread_id: str,
    node: Node,
    get_state: GetState,
    serde: SerializerProtocol,
    hash_key: bytes | None,
    reader: SegmentReader,
    decode: Callable[[StoredCheckpoint], CheckpointTuple],
) -> Fold | None:
    """Make the fold of a checkpoint's delta channels; None if there is nothing to fold, or it is gone.

    Raises:
        CompactionRefused: The graph cannot give its state.
        CheckpointCorrupted: What is stored cannot be read.
        UnserializableValue: What the graph's reducers made cannot be stored.
    """
    ref = CheckpointRef(thread_id, node.checkpoint_ns, node.checkpoint_id)
    stored = await _checkpoints.get_checkpoint(db, ref, reader)
    if stored is None:
        return None
    before = decode(stored)
    where = f"thread {thread_id!r}, checkpoint {node.checkpoint_id!r}"
    try:
        state = await get_state(before.config)
    except (DurableError, psycopg.Error):
        raise
    except Exception as exc:  # of its reducers
        raise CompactionRefused(
            f"{where} was left as it was: the graph cannot give its state: {exc!r}"
        ) from exc
    values = state.values if isinstance(state.values, Mapping) else {_ROOT_CHANNEL: state.values}
    folded = {c: values[c] for c in node.delta_channels if c in values}
    if not folded:
        return None
    versions = before.checkpoint["channel_versions"]
    if lost := sorted(folded.keys() - versions.keys()):
        raise CheckpointCorrupted(
            f"the stored checkpoint has no version of its delta channels {lost}: {where}"
        )

    def prove(after: StoredCheckpoint) -> None:
        now = decode(after)
        expected = before.checkpoint["channel_values"] | {c: _DeltaSnapshot(v) for c, v in folded.items()}
        if not _same(serde, now.checkpoint["channel_values"], expected) or now.metadata != before.metadata:
            raise CompactionRefused(
                f"{where} would not have the same state after compaction, and was left as it was: a value of its "
                f"delta channels {sorted(folded)} does not survive serialization"
            )

    return Fold(
        node.checkpoint_ns,
        node.checkpoint_id,
        {c: str(versions[c]) for c in folded},
        {
            c: _codec.encode_value(serde, hash_key, _DeltaSnapshot(v), f"channel {c!r} of {where}")
            for c, v in folded.items()
        },
        prove,
    )


def _same(serde: SerializerProtocol, values: Mapping[str, Any], expected: Mapping[str, Any]) -> bool:
    if values.keys() != expected.keys():
        return False
    return all(_equal(serde, values[c], expected[c]) for c in values)


def _equal(serde: SerializerProtocol, stored: Any, expected: Any) -> bool:
    if _are_equal(stored, expected):
        return True
    # Some values equal nothing, not even their like: NaN, arrays, objects without equality. If this is one, it is the
    # same if it is stored the same.
    packed = serde.dumps_typed(stored)
    return not _are_equal(serde.loads_typed(packed), stored) and bool(packed == serde.dumps_typed(expected))


def _are_equal(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except ValueError:  # arrays do not say whether they are equal
        return False

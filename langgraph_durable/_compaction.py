"""Folding delta channels: what a checkpoint is replayed from becomes a snapshot that stands for itself.

The values come from the graph, so from its own reducers. Before anything is deleted or committed, the checkpoint is
read back as it would be stored, and must be the same but for its delta channels, and these the values they were.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.types import _DeltaSnapshot

from langgraph_durable import _checkpoints, _codec
from langgraph_durable._config import CheckpointRef
from langgraph_durable._database import Database
from langgraph_durable._pruning import Node
from langgraph_durable._rows import Fold, StoredCheckpoint
from langgraph_durable.errors import CompactionRefused

GetState = Callable[[RunnableConfig], Awaitable[Any]]
"""The graph's get_state, under an async name."""

_ROOT_CHANNEL = "__root__"


async def fold_checkpoint(
    db: Database,
    thread_id: str,
    node: Node,
    get_state: GetState,
    serde: SerializerProtocol,
    decode: Callable[[StoredCheckpoint], CheckpointTuple],
) -> Fold | None:
    """Make the fold of a checkpoint's delta channels; None if it is gone, or of a subgraph the graph lacks."""
    ref = CheckpointRef(thread_id, node.checkpoint_ns, node.checkpoint_id)
    stored = await _checkpoints.get_checkpoint(db, ref)
    if stored is None:
        return None
    before = decode(stored)
    try:
        state = await get_state(before.config)
    except ValueError:  # so the graph says that a namespace is of no subgraph of its own
        return None
    values = state.values if isinstance(state.values, Mapping) else {_ROOT_CHANNEL: state.values}
    folded = {c: values[c] for c in node.delta_channels if c in values}
    if not folded:
        return None
    where = f"thread {thread_id!r}, checkpoint {node.checkpoint_id!r}"
    versions = before.checkpoint["channel_versions"]

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
        {c: _codec.encode(serde, _DeltaSnapshot(v), f"channel {c!r} of {where}") for c, v in folded.items()},
        prove,
    )


def _same(serde: SerializerProtocol, values: Mapping[str, Any], expected: Mapping[str, Any]) -> bool:
    if values.keys() != expected.keys():
        return False
    return all(_equal(serde, values[c], expected[c]) for c in values)


def _equal(serde: SerializerProtocol, one: Any, other: Any) -> bool:
    try:
        if one == other:
            return True
    except ValueError:  # arrays do not say whether they are equal
        pass
    # What is not equal to itself (NaN, objects without equality) is the same if it is stored the same.
    return bool(serde.dumps_typed(one) == serde.dumps_typed(other))

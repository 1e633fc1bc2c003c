"""Compaction: folding delta channels into snapshots, then pruning.

The graph computes the values, so its own reducers are used. Before anything is deleted, each checkpoint is read back as
it is stored then: it must be unchanged except for its delta channels, and these must hold the same values.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import psycopg
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.types import _DeltaSnapshot

from langgraph_durable._checkpoints.codec import Codec, encode_value
from langgraph_durable._checkpoints.decoding import decode_checkpoint
from langgraph_durable._checkpoints.read import get_checkpoint
from langgraph_durable._checkpoints.refs import CheckpointRef
from langgraph_durable._checkpoints.rows import Fold, StoredCheckpoint
from langgraph_durable._metrics import measured
from langgraph_durable._postgres.database import Database
from langgraph_durable._retention.plan import Node, choose_newest
from langgraph_durable._retention.removal import keep_newest, list_nodes, remove_checkpoints, remove_each
from langgraph_durable._validation import require_ids
from langgraph_durable.errors import CheckpointCorruptedError, CompactionRefusedError, DurableError
from langgraph_durable.reports import PruneReport, Removed

GetState = Callable[[RunnableConfig], Awaitable[Any]]
"""The graph's `get_state`, as a coroutine function."""

_ROOT_CHANNEL = "__root__"


@measured("compact")
async def compact(
    db: Database, codec: Codec, graph: Any, get_state: GetState, thread_ids: Sequence[str]
) -> PruneReport:
    """Fold the delta channels of threads, then prune them; see DurableSaver.compact."""
    wanted = require_ids(thread_ids, "thread_ids")
    choose = keep_newest(1, None)

    async def remove(thread_id: str) -> Removed:
        folds = await _fold_thread(db, codec, graph, get_state, thread_id)
        return await remove_checkpoints(db, codec.reader, thread_id, choose, dry_run=False, folds=folds)

    return await remove_each(wanted, remove, dry_run=False)


async def _fold_thread(
    db: Database, codec: Codec, graph: Any, get_state: GetState, thread_id: str
) -> list[Fold]:
    nodes = await list_nodes(db, thread_id)
    survivors = choose_newest(nodes, 1, None)
    latest = [n for n in nodes if n.key in survivors and n.delta_channels]
    known = [n for n in latest if _knows_namespace(graph, n.checkpoint_ns)]
    folds = [await _fold_checkpoint(db, codec, thread_id, node, get_state) for node in known]
    return [fold for fold in folds if fold is not None]


def _knows_namespace(graph: Any, checkpoint_ns: str) -> bool:
    """Return whether a namespace belongs to a graph or one of its subgraphs.

    The graph would replay any other namespace with reducers that may differ from those that wrote it.
    """
    parts = [part.partition(":")[0] for part in checkpoint_ns.split("|") if not part.isdigit()]
    return not checkpoint_ns or "|".join(parts) in {name for name, _ in graph.get_subgraphs(recurse=True)}


async def _fold_checkpoint(
    db: Database,
    codec: Codec,
    thread_id: str,
    node: Node,
    get_state: GetState,
) -> Fold | None:
    """Return the fold of a checkpoint's delta channels; None if there is nothing to fold, or it was deleted.

    Raises:
        CompactionRefusedError: The graph cannot compute the state.
        CheckpointCorruptedError: The stored checkpoint cannot be read.
        UnserializableValueError: A value that the graph computed cannot be serialized.
    """
    ref = CheckpointRef(thread_id, node.checkpoint_ns, node.checkpoint_id)
    stored = await get_checkpoint(db, ref, codec)
    if stored is None:
        return None
    before = decode_checkpoint(codec.serde, stored)
    where = f"thread {thread_id!r}, checkpoint {node.checkpoint_id!r}"
    values = await _compute_values(get_state, before.config, where)
    folded = {c: values[c] for c in node.delta_channels if c in values}
    if not folded:
        return None
    versions = before.checkpoint["channel_versions"]
    if missing := sorted(folded.keys() - versions.keys()):
        raise CheckpointCorruptedError(
            f"the stored checkpoint has no version of its delta channels {missing}: {where}"
        )

    def prove(after: StoredCheckpoint) -> None:
        now = decode_checkpoint(codec.serde, after)
        expected = before.checkpoint["channel_values"] | {c: _DeltaSnapshot(v) for c, v in folded.items()}
        if (
            not _same_values(codec.serde, now.checkpoint["channel_values"], expected)
            or now.metadata != before.metadata
        ):
            raise CompactionRefusedError(
                f"{where} was not compacted, since its state would change: a value of its delta channels "
                f"{sorted(folded)} does not survive serialization"
            )

    return Fold(
        node.checkpoint_ns,
        node.checkpoint_id,
        {c: str(versions[c]) for c in folded},
        {
            c: encode_value(codec.serde, codec.segment_key, _DeltaSnapshot(v), f"channel {c!r} of {where}")
            for c, v in folded.items()
        },
        prove,
    )


async def _compute_values(get_state: GetState, config: RunnableConfig, where: str) -> Mapping[str, Any]:
    try:
        state = await get_state(config)
    except (DurableError, psycopg.Error):
        raise
    except Exception as exc:  # raised by the graph's reducers
        raise CompactionRefusedError(
            f"{where} was not compacted: the graph cannot compute its state: {exc!r}"
        ) from exc
    return state.values if isinstance(state.values, Mapping) else {_ROOT_CHANNEL: state.values}


def _same_values(serde: SerializerProtocol, values: Mapping[str, Any], expected: Mapping[str, Any]) -> bool:
    if values.keys() != expected.keys():
        return False
    return all(_same(serde, values[c], expected[c]) for c in values)


def _same(serde: SerializerProtocol, stored: Any, expected: Any) -> bool:
    """Return whether two values are equal, or, if the value does not even equal its own copy, serialize equally.

    The latter concerns NaN, arrays and objects without `__eq__`.
    """
    if _are_equal(stored, expected):
        return True
    packed = serde.dumps_typed(stored)
    return not _are_equal(serde.loads_typed(packed), stored) and bool(packed == serde.dumps_typed(expected))


def _are_equal(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except ValueError:  # arrays have no single truth value
        return False

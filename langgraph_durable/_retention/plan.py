"""Which rows of a thread to delete together with some of its checkpoints; pure functions.

Invariant: a removal leaves the state of every surviving checkpoint unchanged. So some rows of deleted checkpoints stay:

- values that survivors reference;
- for their delta channels, the writes of ancestors and the seeds that these are replayed onto, up the parent chain to
  each channel's nearest seed. A deleted checkpoint on such a chain leaves a row in `ancestors`;
- pending sends, which a checkpoint of format v<4 keeps in its parent's writes;
- the parent's id of a fork, if subgraphs keep state in the thread: a replay of the fork starts these from before that
  id. So this parent leaves an ancestor, too.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from datetime import datetime

from langgraph.checkpoint.serde.types import TASKS

from langgraph_durable._checkpoints.ulids import derive_ulid

Key = tuple[str, str]
"""A checkpoint of a thread: namespace and id."""


@dataclass(slots=True)
class Node:
    """What pruning needs to know of a checkpoint or an ancestor."""

    checkpoint_ns: str
    checkpoint_id: str
    parent_checkpoint_id: str | None
    values: Mapping[str, str | None]
    """Channel -> version in channel_values; None if the value is inside the checkpoint."""
    ulid: uuid.UUID | None
    """None for an ancestor."""
    created_at: datetime | None = None
    root_checkpoint_id: str | None = None
    run_id: str | None = None
    format: int = 4
    delta_channels: tuple[str, ...] = ()
    is_fork: bool = False
    """Whether an update or a fork in the root graph made it: subgraphs replay from before its parent, not before it."""

    @property
    def key(self) -> Key:
        """The namespace and id."""
        return (self.checkpoint_ns, self.checkpoint_id)

    @property
    def parent(self) -> Key | None:
        """The parent's key."""
        return (self.checkpoint_ns, self.parent_checkpoint_id) if self.parent_checkpoint_id else None


@dataclass(slots=True)
class Plan:
    """The rows of a thread to change or delete."""

    checkpoints: set[Key] = field(default_factory=set)
    """Checkpoints to delete."""
    new_ancestors: set[Key] = field(default_factory=set)
    """The checkpoints among them that leave an ancestor."""
    old_ancestors: set[Key] = field(default_factory=set)
    """Ancestors to delete."""
    seeds: set[tuple[str, str, str]] = field(default_factory=set)
    """Namespace, id and channel of the values in new ancestors from which replays start."""
    stripped: set[Key] = field(default_factory=set)
    """Checkpoints and ancestors whose writes are deleted, except `kept_writes`."""
    kept_writes: set[tuple[str, str, str]] = field(default_factory=set)
    """Namespace, id and channel of writes that stay."""
    values: set[tuple[str, str, str]] = field(default_factory=set)
    """Namespace, channel and version of values to delete."""
    orphans: set[Key] = field(default_factory=set)
    """Survivors whose parent is deleted without leaving an ancestor."""


def plan_removal(nodes: Iterable[Node], survivors: Set[Key]) -> Plan:
    """Plan the removal of every checkpoint of a thread except `survivors`."""
    by_key = {node.key: node for node in nodes}
    needed, seeds = _needs(by_key, survivors)
    if any(_keeps_state(ns) for ns, _ in survivors):
        forked = {node.parent for node in by_key.values() if node.is_fork and node.key in survivors}
        for key in by_key.keys() & forked - survivors:
            needed.setdefault(key, set())
    sends = {
        node.parent
        for node in by_key.values()
        if node.key in survivors and node.format < 4 and node.parent is not None
    }
    plan = Plan()
    kept_values: set[tuple[str, str, str]] = set()
    for node in by_key.values():
        ns, id_ = node.key
        is_ancestor = node.ulid is None
        if node.key in survivors:
            kept_values |= {(ns, channel, version) for channel, version in node.values.items() if version}
            parent = node.parent
            # In format v<4 the parent's writes hold the pending sends, so the parent's id stays.
            if parent in by_key and parent not in survivors | needed.keys() and node.format >= 4:
                plan.orphans.add(node.key)
            continue
        if not is_ancestor:
            plan.checkpoints.add(node.key)
        if node.key in needed:
            if not is_ancestor:
                plan.new_ancestors.add(node.key)
                plan.seeds |= {(ns, id_, channel) for channel in seeds.get(node.key, ())}
            kept = node.values if is_ancestor else seeds.get(node.key, ())
            kept_values |= {(ns, channel, version) for channel in kept if (version := node.values[channel])}
        elif is_ancestor:
            plan.old_ancestors.add(node.key)
        plan.stripped.add(node.key)
        if node.format < 4 and node.parent is not None and node.parent not in by_key:
            plan.stripped.add(node.parent)  # pruned earlier, except for the sends of this node
        plan.kept_writes |= {(ns, id_, channel) for channel in needed.get(node.key, ())}
        plan.values |= {(ns, channel, version) for channel, version in node.values.items() if version}
    plan.values -= kept_values
    plan.kept_writes |= {(ns, id_, TASKS) for ns, id_ in sends & plan.stripped}
    return plan


def _needs(
    by_key: Mapping[Key, Node], survivors: Set[Key]
) -> tuple[dict[Key, set[str]], dict[Key, set[str]]]:
    """Return the channels whose writes, and those whose seeds, survivors need from other checkpoints."""
    needed: dict[Key, set[str]] = defaultdict(set)
    seeds: dict[Key, set[str]] = defaultdict(set)
    walked: dict[Key, set[str]] = defaultdict(set)
    walks = [(node.parent, set(node.delta_channels)) for node in by_key.values() if node.key in survivors]
    for cursor, wanted in walks:
        while cursor is not None and (node := by_key.get(cursor)) is not None:
            wanted = wanted - walked[cursor]
            if not wanted:
                break
            walked[cursor] |= wanted
            if cursor not in survivors:
                needed[cursor] |= wanted
                seeds[cursor] |= wanted & node.values.keys()
            wanted = wanted - node.values.keys()
            cursor = node.parent
    return dict(needed), seeds


def choose_newest(nodes: Iterable[Node], keep_last: int, cutoff: datetime | None) -> set[Key]:
    """Choose the newest checkpoints of each namespace, and those younger than the cutoff.

    The namespace of a subgraph's call survives only with the root checkpoint that the call started from, once that
    checkpoint is stored. A subgraph that keeps its state between calls (`checkpointer=True`) also keeps, for each
    surviving root checkpoint, the checkpoint that a replay from there starts from: its latest one before the root
    checkpoint, or before the root checkpoint's parent if that is a fork.
    """
    by_key = {node.key: node for node in nodes}
    by_ns: dict[str, list[tuple[uuid.UUID, Node]]] = defaultdict(list)
    for node in by_key.values():
        if node.ulid is not None:
            by_ns[node.checkpoint_ns].append((node.ulid, node))
    for group in by_ns.values():
        group.sort(key=lambda pair: pair[0], reverse=True)

    def newest(ns: str) -> set[Key]:
        group = by_ns[ns]
        young = {n.key for _, n in group if cutoff is not None and n.created_at and n.created_at >= cutoff}
        return young | {node.key for _, node in group[:keep_last]}

    stored_roots = {node.checkpoint_id for _, node in by_ns.get("", ())}
    survivors = newest("") if "" in by_ns else set()
    starts = [_replay_start(by_key, ulid, node) for ulid, node in by_ns.get("", ()) if node.key in survivors]
    for ns, group in by_ns.items():
        if ns == "":
            continue
        if not _keeps_state(ns):
            root_id = group[0][1].root_checkpoint_id
            if root_id not in stored_roots or ("", root_id) in survivors:
                survivors |= newest(ns)
            continue
        survivors |= newest(ns)
        for start in starts:
            survivors |= {node.key for node in [n for ulid, n in group if ulid < start][:1]}
    return survivors


def _keeps_state(checkpoint_ns: str) -> bool:
    """Return whether a subgraph keeps its state between calls: its namespace contains no task id."""
    return checkpoint_ns != "" and ":" not in checkpoint_ns


def _replay_start(by_key: Mapping[Key, Node], ulid: uuid.UUID, root: Node) -> uuid.UUID:
    """Return the ULID before which subgraphs start in a replay from a root checkpoint."""
    if not root.is_fork or root.parent is None:
        return ulid
    parent = by_key.get(root.parent)
    return parent.ulid if parent and parent.ulid else derive_ulid(root.parent[1]) or ulid

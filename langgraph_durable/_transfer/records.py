"""What is read from a source: checkpoints and writes, before they are encoded for this saver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from langgraph_durable._checkpoints.rows import Encoded


class _Repeated:
    """The type of REPEATED."""

    def __repr__(self) -> str:
        return "<the value of an earlier checkpoint>"


REPEATED: Final = _Repeated()
"""Stands for a large channel value that an earlier checkpoint of the thread had at the same version."""


class SourceWrite(NamedTuple):
    """One write of a task, as a source has it."""

    task_id: str
    task_path: str
    idx: int
    channel: str
    value: Any
    raw: Encoded | None = None
    """The value as the source stores it, if it can be stored unchanged."""


@dataclass(slots=True)
class SourceCheckpoint:
    """A checkpoint with its writes, as a source has it."""

    checkpoint_ns: str
    checkpoint_id: str
    parent_id: str | None
    checkpoint: dict[str, Any]
    """As LangGraph reads it, except that channel values may be REPEATED."""
    metadata: Mapping[str, Any]
    writes: Sequence[SourceWrite]
    raw: dict[str, Encoded] = field(default_factory=dict)
    """Channel -> value as the source stores it, if it can be stored unchanged: then no class is needed to load it."""

    def where(self, thread_id: str) -> str:
        """Return the ids that name the checkpoint, for messages."""
        return f"thread {thread_id!r}, namespace {self.checkpoint_ns!r}, checkpoint {self.checkpoint_id!r}"


class Node(NamedTuple):
    """A checkpoint's place in its thread."""

    checkpoint_ns: str
    checkpoint_id: str
    parent_id: str | None


def parents_first(nodes: Sequence[Node]) -> list[Node]:
    """Return checkpoints in the order of their ids, but parents before their children.

    A clock that was off may have made a child with an id below its parent's.
    """
    by_key = {(node.checkpoint_ns, node.checkpoint_id): node for node in nodes}
    ordered: dict[tuple[str, str], Node] = {}
    for node in sorted(nodes, key=lambda n: (n.checkpoint_id, n.checkpoint_ns)):
        chain: list[Node] = []
        above: Node | None = node
        while above is not None and above[:2] not in ordered and above not in chain[-1:]:
            chain.append(above)
            if len(chain) > len(nodes):  # damaged: the parents form a circle
                break
            above = by_key.get((above.checkpoint_ns, above.parent_id or ""))
        for found in reversed(chain):
            ordered.setdefault(found[:2], found)
    return list(ordered.values())

"""The audit trail of a thread: what is stored of it, told in order, for people and their tools.

It is put together from three tables, each with times of its own, all by the server's clock:

- checkpoints, in the order of their ULIDs: `run_started`, `step`, `state_updated`, `forked`, and `ended`, which only
  root graphs built by `StateGraph` or `entrypoint` have: of others what is stored does not tell that nothing follows;
- the writes that hang on a checkpoint: `model_answered`, `tool_answered`, `replayed`, `task_failed`, `interrupted`,
  `resumed`;
- the events of the effect log: `tool_begun`, `tool_issued` (where code of its own says when), `tool_ended`,
  `tool_unknown`, `tool_suspended`, `tool_refused` (a late owner's report).

Checkpoints are saved while their runs go on, so times alone would put a step before what led to it. What a step wrote
stands after its checkpoint and before the first that was made from it, by time among all else; within one task, in the
order of writing. With durability "exit" everything has the time when the run ended.

LangGraph saves what one step writes at once, in no order, so a few milliseconds do not tell what came first.

What is not stored is not told, and one message is told once, where it was written first. Of several questions that one
task asked on one checkpoint LangGraph keeps the last, and so of the answers that the run was given. Plain tools leave
their answer; when they began only effects tell. What was pruned is gone, but effects are not, also those of a thread
that was deleted and begun again. A value that cannot be read is told as `unreadable`, with the row it is in, and the
trail goes on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

Phase: TypeAlias = Literal[
    "run_started",
    "step",
    "state_updated",
    "forked",
    "ended",
    "model_answered",
    "tool_begun",
    "tool_issued",
    "tool_ended",
    "tool_unknown",
    "tool_suspended",
    "tool_refused",
    "tool_answered",
    "replayed",
    "task_failed",
    "interrupted",
    "resumed",
    "unreadable",
]

SCHEMA_VERSION = 1
"""Of the entries: rises when a phase or a payload changes its meaning."""


@dataclass(frozen=True, slots=True)
class TimelineEntry:
    """One thing that happened in a thread."""

    thread_id: str
    checkpoint_ns: str | None
    """The graph it happened in, empty for the root graph; None for an effect outside of any."""
    checkpoint_id: str | None
    """The checkpoint that it is, or that its task was made from."""
    run_id: str | None
    """If the run was given one in its config's metadata."""
    phase: Phase
    timestamp: int
    """When it was stored: milliseconds since 1970, by the server's clock."""
    payload: Mapping[str, Any]
    """What happened, as plain JSON values."""
    schema_version: int = SCHEMA_VERSION

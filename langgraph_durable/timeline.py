"""The timeline of a thread: its audit trail in order, built from what is stored.

`DurableSaver.timeline` returns it. How entries are ordered, and what the timeline cannot show: docs/design/timeline.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from typing_extensions import TypedDict

__all__ = ["SCHEMA_VERSION", "Phase", "TimelineEntry", "TimelinePayload", "TimelineToolCall"]

Phase: TypeAlias = Literal[
    # checkpoints
    "run_started",
    "step",
    "state_updated",
    "forked",
    "ended",  # only for root graphs built by StateGraph or entrypoint
    # writes of tasks
    "model_answered",
    "tool_answered",
    "replayed",
    "task_failed",
    "interrupted",
    "resumed",
    # events of the effect log
    "tool_begun",
    "tool_issued",  # if code reports it
    "tool_ended",
    "tool_unknown",
    "tool_suspended",
    "tool_refused",  # the report of an owner that was superseded
    "tool_acknowledged",  # a human said that the effect is dealt with
    # a row that cannot be read
    "unreadable",
]
"""What an entry reports."""

SCHEMA_VERSION = 1
"""The version of the entries' format: it rises when a phase or a payload changes its meaning."""


class TimelineToolCall(TypedDict):
    """A tool call in a model's answer."""

    id: str | None
    name: str
    args: Any


# The effect's state before (None for its first event) and after. A class body cannot declare "from", a keyword.
_Transition = TypedDict("_Transition", {"from": str | None, "to": str}, total=False)


class TimelinePayload(_Transition, total=False):
    """The details of an entry, as plain JSON values; the phase determines which keys are present.

    - `run_started`, `step`, `state_updated`, `forked`, `ended`: step, source
    - `model_answered`: task, node, message_id, content, tool_calls
    - `tool_answered`: task, node, message_id, content, tool, tool_call_id, status; `replayed`: effect, too
    - `interrupted`: task, node, interrupt_id, question
    - `resumed`: answer, the input of the run; or task, node, answers, what the task took
    - `task_failed`: task, node, error
    - `tool_*` of the effect log: tool, effect_id, tool_call_id, attempt, from, to, actor, reason; `tool_begun`: args,
      too
    - `unreadable`: unreadable, and the keys that could be read. Entries of other phases have it if a part of them
      cannot be read.
    """

    step: Any
    """LangGraph's number of the step."""
    source: Any
    """LangGraph's source of the checkpoint: "input", "loop", "update" or "fork"."""
    task: str
    """The id of the task."""
    node: str | None
    """The name of the node; None for tasks made by Send."""
    message_id: str | None
    content: Any
    """The content of the message."""
    tool_calls: Sequence[TimelineToolCall]
    tool: str | None
    """The name of the tool."""
    tool_call_id: str | None
    status: str
    """The status of the ToolMessage: "success" or "error"."""
    effect: Any
    """The mark of a replayed effect in its message."""
    interrupt_id: str
    question: Any
    """The argument of `interrupt()`."""
    answer: Any
    answers: Any
    error: Any
    effect_id: str
    """The ULID of the effect."""
    attempt: int
    actor: str | None
    """The process or person that moved the effect."""
    reason: str | None
    args: Any
    """The arguments of the call."""
    unreadable: str
    """What cannot be read, and why."""


@dataclass(frozen=True, slots=True)
class TimelineEntry:
    """One event in a thread."""

    thread_id: str
    checkpoint_ns: str | None
    """The graph it happened in, empty for the root graph; None for an effect outside of graphs."""
    checkpoint_id: str | None
    """The checkpoint itself, or the one that the task started from."""
    run_id: str | None
    """The run, if its config's metadata names one."""
    phase: Phase
    timestamp: int
    """When it was stored: milliseconds since 1970, by the server's clock."""
    payload: TimelinePayload
    """The details, as plain JSON values."""
    schema_version: int = SCHEMA_VERSION

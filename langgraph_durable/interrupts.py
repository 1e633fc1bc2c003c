"""Pending interrupts: the questions that threads wait with, for an approval page.

The rule is LangGraph's own: questions of unfinished tasks on the latest checkpoint of a thread's root graph, as
`graph.get_state` shows them.
A question stays pending until the task that takes the answer finishes. So it is listed while the resumed run goes on,
and if that run dies.
A graph that stops at `interrupt_before` or `interrupt_after` asks no question and is not listed.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

__all__ = ["PendingInterrupt"]


@dataclass(frozen=True, slots=True)
class PendingInterrupt:
    """A question that a thread waits with: resume it by `Command(resume={interrupt_id: answer})`."""

    thread_id: str
    checkpoint_ns: str
    """The innermost graph with checkpoints that asked; empty for the root graph."""
    checkpoint_id: str
    """The checkpoint, in that namespace, whose task asked."""
    interrupt_id: str | None
    """None if the question cannot be read."""
    question: Any
    """The argument of `interrupt()`."""
    response_schema: Any
    """The JSON schema of the answer, if the graph gave one."""
    asked_at: datetime
    """When the question was stored, by the server's clock. With durability "exit", that is the end of the run.

    If this time cannot be read, the time of the checkpoint.
    """
    age: timedelta
    """Time since `asked_at`, by the server's clock."""
    effect_id: str | None
    """The effect in question, if the effect log asks."""
    unreadable: str | None = None
    """What cannot be read, and why: it is damaged, or was written with another serializer or key."""

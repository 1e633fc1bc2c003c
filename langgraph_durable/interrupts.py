"""Who waits for a human: the inbox that an approval page needs.

What waits is what LangGraph takes for it: the questions on the latest checkpoint of a thread's root graph, of tasks
that have not finished. An answer does not end the waiting, the task that takes it does: so a question is in the inbox
while the run that was given its answer goes on, and if that run dies; `graph.get_state` shows it just so.
(A graph that stops at `interrupt_before` or `interrupt_after` asks nothing, and is not in it.)
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any


@dataclass(frozen=True, slots=True)
class PendingInterrupt:
    """A question that a thread waits with: resume it by `Command(resume={interrupt_id: answer})`."""

    thread_id: str
    checkpoint_ns: str
    """Of the innermost graph with checkpoints that asked; empty for the root graph."""
    checkpoint_id: str
    """The checkpoint, in that namespace, whose task asked."""
    interrupt_id: str | None
    """None if the question cannot be read. (When it was asked may be what cannot.)"""
    question: Any
    """What `interrupt()` was called with."""
    response_schema: Any
    """The JSON schema of the answer, if the graph gave one."""
    asked_at: datetime
    """When the question was stored, by the server's clock; with durability "exit", that is when the run ended.

    If that cannot be read, when its checkpoint was.
    """
    age: timedelta
    """How long ago that was, by the server's clock."""
    effect_id: str | None
    """The effect that the effect log asks about, if it is the log that asks."""
    unreadable: str | None = None
    """What of it cannot be read, and why: damaged, or written with another serializer or key than this saver's."""

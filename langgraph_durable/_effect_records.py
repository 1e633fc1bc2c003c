"""Effects and their history, as the log shows them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

from langgraph_durable._times import time_fault

State: TypeAlias = Literal["claimed", "issued", "suspended", "completed", "failed", "unknown", "abandoned"]
Source: TypeAlias = Literal["executed", "verified", "human"]

TRANSITIONS: Mapping[State, frozenset[State]] = MappingProxyType(
    {
        "claimed": frozenset({"claimed", "issued", "completed", "failed", "suspended"}),
        "issued": frozenset({"completed", "failed", "suspended", "unknown"}),
        "suspended": frozenset({"claimed", "issued", "unknown"}),
        "completed": frozenset(),
        "failed": frozenset({"claimed", "issued"}),
        "unknown": frozenset({"completed", "failed", "issued", "abandoned"}),
        "abandoned": frozenset(),
    }
)
"""State -> those that an effect may go to from there."""


@dataclass(frozen=True, slots=True)
class EffectRecord:
    """An effect as the log has it. Times are the server's."""

    effect_id: str
    """Its ULID."""
    tool: str
    args: Any
    """The arguments; None if they could not be stored, cannot be read with this serializer, or expired."""
    state: State
    scope: str
    """What makes two calls one effect: the policy's scope, or "key"."""
    thread_id: str | None
    checkpoint_ns: str | None
    checkpoint_id: str | None
    task_id: str | None
    run_id: str | None
    message_id: str | None
    tool_call_id: str | None
    attempts: int
    generation: int
    """How many keys the vendor got before `vendor_key`."""
    fence: int
    """Rises with each change of owner: only the last owner can report how it ended."""
    owner: str | None
    """Host, process id and a random part of the process that attempted it last; or who decided."""
    first_attempt_at: datetime
    attempted_at: datetime
    """Of the last attempt."""
    ended_at: datetime | None
    """Of what is completed, failed or abandoned."""
    source: Source | None
    """How the outcome is known."""
    error: str | None
    """Why it failed or is unknown, or why its result could not be stored."""
    result_lost: bool
    """Whether it took place and its result could not be stored."""
    vendor_key: str
    """The idempotency key for the vendor: the same for every attempt until one definitely failed."""
    unreadable: str | None = None
    """What of the effect's row cannot be read, and why. A damaged time is given as the last there is, or the first."""


@dataclass(frozen=True, slots=True)
class EffectEvent:
    """One step in the life of an effect."""

    effect_id: str
    at: datetime
    """By the server's clock."""
    from_state: State | None
    """None of the first."""
    to_state: State
    """The same as `from_state` where a late owner's report was refused."""
    fence: int
    attempt: int
    actor: str | None
    """The process or person that moved it."""
    reason: str | None
    unreadable: str | None = None
    """What of the event's row cannot be read, and why."""


def event_fault(effect_id: str, number: int, at: datetime, before: str | None, after: str) -> str | None:
    """Return what of an event's row cannot be read; None if nothing."""
    wrong = [time_fault(at=at)]
    for name, state in (("from_state", before), ("to_state", after)):
        if state is not None and state not in TRANSITIONS:
            wrong.append(f"{name}: {state!r} is none that is known")
    found = "; ".join(fault for fault in wrong if fault is not None)
    return f"cannot read event {number} of effect {effect_id}: {found}" if found else None

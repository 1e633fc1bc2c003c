"""Effects and their audit log, as users see them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

from langgraph_durable._effect_states import State as State

Source: TypeAlias = Literal["executed", "verified", "human"]

TRANSITIONS: Mapping[State, frozenset[State]] = MappingProxyType(
    {
        "claimed": frozenset({"claimed", "issued", "completed", "failed", "suspended"}),
        "issued": frozenset({"completed", "failed", "suspended", "unknown"}),
        "suspended": frozenset({"claimed", "issued", "unknown"}),
        "completed": frozenset(),
        "failed": frozenset({"claimed", "issued", "completed"}),
        "unknown": frozenset({"completed", "failed", "issued", "abandoned"}),
        "abandoned": frozenset(),
    }
)
"""State -> the states that may follow it."""


@dataclass(frozen=True, slots=True)
class EffectRecord:
    """An effect in the log. Times are by the server's clock."""

    effect_id: str
    """Its ULID."""
    tool: str
    args: Any
    """The arguments; None if they could not be stored, cannot be read with this serializer, or were deleted."""
    state: State
    scope: str
    """What identifies the effect: the policy's scope, or "key"."""
    thread_id: str | None
    checkpoint_ns: str | None
    checkpoint_id: str | None
    task_id: str | None
    run_id: str | None
    message_id: str | None
    tool_call_id: str | None
    attempts: int
    generation: int
    """How many idempotency keys came before `idempotency_key`."""
    fence: int
    """The fencing token: it rises with each change of owner, and only the last owner can report an outcome."""
    owner: str | None
    """The process that attempted it last (host, process id and a random part), or who decided."""
    first_attempt_at: datetime
    attempted_at: datetime
    """When the last attempt began."""
    ended_at: datetime | None
    """When it was completed, failed or abandoned; otherwise None."""
    source: Source | None
    """How the outcome is known: "executed", "verified" or "human"."""
    error: str | None
    """Why it failed or is unknown, or why its result could not be stored."""
    result_lost: bool
    """Whether it took place but its result could not be stored."""
    idempotency_key: str
    """The key sent to the provider: the same for every attempt until one definitely failed."""
    output_hash: str | None = None
    """The hash of the stored result, in hex; it outlives the result."""
    unreadable: str | None = None
    """What cannot be read in the effect's row, and why. Damaged times appear as the latest or earliest possible."""


@dataclass(frozen=True, slots=True)
class EffectEvent:
    """One entry in the audit log of an effect."""

    effect_id: str
    at: datetime
    """When, by the server's clock."""
    from_state: State | None
    """None for the first entry."""
    to_state: State
    """Equal to `from_state` if a late owner's report was refused, or a lost result was given."""
    fence: int
    attempt: int
    actor: str | None
    """The process or person that changed the state."""
    reason: str | None
    unreadable: str | None = None
    """What cannot be read in the event's row, and why."""

"""Effects and their history, as the log shows them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

State: TypeAlias = Literal["claimed", "issued", "suspended", "completed", "failed", "unknown", "abandoned"]
Source: TypeAlias = Literal["executed", "verified", "human"]

UNRESOLVED: tuple[State, ...] = ("claimed", "issued", "suspended", "unknown")

TRANSITIONS: Mapping[State, frozenset[State]] = MappingProxyType(
    {
        "claimed": frozenset({"claimed", "issued", "completed", "failed", "suspended"}),
        "issued": frozenset({"completed", "failed", "suspended", "unknown"}),
        "suspended": frozenset({"claimed", "issued"}),
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
    thread_id: str | None
    checkpoint_ns: str | None
    checkpoint_id: str | None
    task_id: str | None
    run_id: str | None
    message_id: str | None
    tool_call_id: str | None
    attempts: int
    generation: int
    fence: int
    owner: str | None
    first_attempt_at: datetime
    attempted_at: datetime
    ended_at: datetime | None
    source: Source | None
    error: str | None
    result_lost: bool
    vendor_key: str
    """The idempotency key for the vendor: the same for every attempt until one definitely failed."""


@dataclass(frozen=True, slots=True)
class EffectEvent:
    """One step in the life of an effect."""

    effect_id: str
    at: datetime
    from_state: State | None
    to_state: State
    fence: int
    attempt: int
    actor: str | None
    reason: str | None

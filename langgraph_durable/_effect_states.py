"""The states of effects, which the effect log writes and timelines read."""

from __future__ import annotations

from datetime import datetime
from typing import Literal, TypeAlias, get_args

from langgraph_durable._postgres.times import time_fault

State: TypeAlias = Literal["claimed", "issued", "suspended", "completed", "failed", "unknown", "abandoned"]


def event_fault(effect_id: str, number: int, at: datetime, before: str | None, after: str) -> str | None:
    """Return what cannot be read in the row of an effect's event; None if it is readable."""
    faults = [time_fault(at=at)]
    for name, state in (("from_state", before), ("to_state", after)):
        if state is not None and state not in get_args(State):
            faults.append(f"{name}: {state!r} is not a known state")
    found = "; ".join(fault for fault in faults if fault is not None)
    return f"cannot read event {number} of effect {effect_id}: {found}" if found else None

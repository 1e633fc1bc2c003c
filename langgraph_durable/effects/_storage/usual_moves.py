"""The two moves that nearly every effect makes: it is created, and its owner reports that it took place.

CLAIM and MOVE can do both. But the server takes twice as long to set up these long statements, so they are for the
other cases.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from langgraph_durable._postgres.database import Database, Session
from langgraph_durable.effects._storage import statements as sql
from langgraph_durable.effects._storage.rows import Claim, EffectRequest, EffectRow, Transition

INLINE_BYTES = 1 << 20
"""The size above which a result is stored apart from its effect."""


async def create_effect(
    db: Database | Session, request: EffectRequest, claim: Claim, params: Mapping[str, Any]
) -> EffectRow | None:
    """Create an effect, claimed; `params` are its claim's.

    Returns:
        The effect, or None if it exists, or one that may be the same.

    Round trips: 1. Transaction: its own.
    """
    rows = await db.fetch(sql.CREATE, params)
    if not rows:
        return None
    lease_until, now = rows[0]
    return EffectRow(
        effect_id=claim.claim_id,
        tool=request.tool,
        state=claim.state,
        previous_state=None,
        scope=request.scope,
        thread_id=request.thread_id,
        checkpoint_ns=request.checkpoint_ns,
        checkpoint_id=request.checkpoint_id,
        task_id=request.task_id,
        run_id=request.run_id,
        message_id=request.message_id,
        tool_call_id=request.tool_call_id,
        attempts=1,
        generation=0,
        fence=1,
        owner=claim.owner,
        first_attempt_at=now,
        attempted_at=now,
        ended_at=None,
        source=None,
        error=None,
        result_lost=False,
        key=request.key,
        vendor_seed=params["vendor_seed"],
        input_hash=request.input_hash,
        input_type=params["input_type"],
        input=params["input"],
        result_type=None,
        result=None,
        output_hash=None,
        lease_until=lease_until,
        expired_at=None,
        claim_id=None,
        keeps_key=False,
        now=now,
        note_count=0,
        notes=frozenset(),
    )


def is_usual(transition: Transition) -> bool:
    """Return whether a transition is an owner's report that its effect took place."""
    outcome = transition.outcome
    if outcome.state != "completed" or outcome.source != "executed" or transition.notes:
        return False
    return outcome.result is not None and len(outcome.result[1]) <= INLINE_BYTES


async def complete_effect(db: Database | Session, row: EffectRow, transition: Transition) -> EffectRow | None:
    """Record a usual report; return the effect after it, or None if it was not moved.

    Round trips: 1. Transaction: its own.
    """
    outcome = transition.outcome
    assert outcome.result is not None  # noqa: S101 (is_usual says so)
    result_type, result = outcome.result
    rows = await db.fetch(
        sql.COMPLETE,
        {
            "effect_id": row.effect_id,
            "from": list(transition.origins),
            "fence": transition.fence,
            "result_type": result_type,
            "result": result,
            "output_hash": outcome.output_hash,
            "actor": transition.actor,
            "reason": transition.reason,
        },
    )
    if not rows:
        return None
    previous_state, expired_at, now = rows[0]
    is_kept = expired_at is None
    return row._replace(
        state="completed",
        previous_state=previous_state,
        source="executed",
        ended_at=now,
        error=None,
        result_lost=False,
        result_type=result_type if is_kept else None,
        result=result if is_kept else None,
        output_hash=outcome.output_hash,
        lease_until=None,
        expired_at=expired_at,
        now=now,
    )

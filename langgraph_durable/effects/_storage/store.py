"""The operations on stored effects, each written once, over any Database."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from datetime import timedelta

from ulid import ULID

from langgraph_durable._checkpoints.known import WritesKey
from langgraph_durable._checkpoints.refs import CheckpointRef, resolve_checkpoint_id
from langgraph_durable._checkpoints.rows import Encoded
from langgraph_durable._postgres.database import Database, Session
from langgraph_durable._postgres.statement import Row
from langgraph_durable.effects._storage import statements as sql
from langgraph_durable.effects._storage.rows import (
    Claim,
    ClaimKind,
    EffectRequest,
    EffectRow,
    Note,
    Outcome,
    Transition,
    claim_params,
    scope_thread_of,
)
from langgraph_durable.effects._storage.usual_moves import (
    INLINE_BYTES,
    complete_effect,
    create_effect,
    is_usual,
)
from langgraph_durable.effects.records import TRANSITIONS
from langgraph_durable.errors import CheckpointCorruptedError, EffectInFlightError

_CLAIM_ATTEMPTS = 100
"""Usually one. Another one follows if another process creates the effect between the snapshot and the write."""


def new_effect_id() -> uuid.UUID:
    """Return a ULID as Postgres stores it."""
    return ULID().to_uuid()


# --- claims and moves ---


async def claim_effect(
    db: Database | Session, request: EffectRequest, claim: Claim
) -> tuple[ClaimKind, EffectRow]:
    """Claim an effect, or return it as it is, or a possible duplicate that must be resolved first.

    Returns:
        What was found, and the effect or its possible duplicate.

    Raises:
        CheckpointCorruptedError: The effect's row, or its duplicate's, is damaged: its end cannot be read from it.
        EffectInFlightError: The effect was neither created nor found.

    Round trips: 1; 2 if the effect or an equal one exists, or another process creates it at the same time. Transaction:
    its own.
    """
    params = claim_params(request, claim)
    if claim.may_be_new and (created := await create_effect(db, request, claim, params)) is not None:
        return ClaimKind.CLAIMED, created
    for _ in range(_CLAIM_ATTEMPTS):
        rows = await db.fetch(sql.CLAIM, params)
        if rows:
            return _found(claim, rows[0])
    raise EffectInFlightError(
        f"the effect {request.tool!r} could not be claimed: {_CLAIM_ATTEMPTS} attempts neither created nor found it. "
        f"Thread: {request.thread_id!r}, task: {request.task_id!r}. Check the table for triggers, or run again"
    )


def _found(claim: Claim, found: Row) -> tuple[ClaimKind, EffectRow]:
    row = effect_row(found[1:])
    if row.state not in TRANSITIONS or (row.notes and row.strange_note):
        raise CheckpointCorruptedError(
            f"{row.fault}. Its end is not known, so the call is not run. Repair or delete the row"
        )
    # The statement ran, its answer was lost, and this is the retry: the effect has this claim's id.
    if row.state == claim.state and (row.claim_id or row.effect_id) == claim.claim_id:
        return ClaimKind.CLAIMED, row
    return ClaimKind(found[0]), row


async def move_effect(
    db: Database | Session, effect_id: uuid.UUID, transition: Transition, *, row: EffectRow | None = None
) -> EffectRow | None:
    """Move an effect to another state, if it meets the transition's conditions.

    Args:
        db: A session to move it inside of an open transaction.
        effect_id: The effect.
        transition: The new state, and the states and the fence to move it from.
        row: The effect as its owner knows it, which makes the usual report cheaper.

    Returns:
        The effect after the move, or None if it was not moved.

    Round trips: 1. Transaction: its own.
    """
    outcome, origins = transition.outcome, transition.origins
    assert all(outcome.state in TRANSITIONS[origin] for origin in origins), transition  # noqa: S101 (no input leads here)
    if row is not None and is_usual(transition):
        return await complete_effect(db, row, transition)
    result_type, data = outcome.result or (None, None)
    is_large = data is not None and len(data) > INLINE_BYTES
    rows = await db.fetch(
        sql.MOVE,
        {
            "effect_id": effect_id,
            "to": outcome.state,
            "from": list(origins),
            "fence": transition.fence,
            "expired": transition.expired,
            "new_owner": int(transition.new_owner),
            "lease": transition.lease,
            "task_id": transition.task_id,
            "run_id": transition.run_id,
            "checkpoint_ns": transition.checkpoint_ns,
            "checkpoint_id": transition.checkpoint_id,
            "checkpoints": transition.checkpoints,
            "claim_id": transition.claim_id,
            "keeps_key": transition.keeps_key,
            "source": outcome.source,
            "error": _storable(outcome.error),
            "result_type": result_type,
            "result": None if is_large else data,
            "large": data if is_large else None,
            "result_lost": outcome.result_lost,
            "output_hash": outcome.output_hash,
            "notes": _notes_json(transition.notes),
            "added": len(transition.notes),
            "actor": _storable(transition.actor),
            "reason": _storable(transition.reason),
        },
    )
    if not rows:
        return None
    row = effect_row(rows[0])
    # The statement reads the notes as they were before it.
    return row._replace(notes=row.notes | set(transition.notes)) if transition.notes else row


async def expire_effect(db: Database, row: EffectRow, actor: str, *, by_hand: bool = False) -> bool:
    """Declare an issued effect unknown if its owner's lease has ended; return whether it did.

    The owner may be suspended and send its request later, so the vendor must recognize that by its key. A damaged
    lease expires only by a human's decision, because a live owner repairs it with its next renewal.
    """
    damaged = by_hand and row.lease_is_damaged
    expired = row.lease_until is not None and row.lease_until < row.now
    if row.state != "issued" or not (expired or damaged):
        return False
    transition = Transition(
        Outcome("unknown", error="its owner stopped renewing its lease"),
        origins=["issued"],
        actor=actor,
        reason="lease damaged" if damaged else "lease expired",
        fence=row.fence,
        expired=not damaged,
        keeps_key=True,
    )
    return await move_effect(db, row.effect_id, transition) is not None


async def restore_result(
    db: Database, effect_id: uuid.UUID, result: Encoded, output_hash: bytes, event: tuple[str, str]
) -> bool:
    """Give a completed effect its lost or expired result; return whether it had none.

    Args:
        db: The database.
        effect_id: The effect.
        result: The result, encoded.
        output_hash: Its hash.
        event: Who gives it and why, for the audit log.

    Round trips: 1. Transaction: its own.
    """
    kind, data = result
    is_large = len(data) > INLINE_BYTES
    params = {
        "effect_id": effect_id,
        "result_type": kind,
        "result": None if is_large else data,
        "large": data if is_large else None,
        "output_hash": output_hash,
        "actor": _storable(event[0]),
        "reason": _storable(event[1]),
    }
    return bool(await db.fetch(sql.RESTORE_RESULT, params))


async def record_refusal(db: Database, effect_id: uuid.UUID, fence: int, actor: str, reason: str) -> None:
    """Keep in the history what an owner reported after another one took its effect over."""
    await db.fetch(
        sql.RECORD_REFUSAL, {"effect_id": effect_id, "fence": fence, "actor": actor, "reason": reason}
    )


async def add_notes(db: Database, effect_id: uuid.UUID, notes: Sequence[Note]) -> None:
    """Add to an effect's notes, each of them once.

    Round trips: 1. Transaction: its own.
    """
    await db.fetch(sql.ADD_NOTES, {"effect_id": effect_id, "notes": _notes_json(notes)})


async def renew_leases(db: Database, leases: Sequence[tuple[uuid.UUID, int, timedelta]]) -> int:
    """Extend leases whose owner is alive; return how many their owners still hold."""
    rows = await db.fetch(sql.RENEW, [list(column) for column in zip(*leases, strict=True)])
    return len(rows)


# --- reading ---


async def find_completed(db: Database, request: EffectRequest) -> EffectRow | None:
    """Find an effect that was completed: all that a replay needs, for one read by key."""
    rows = await db.fetch(sql.FIND_COMPLETED, {"scope_thread": scope_thread_of(request), "key": request.key})
    return effect_row(rows[0]) if rows else None


async def get_effect(db: Database, effect_id: uuid.UUID) -> EffectRow | None:
    """Get an effect by its id."""
    rows = await db.fetch(sql.GET_EFFECT, {"effect_id": effect_id})
    return effect_row(rows[0]) if rows else None


async def find_call_effects(
    db: Database, thread_id: str, message_ids: Sequence[str], tool_call_ids: Sequence[str]
) -> list[EffectRow]:
    """Find the effects of tool calls, by their messages, and those of messages without an id; oldest first."""
    params = {"thread_id": thread_id, "message_ids": message_ids, "tool_call_ids": tool_call_ids}
    return [effect_row(row) for row in await db.fetch(sql.FIND_CALL_EFFECTS, params)]


async def get_large_result(db: Database | Session, effect_id: uuid.UUID) -> bytes | None:
    """Get a result that is stored apart from its effect."""
    rows = await db.fetch(sql.GET_RESULT, (effect_id,))
    return rows[0][0] if rows else None


async def list_effects(  # noqa: PLR0913 (filters by keyword)
    db: Database,
    *,
    states: Sequence[str] | None = None,
    or_none_known: bool = False,
    tool: str | None = None,
    thread_id: str | None = None,
    run_id: str | None = None,
    after: uuid.UUID | None = None,
    limit: int | None = None,
) -> list[EffectRow]:
    """List effects, oldest first: those in some states, and optionally those in a state that is not known."""
    params = {
        "states": list(states) if states is not None else None,
        "known": list(TRANSITIONS) if or_none_known else None,
        "tool": tool,
        "thread_id": thread_id,
        "run_id": run_id,
        "after": after,
        "limit": limit,
    }
    return [effect_row(row) for row in await db.fetch(sql.LIST_EFFECTS, params)]


async def list_checkpoint_effects(db: Database, ref: CheckpointRef) -> list[EffectRow]:
    """List the effects that the tasks of a checkpoint requested; of the latest one if `ref` names none.

    Round trips: 1; 2 if the checkpoint is named by a ULID.
    """
    checkpoint_id = ref.checkpoint_id
    if checkpoint_id is not None:
        checkpoint_id = await resolve_checkpoint_id(db, ref, checkpoint_id)
    params = {"thread_id": ref.thread_id, "checkpoint_ns": ref.namespace, "checkpoint_id": checkpoint_id}
    return [effect_row(row) for row in await db.fetch(sql.LIST_CHECKPOINT_EFFECTS, params)]


async def list_events(db: Database, effect_id: uuid.UUID) -> list[Row]:
    """List the history of an effect, oldest first."""
    return await db.fetch(sql.LIST_EVENTS, (effect_id,))


async def checkpoint_exists(db: Database, thread_id: str, checkpoint_ns: str, checkpoint_id: str) -> bool:
    """Return whether a checkpoint is stored."""
    [(exists,)] = await db.fetch(sql.CHECKPOINT_EXISTS, (thread_id, checkpoint_ns, checkpoint_id))
    return bool(exists)


async def get_write_channels(db: Database, key: WritesKey) -> list[str]:
    """Get the channels of a task's pending writes, once for each write."""
    return [channel for (channel,) in await db.fetch(sql.GET_WRITE_CHANNELS, key)]


def effect_row(row: Row) -> EffectRow:
    """Return an effect from the columns in effect_columns.sql."""
    return EffectRow._make([*row[:-1], frozenset(Note(*note) for note in row[-1] or ())])


def _notes_json(notes: Sequence[Note]) -> str | None:
    return json.dumps([note._asdict() for note in notes]) if notes else None


def _storable(text: str | None) -> str | None:
    """Escape what Postgres cannot store of a text that others wrote: NUL and lone surrogates."""
    if text is None:
        return None
    return text.replace("\0", "\\0").encode(errors="backslashreplace").decode()

"""Deciding on an effect by hand."""

from __future__ import annotations

from langgraph.checkpoint.serde.base import SerializerProtocol

from langgraph_durable._postgres.database import Database
from langgraph_durable.effects import _store as ops
from langgraph_durable.effects._attempt import owner
from langgraph_durable.effects._encoding import record_of
from langgraph_durable.effects._lineage import acknowledge_effect
from langgraph_durable.effects._reading import require_effect_id
from langgraph_durable.effects._rows import EffectRow
from langgraph_durable.effects._run import Decision, resolve
from langgraph_durable.effects.policy import Finding, Happened, NotHappened
from langgraph_durable.effects.records import TRANSITIONS, EffectRecord
from langgraph_durable.errors import CheckpointCorruptedError, EffectError


async def decide(
    db: Database,
    serde: SerializerProtocol,
    effect_id: str,
    finding: Finding | None,
    *,
    note: str | None,
    actor: str | None,
) -> EffectRecord:
    """Apply a human's finding to an unknown effect; None abandons it.

    Raises:
        EffectError: The finding is not a decision, there is no such effect, or it needs no decision.
        CheckpointCorruptedError: The effect's row is damaged.

    Round trips: 4, and 1 more if its lease expired. Transaction: one for each.
    """
    ulid = require_effect_id(effect_id)
    if finding is not None and not isinstance(finding, (Happened, NotHappened)):
        raise EffectError(
            f"{finding!r:.100} is not a decision on effect {effect_id}. Pass Happened(result), NotHappened(), or None "
            "to abandon the effect"
        )
    row = await ops.get_effect(db, ulid)
    if row is not None:
        await ops.expire_effect(db, row, owner(), by_hand=True)
        row = await ops.get_effect(db, ulid)
    row = _require_decidable(row, effect_id)
    decided = row.state == "unknown" and await resolve(
        db, serde, row, Decision(finding, "human", actor or owner(), note)
    )
    if not decided:
        raise EffectError(
            f"effect {effect_id} is {row.state} and needs no decision. Only unknown effects do, and those whose owner "
            "stopped renewing its lease"
        )
    after = await ops.get_effect(db, ulid)
    assert after is not None  # noqa: S101 (effects are never deleted)
    return record_of(serde, after)


async def acknowledge(
    db: Database, serde: SerializerProtocol, effect_id: str, *, note: str | None, actor: str | None
) -> EffectRecord:
    """Note that a human dealt with an effect.

    Raises:
        EffectError: There is no such effect.

    Round trips: 2. Transaction: one for each.
    """
    ulid = require_effect_id(effect_id)
    reason = f"acknowledged: {note}" if note else "acknowledged"
    await acknowledge_effect(db, ulid, actor or owner(), reason)
    row = await ops.get_effect(db, ulid)
    if row is None:
        raise EffectError(f"there is no effect {effect_id!r}. saver.effects.list() lists them")
    return record_of(serde, row)


def _require_decidable(row: EffectRow | None, effect_id: str) -> EffectRow:
    if row is None:
        raise EffectError(
            f"there is no effect {effect_id!r}. saver.effects.pending() lists those to decide on"
        )
    if row.state not in TRANSITIONS:
        raise CheckpointCorruptedError(f"{row.fault}. Repair its row before you decide on it")
    return row

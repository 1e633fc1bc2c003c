"""Deciding on an effect by hand."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import get_args

from langgraph.checkpoint.serde.base import SerializerProtocol

from langgraph_durable._postgres.database import Database
from langgraph_durable.effects._protocol import effect_errors
from langgraph_durable.effects._protocol.attempt import owner
from langgraph_durable.effects._protocol.lineage import acknowledge_effect
from langgraph_durable.effects._protocol.run import Decision, resolve
from langgraph_durable.effects._reading import require_effect_id
from langgraph_durable.effects._storage import store as ops
from langgraph_durable.effects._storage.encoding import encode_result, hash_result, record_of
from langgraph_durable.effects._storage.rows import EffectRow, Note, NoteKind, Outcome, Transition
from langgraph_durable.effects.policy import DecisionWord, Finding, Happened, NotHappened
from langgraph_durable.effects.records import TRANSITIONS, EffectRecord
from langgraph_durable.errors import CheckpointCorruptedError, EffectError

_WAITS = (NoteKind.QUESTION.value, NoteKind.WAITING.value)


@dataclass(frozen=True, slots=True)
class ByHand:
    """A decision that came from outside of the graph.

    Attributes:
        given: What was decided.
        note: The reason, for the audit log.
        actor: Who decides, for the audit log.
        force: Whether to take the effect from an owner that still renews its lease.
    """

    given: Finding | DecisionWord | None
    note: str | None
    actor: str | None
    force: bool

    @property
    def who(self) -> str:
        """Who decides; this process if no one is named."""
        return self.actor or owner()

    def finding(self, effect_id: str) -> Happened | NotHappened | None:
        """Return whether the effect took place; None abandons it.

        Raises:
            EffectError: It is not a decision.
        """
        given = self.given
        if given is None or given == "abandon":
            return None
        if isinstance(given, (Happened, NotHappened)):
            return given
        if given == "happened":
            return Happened()
        if given in ("not_happened", "retry", "failed"):
            return NotHappened()
        words = ", ".join(map(repr, get_args(DecisionWord)))
        raise EffectError(
            f"{given!r:.100} is not a decision on effect {effect_id}. Pass Happened(result), NotHappened(), or one of "
            f"{words}. On the command line: `langgraph-durable effects resolve {effect_id} DECISION`",
            effect_id,
            see="not-to-be-decided",
        )


async def decide(db: Database, serde: SerializerProtocol, effect_id: str, decision: ByHand) -> EffectRecord:
    """Apply a human's decision to an effect.

    Raises:
        EffectError: It is not a decision, there is no such effect, or it needs no decision.
        CheckpointCorruptedError: The effect's row is damaged.

    Round trips: 4, and 1 more if its lease expired or is taken by force. Transaction: one for each.
    """
    ulid = require_effect_id(effect_id)
    finding = decision.finding(effect_id)
    row = _require_decidable(await ops.get_effect(db, ulid), effect_id)
    if isinstance(finding, Happened) and await _give_result(db, serde, row, finding, decision):
        return await _record(db, serde, ulid)
    if await ops.expire_effect(db, row, owner(), by_hand=True) or (
        decision.force and await _take_by_force(db, row, decision)
    ):
        row = _require_decidable(await ops.get_effect(db, ulid), effect_id)
    if row.state != "unknown" and not (decision.force and row.state == "claimed" and finding is not None):
        raise effect_errors.needs_no_decision(row)
    reason = decision.note
    if decision.given == "failed":
        reason = ": ".join(filter(None, ["failed", decision.note]))
    applied = Decision(finding, "human", decision.who, reason, _notes(row, decision))
    if not await resolve(db, serde, row, applied):
        raise effect_errors.needs_no_decision(await ops.get_effect(db, ulid) or row)
    return await _record(db, serde, ulid)


async def _record(db: Database, serde: SerializerProtocol, effect_id: uuid.UUID) -> EffectRecord:
    after = await ops.get_effect(db, effect_id)
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


async def _give_result(
    db: Database, serde: SerializerProtocol, row: EffectRow, finding: Happened, decision: ByHand
) -> bool:
    """Store the result of an effect that took place and has none; return whether it had none."""
    if row.state != "completed" or not (row.result_lost or row.expired_at is not None):
        return False
    result = encode_result(serde, finding.result, f"the result of {row.tool!r}")
    reason = ": ".join(filter(None, ["its result was given", decision.note]))
    return await ops.restore_result(db, row.effect_id, result, hash_result(result), (decision.who, reason))


async def _take_by_force(db: Database, row: EffectRow, decision: ByHand) -> bool:
    """Take an issued effect from a live owner, whose report is refused from then on."""
    if row.state != "issued":
        return False
    transition = Transition(
        Outcome("unknown", error="taken from an owner that had not ended"),
        ["issued"],
        decision.who,
        reason="taken by force",
        fence=row.fence,
        new_owner=True,
        keeps_key=True,  # the owner may still send its request
    )
    return await ops.move_effect(db, row.effect_id, transition) is not None


def _notes(row: EffectRow, decision: ByHand) -> list[Note]:
    """Return the notes by which the tasks that wait for the effect know that they must not try it again."""
    if decision.given != "failed":
        return []
    tasks = {note.task_id for note in row.notes if note.kind in _WAITS} | {row.task_id or ""}
    if tasks == {""}:
        raise EffectError(
            f"{effect_errors.describe(row)} was requested outside of a graph, so no task waits for it that could be "
            'kept from trying it again. Decide "not_happened", after which the next call tries it again, or "abandon"',
            see="not-to-be-decided",
        )
    return [Note(NoteKind.REFUSED.value, task_id) for task_id in sorted(tasks - {""})]


def _require_decidable(row: EffectRow | None, effect_id: str) -> EffectRow:
    if row is None:
        raise EffectError(
            f"there is no effect {effect_id!r}. saver.effects.pending(), or `langgraph-durable effects list`, lists "
            "those to decide on",
            see="not-to-be-decided",
        )
    if row.state not in TRANSITIONS:
        raise CheckpointCorruptedError(f"{row.fault}. Repair its row before you decide on it")
    return row

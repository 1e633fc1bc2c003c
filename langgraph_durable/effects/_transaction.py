"""Effects whose outcome is committed together with rows in the saver's database."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from langgraph_durable._checkpoints.ulids import format_ulid
from langgraph_durable._postgres.session import Session
from langgraph_durable.effects import _statements as sql
from langgraph_durable.effects import _store as ops
from langgraph_durable.effects._attempt import Attempt, owner
from langgraph_durable.effects._claim import Guard
from langgraph_durable.effects.handle import Effect
from langgraph_durable.errors import EffectConflictError, EffectError

_LEASE = timedelta(days=1)
"""Never renewed and never seen: a transaction that does not commit leaves no claim."""


class TransactionEffect(Effect):
    """An effect whose outcome is recorded by the transaction it is part of."""

    @property
    def attempt(self) -> Attempt:
        """What this process claimed, or found completed."""
        return self._attempt

    def issue(self) -> None:
        """Do nothing: nothing takes place before the commit."""

    def complete(self, result: Any = None) -> None:
        """Keep a result; it is recorded with the transaction."""
        self._require_attempted()
        self._attempt.value = result

    def fail(self, error: str) -> None:
        """Refuse, because an exception is what rolls the transaction back."""
        raise EffectError(f"fail({error!r}) cannot roll the transaction back. Raise an exception instead")

    async def record(self, session: Session) -> None:
        """Record the outcome, before the transaction commits."""
        if self.replayed:
            return
        row = self._attempt.row
        await ops.move_effect(
            session,
            row.effect_id,
            self._guard.outcome_of(self._attempt.value),
            origins=["issued"],
            actor=owner(),
            reason="in one transaction",
            fence=row.fence,
        )


async def begin_in_transaction(guard: Guard, session: Session) -> TransactionEffect:
    """Claim an effect inside a transaction, or find its outcome.

    Raises:
        EffectConflictError: The key was used with other arguments.
        EffectError: The effect was begun outside a transaction and is not completed.
    """
    kind, row = await ops.claim_effect(
        session,
        guard.call,
        ops.new_effect_id(),
        "issued",
        owner(),
        _LEASE,
        check_duplicates=False,
        resumes=guard.resumes,
    )
    if kind == sql.CLAIMED:
        return TransactionEffect(guard, Attempt(row, guard.policy, replayed=False))
    what = f"effect {format_ulid(row.effect_id)} ({row.tool!r})"
    if row.input_hash != guard.call.input_hash:
        raise EffectConflictError(
            f"{what} was recorded under this key with other arguments. Use another key for another effect"
        )
    if row.state != "completed":
        raise EffectError(
            f"{what} was begun outside a transaction and is {row.state}. Resolve it first, or use another key"
        )
    return TransactionEffect(guard, await guard.replay(row, session))

"""Effects whose outcome is committed together with rows in the saver's database."""

from __future__ import annotations

from typing import Any

from langgraph_durable._postgres.database import Session
from langgraph_durable.effects._protocol.attempt import Attempt, EffectCall
from langgraph_durable.effects._protocol.claim import begin_in_transaction
from langgraph_durable.effects._protocol.run import complete_in_transaction
from langgraph_durable.effects.handle import Effect
from langgraph_durable.errors import EffectError


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
        if not self.replayed:
            await complete_in_transaction(self._call, session, self._attempt)


async def begin_transaction_effect(call: EffectCall, session: Session) -> TransactionEffect:
    """Claim an effect inside a transaction, or find its outcome; see `begin_in_transaction`."""
    return TransactionEffect(call, await begin_in_transaction(call, session))

"""The part of the effect log that takes decisions."""

from __future__ import annotations

from langgraph_durable._postgres.database import run_sync
from langgraph_durable.effects._decisions.deciding import ByHand, decide
from langgraph_durable.effects._protocol.executor import EffectExecutor
from langgraph_durable.effects.policy import DecisionWord, Finding
from langgraph_durable.effects.records import EffectRecord


class Resolving:
    """Decides on effects; see EffectLog."""

    def __init__(self, executor: EffectExecutor) -> None:
        self.executor = executor

    def resolve(
        self,
        effect_id: str,
        decision: Finding | DecisionWord | None,
        *,
        note: str | None = None,
        actor: str | None = None,
        force: bool = False,
    ) -> EffectRecord:
        """Decide on an effect whose outcome is unknown; then run the graph again.

        An effect that took place without a result, because it could not be stored or has expired, gets one by
        `Happened(result)`.

        Args:
            effect_id: The effect's ULID.
            decision: `Happened(result)`, or "happened" if it returns None; `NotHappened()`, "not_happened" or "retry",
                after which it is tried again; "failed", after which the waiting task does not try it again; or
                "abandon" or None, because it can never be known.
            note: The reason, for the audit log.
            actor: Who decides, for the audit log.
            force: Whether to decide although the owner still renews its lease, as a body that hangs does. Its end is
                refused from then on.

        Raises:
            EffectError: There is no such effect, or it needs no decision.
        """
        by_hand = ByHand(decision, note, actor, force)
        return run_sync(decide(self.executor.context.db, self.executor.serde, effect_id, by_hand))

    async def aresolve(
        self,
        effect_id: str,
        decision: Finding | DecisionWord | None,
        *,
        note: str | None = None,
        actor: str | None = None,
        force: bool = False,
    ) -> EffectRecord:
        """Decide on an effect whose outcome is unknown; see `resolve`."""
        by_hand = ByHand(decision, note, actor, force)
        return await decide(self.executor.context.adb, self.executor.serde, effect_id, by_hand)

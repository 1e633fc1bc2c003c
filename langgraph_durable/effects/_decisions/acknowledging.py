"""The methods of an effect log by which a human says that an effect is dealt with."""

from __future__ import annotations

from langgraph_durable._postgres.database import run_sync
from langgraph_durable.effects._decisions.deciding import acknowledge
from langgraph_durable.effects._protocol.executor import EffectExecutor
from langgraph_durable.effects.records import EffectRecord


class AcknowledgeMethods:
    """A part of EffectLog."""

    executor: EffectExecutor

    def acknowledge(
        self, effect_id: str, *, note: str | None = None, actor: str | None = None
    ) -> EffectRecord:
        """Say that an effect is dealt with, so that an equal call after it is a new effect.

        This changes neither the effect's state nor its result: the same call still gets it. An effect with an unknown
        outcome stays unknown; decide on it with `resolve`.

        Args:
            effect_id: The effect's ULID.
            note: The reason, for the audit log.
            actor: Who says so, for the audit log.

        Raises:
            EffectError: There is no such effect.
        """
        executor = self.executor
        return run_sync(acknowledge(executor.context.db, executor.serde, effect_id, note=note, actor=actor))

    async def aacknowledge(
        self, effect_id: str, *, note: str | None = None, actor: str | None = None
    ) -> EffectRecord:
        """Say that an effect is dealt with; see `acknowledge`."""
        executor = self.executor
        return await acknowledge(executor.context.adb, executor.serde, effect_id, note=note, actor=actor)

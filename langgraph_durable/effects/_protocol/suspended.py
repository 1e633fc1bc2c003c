"""Effects whose bodies wait for a human."""

from __future__ import annotations

from langgraph_durable.effects._protocol.attempt import EffectCall, owner
from langgraph_durable.effects._storage import store
from langgraph_durable.effects._storage.rows import EffectRow, Outcome, Transition


async def declare_unknown(call: EffectCall, row: EffectRow) -> bool:
    """Declare a suspended effect unknown, because its body may have sent something before it waited for a human."""
    transition = Transition(
        Outcome("unknown", error="its body waited for a human after it had begun"),
        ["suspended"],
        owner(),
        reason="runs again after it waited",
        fence=row.fence,
        keeps_key=True,  # it did not fail, so the vendor must recognize it
    )
    return await store.move_effect(call.db, row.effect_id, transition) is not None

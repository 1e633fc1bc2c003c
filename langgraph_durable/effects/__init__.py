"""Effects: what tools do to the outside world, made to happen once, whatever crashes."""

from langgraph_durable._effect_records import EffectEvent, EffectRecord
from langgraph_durable.effects.decorator import effect
from langgraph_durable.effects.log import AsyncEffect, Effect, EffectHandle, EffectLog, current_effect
from langgraph_durable.effects.policy import (
    IDEMPOTENT,
    READ_ONLY,
    EffectPolicy,
    Happened,
    NotHappened,
    Undetermined,
)

__all__ = [
    "IDEMPOTENT",
    "READ_ONLY",
    "AsyncEffect",
    "Effect",
    "EffectEvent",
    "EffectHandle",
    "EffectLog",
    "EffectPolicy",
    "EffectRecord",
    "Happened",
    "NotHappened",
    "Undetermined",
    "current_effect",
    "effect",
]

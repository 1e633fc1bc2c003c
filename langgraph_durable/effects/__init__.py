"""Effects: what tools do to the outside world, made to happen once, whatever crashes."""

from langgraph_durable.effects.decorator import effect
from langgraph_durable.effects.handle import AsyncEffect, Effect, EffectHandle, current_effect
from langgraph_durable.effects.log import EffectLog
from langgraph_durable.effects.policy import (
    IDEMPOTENT,
    READ_ONLY,
    EffectPolicy,
    Happened,
    NotHappened,
    Undetermined,
)
from langgraph_durable.effects.records import EffectEvent, EffectRecord

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

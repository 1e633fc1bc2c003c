"""Effects: what tools do to the outside world, carried out at most once, also across crashes."""

from typing import TYPE_CHECKING, Any

from langgraph_durable.effects.decorator import effect
from langgraph_durable.effects.handle import AsyncEffect, Effect, RunningEffect, current_effect
from langgraph_durable.effects.log import EffectLog
from langgraph_durable.effects.policy import (
    IDEMPOTENT,
    READ_ONLY,
    DecisionWord,
    EffectPolicy,
    Finding,
    Happened,
    NotHappened,
    OnFork,
    OnUndelivered,
    OnUnknown,
    Scope,
    Undetermined,
    Verify,
)
from langgraph_durable.effects.records import EffectEvent, EffectRecord, Source
from langgraph_durable.effects.records import State as EffectState

if TYPE_CHECKING:
    from langgraph_durable.effects.tools import ToolWrapper

__all__ = [
    "IDEMPOTENT",
    "READ_ONLY",
    "AsyncEffect",
    "DecisionWord",
    "Effect",
    "EffectEvent",
    "EffectLog",
    "EffectPolicy",
    "EffectRecord",
    "EffectState",
    "Finding",
    "Happened",
    "NotHappened",
    "OnFork",
    "OnUndelivered",
    "OnUnknown",
    "RunningEffect",
    "Scope",
    "Source",
    "ToolWrapper",
    "Undetermined",
    "Verify",
    "current_effect",
    "effect",
]


def __getattr__(name: str) -> Any:
    if name == "ToolWrapper":  # langchain's tools take 0.3 s to import
        from langgraph_durable.effects.tools import ToolWrapper

        return ToolWrapper
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

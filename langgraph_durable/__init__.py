"""A LangGraph checkpoint saver on Postgres that survives what production does to agents."""

from typing import TYPE_CHECKING, Any

from langgraph_durable.effects import (
    IDEMPOTENT,
    READ_ONLY,
    AsyncEffect,
    Effect,
    EffectEvent,
    EffectHandle,
    EffectLog,
    EffectPolicy,
    EffectRecord,
    Happened,
    NotHappened,
    Undetermined,
    current_effect,
    effect,
)
from langgraph_durable.errors import (
    CheckpointCorruptedError,
    CompactionRefusedError,
    DurableError,
    EffectAbandonedError,
    EffectConflictError,
    EffectError,
    EffectForkedError,
    EffectInFlightError,
    EffectSupersededError,
    EffectUnknownError,
    EffectUnresolvedError,
    EmbeddedPostgresError,
    InvalidConfigError,
    ParentMissingError,
    ParentPrunedError,
    PruneFailedError,
    SaverClosedError,
    SchemaOutOfDateError,
    ThreadDeletedError,
    ThreadExistsError,
    UnserializableValueError,
)
from langgraph_durable.interrupts import PendingInterrupt, apending_interrupts, pending_interrupts
from langgraph_durable.reports import (
    DeleteReceipt,
    Latency,
    PruneAllReport,
    PruneProgress,
    PruneReport,
    Removed,
    SaverMetrics,
    StorageStats,
    TableStorage,
)
from langgraph_durable.saver import DurableSaver
from langgraph_durable.timeline import TimelineEntry

if TYPE_CHECKING:
    from langgraph_durable.effects.middleware import EffectMiddleware

__version__ = "0.1.0"

__all__ = [
    "IDEMPOTENT",
    "READ_ONLY",
    "AsyncEffect",
    "CheckpointCorruptedError",
    "CompactionRefusedError",
    "DurableError",
    "DurableSaver",
    "Effect",
    "EffectAbandonedError",
    "EffectConflictError",
    "EffectError",
    "EffectEvent",
    "EffectForkedError",
    "EffectHandle",
    "EffectInFlightError",
    "EffectLog",
    "EffectMiddleware",
    "EffectPolicy",
    "EffectRecord",
    "EffectSupersededError",
    "EffectUnknownError",
    "EffectUnresolvedError",
    "EmbeddedPostgresError",
    "DeleteReceipt",
    "Happened",
    "InvalidConfigError",
    "Latency",
    "NotHappened",
    "ParentMissingError",
    "ParentPrunedError",
    "PendingInterrupt",
    "PruneFailedError",
    "PruneReport",
    "Removed",
    "SaverClosedError",
    "SaverMetrics",
    "SchemaOutOfDateError",
    "StorageStats",
    "PruneProgress",
    "PruneAllReport",
    "TableStorage",
    "ThreadDeletedError",
    "ThreadExistsError",
    "TimelineEntry",
    "Undetermined",
    "UnserializableValueError",
    "__version__",
    "apending_interrupts",
    "current_effect",
    "effect",
    "pending_interrupts",
]


def __getattr__(name: str) -> Any:
    if name == "EffectMiddleware":  # imports langchain, which most do not need
        try:
            from langgraph_durable.effects.middleware import EffectMiddleware
        except ImportError as exc:
            raise ImportError(
                "EffectMiddleware needs langchain: pip install 'langgraph-durable[agents]'"
            ) from exc
        return EffectMiddleware
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

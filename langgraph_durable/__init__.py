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
    CheckpointCorrupted,
    CompactionRefused,
    DurableError,
    EffectAbandoned,
    EffectConflict,
    EffectError,
    EffectForked,
    EffectInFlight,
    EffectSuperseded,
    EffectUnknown,
    EffectUnresolved,
    EmbeddedPostgresError,
    InvalidConfig,
    ParentMissing,
    ParentPruned,
    PruneFailed,
    SaverClosed,
    SchemaOutOfDate,
    ThreadDeleted,
    ThreadExists,
    UnserializableValue,
)
from langgraph_durable.interrupts import PendingInterrupt, apending_interrupts, pending_interrupts
from langgraph_durable.reports import (
    EraseReceipt,
    Latency,
    PruneReport,
    Removed,
    SaverMetrics,
    StorageStats,
    SweepProgress,
    SweepReport,
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
    "CheckpointCorrupted",
    "CompactionRefused",
    "DurableError",
    "DurableSaver",
    "Effect",
    "EffectAbandoned",
    "EffectConflict",
    "EffectError",
    "EffectEvent",
    "EffectForked",
    "EffectHandle",
    "EffectInFlight",
    "EffectLog",
    "EffectMiddleware",
    "EffectPolicy",
    "EffectRecord",
    "EffectSuperseded",
    "EffectUnknown",
    "EffectUnresolved",
    "EmbeddedPostgresError",
    "EraseReceipt",
    "Happened",
    "InvalidConfig",
    "Latency",
    "NotHappened",
    "ParentMissing",
    "ParentPruned",
    "PendingInterrupt",
    "PruneFailed",
    "PruneReport",
    "Removed",
    "SaverClosed",
    "SaverMetrics",
    "SchemaOutOfDate",
    "StorageStats",
    "SweepProgress",
    "SweepReport",
    "TableStorage",
    "ThreadDeleted",
    "ThreadExists",
    "TimelineEntry",
    "Undetermined",
    "UnserializableValue",
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

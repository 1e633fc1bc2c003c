"""A LangGraph checkpoint saver on Postgres that survives what production does to agents."""

from langgraph_durable.errors import (
    CheckpointCorrupted,
    CompactionRefused,
    DurableError,
    EmbeddedPostgresError,
    InvalidConfig,
    ParentPruned,
    PruneFailed,
    SaverClosed,
    SchemaOutOfDate,
    ThreadDeleted,
    ThreadExists,
    UnserializableValue,
)
from langgraph_durable.reports import EraseReceipt, PruneReport, Removed, SweepProgress, SweepReport
from langgraph_durable.saver import DurableSaver

__version__ = "0.1.0"

__all__ = [
    "CheckpointCorrupted",
    "CompactionRefused",
    "DurableError",
    "DurableSaver",
    "EmbeddedPostgresError",
    "EraseReceipt",
    "InvalidConfig",
    "ParentPruned",
    "PruneFailed",
    "PruneReport",
    "Removed",
    "SaverClosed",
    "SchemaOutOfDate",
    "SweepProgress",
    "SweepReport",
    "ThreadDeleted",
    "ThreadExists",
    "UnserializableValue",
    "__version__",
]

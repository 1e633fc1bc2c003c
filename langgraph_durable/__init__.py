"""A LangGraph checkpoint saver on Postgres that survives what production does to agents."""

from langgraph_durable.errors import (
    CheckpointCorrupted,
    DurableError,
    EmbeddedPostgresError,
    InvalidConfig,
    ParentPruned,
    SaverClosed,
    SchemaOutOfDate,
    ThreadDeleted,
    UnserializableValue,
)
from langgraph_durable.saver import DurableSaver

__version__ = "0.1.0"

__all__ = [
    "CheckpointCorrupted",
    "DurableError",
    "DurableSaver",
    "EmbeddedPostgresError",
    "InvalidConfig",
    "ParentPruned",
    "SaverClosed",
    "SchemaOutOfDate",
    "ThreadDeleted",
    "UnserializableValue",
    "__version__",
]

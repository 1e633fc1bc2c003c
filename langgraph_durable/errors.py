"""Every error this package raises of its own.

    DurableError
    ├── SchemaOutOfDate        the tables are missing, older or newer than this package
    ├── CheckpointCorrupted    a stored row cannot be read; the message says which
    ├── InvalidConfig          a config, filter, conninfo or argument cannot be used (also a ValueError)
    ├── UnserializableValue    a value cannot be stored; the message names its channel (also a TypeError)
    ├── ThreadDeleted          the thread was deleted while the run that saves was still going
    ├── ParentPruned           the checkpoint that a run starts from was pruned, perhaps while it was going
    ├── ParentMissing          the parent of a checkpoint is not stored, and delta channels need it
    ├── ThreadExists           a thread cannot be copied onto one that has checkpoints
    ├── CompactionRefused      a thread would not have the same state after compaction
    ├── PruneFailed            some threads could not be pruned; it carries the report of the others
    ├── SaverClosed            the saver, or a pool given to it, was closed
    ├── EffectError            an effect cannot be kept to once where it was asked for
    │   ├── EffectConflict     the same call came with other arguments
    │   ├── EffectInFlight     another attempt still goes on elsewhere
    │   ├── EffectUnknown      nobody knows whether it happened: it waits for a decision
    │   ├── EffectUnresolved   a thread cannot be deleted whose effects may have happened
    │   ├── EffectAbandoned    it was given up by a decision
    │   ├── EffectForked       another branch of the history did it already
    │   └── EffectSuperseded   an owner came back after another had taken over
    └── EmbeddedPostgresError  the embedded Postgres cannot start

Database errors that none of these describes better reach the caller as psycopg raised them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from langgraph_durable.reports import PruneReport


class DurableError(Exception):
    """Base of every error this package raises of its own."""


class SchemaOutOfDate(DurableError):
    """The database's tables are missing, older than this package, or newer than it."""


class CheckpointCorrupted(DurableError):
    """A stored row cannot be read; the message names its thread, namespace, id and channel."""


class InvalidConfig(DurableError, ValueError):
    """A config, filter, connection string or argument cannot be used; the message names the remedy."""


class UnserializableValue(DurableError, TypeError):
    """A value cannot be serialized; the message names its channel."""


class ThreadDeleted(DurableError):
    """The thread was deleted while the run that saves was still going; nothing was stored."""


class ParentPruned(DurableError):
    """The checkpoint that a run starts from was pruned, before it or while it was going; nothing was stored."""


class ParentMissing(DurableError):
    """The parent of a checkpoint is not stored, and delta channels are replayed from it; nothing was stored."""


class ThreadExists(DurableError):
    """A thread cannot be copied onto one that has checkpoints; nothing was copied."""


class CompactionRefused(DurableError):
    """A thread would not have the same state after compaction; nothing of it was changed."""


class PruneFailed(DurableError):
    """Some threads could not be pruned, after retries; the others were.

    Attributes:
        report: What was removed from the threads that were pruned. After a sweep, which may be of any number of
            threads, it is empty: the last SweepProgress tells what was removed.
        failures: Thread id -> why it was not.
    """

    def __init__(self, report: PruneReport, failures: Mapping[str, Exception]) -> None:
        names = ", ".join(f"{thread_id!r} ({exc})" for thread_id, exc in list(failures.items())[:3])
        super().__init__(
            f"{len(failures)} of the threads could not be pruned, the others were: {names}. Prune them again"
        )
        self.report = report
        self.failures = failures


class SaverClosed(DurableError):
    """The saver, or a pool or connection given to it, was closed before this call."""


class EffectError(DurableError):
    """An effect cannot be kept to once where it was asked for; the message names the remedy."""


class EffectConflict(EffectError):
    """The same call came with other arguments than those it was recorded with; nothing was done."""


class EffectInFlight(EffectError):
    """Another attempt at the effect still goes on elsewhere, after a bounded wait."""


class EffectUnknown(EffectError):
    """Nobody knows whether an earlier attempt took place; nothing is done until somebody decides.

    Attributes:
        effect_id: The effect, for `EffectLog.resolve`.
    """

    def __init__(self, message: str, effect_id: str) -> None:
        super().__init__(message)
        self.effect_id = effect_id


class EffectUnresolved(EffectError):
    """A thread cannot be deleted which has effects that may have happened; nothing was deleted."""


class EffectAbandoned(EffectError):
    """A decision gave the effect up: it neither counts as done nor will be."""


class EffectForked(EffectError):
    """Another branch of the thread's history has this effect already, and its policy refuses a second look."""


class EffectSuperseded(EffectError):
    """An owner reports the end of an attempt that another has taken over meanwhile; the report is in the history."""


class EmbeddedPostgresError(DurableError):
    """The embedded Postgres cannot be found or cannot start; the message names the remedy."""

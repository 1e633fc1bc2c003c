"""The errors that this package raises.

    DurableError
    ├── SchemaOutOfDateError        the tables are missing, older or newer than this package
    ├── ConnectionFailedError       Postgres refused the connection, or the server is too old
    ├── CheckpointCorruptedError    a stored row cannot be read; the message says which
    ├── InvalidConfigError          a config, filter, connection string or argument is invalid (also a ValueError)
    ├── UnserializableValueError    a value cannot be serialized; the message names its channel (also a TypeError)
    ├── ThreadDeletedError          the thread was deleted during the run
    ├── ParentPrunedError           the parent of a checkpoint was pruned
    ├── ParentMissingError          the parent of a checkpoint is not stored
    ├── ThreadExistsError           the target of a copy or an import already has checkpoints
    ├── ImportFailedError           the source of an import cannot be read
    ├── CompactionRefusedError      compaction would change the state of a thread
    ├── PruneFailedError            some threads could not be pruned; it carries the report of the others
    ├── SaverClosedError            the saver, or a pool passed to it, was closed
    ├── EffectError                 an effect cannot run, or its log entry cannot be changed
    │   ├── EffectConflictError     the same call was recorded with different arguments
    │   ├── EffectInFlightError     another attempt is still running
    │   ├── EffectUnknownError      an earlier attempt has an unknown outcome and needs a decision
    │   ├── EffectUnresolvedError   a thread with unresolved effects cannot be deleted
    │   ├── EffectAbandonedError    the effect was abandoned by a decision
    │   ├── EffectDuplicateError    an equal effect's outcome was never delivered, and the policy wants a decision
    │   ├── EffectForkedError       another branch of the thread already ran the effect
    │   └── EffectSupersededError   the attempt was taken over by another owner
    └── EmbeddedPostgresError       the embedded Postgres cannot start

Other database errors reach the caller as psycopg raised them.
"""

from __future__ import annotations

from collections.abc import Mapping

from langgraph_durable.reports import PruneReport

__all__ = [
    "CheckpointCorruptedError",
    "CompactionRefusedError",
    "ConnectionFailedError",
    "DurableError",
    "EffectAbandonedError",
    "EffectConflictError",
    "EffectDuplicateError",
    "EffectError",
    "EffectForkedError",
    "EffectInFlightError",
    "EffectSupersededError",
    "EffectUnknownError",
    "EffectUnresolvedError",
    "EmbeddedPostgresError",
    "ImportFailedError",
    "InvalidConfigError",
    "ParentMissingError",
    "ParentPrunedError",
    "PruneFailedError",
    "SaverClosedError",
    "SchemaOutOfDateError",
    "ThreadDeletedError",
    "ThreadExistsError",
    "UnserializableValueError",
]

_LINK = "See docs/errors.md#"


class DurableError(Exception):
    """Base class of the errors that this package raises."""


class SchemaOutOfDateError(DurableError):
    """The database's tables are missing, older than this package, or newer than it."""


class ConnectionFailedError(DurableError):
    """Postgres cannot be reached or used, and retrying will not help.

    For example, the login was refused, the host name is unknown, or the server is too old. Faults that retries may
    cure are retried first; afterwards psycopg's own error is raised.
    """


class CheckpointCorruptedError(DurableError):
    """A stored row cannot be read; the message names its thread, namespace, id and channel."""


class InvalidConfigError(DurableError, ValueError):
    """A config, filter, connection string or argument is invalid; the message says what to pass instead."""


class UnserializableValueError(DurableError, TypeError):
    """A value cannot be serialized; the message names its channel."""


class ThreadDeletedError(DurableError):
    """The thread was deleted during the run; nothing was stored."""


class ParentPrunedError(DurableError):
    """The checkpoint that a run starts from was pruned, before the run or during it; nothing was stored."""


class ParentMissingError(DurableError):
    """The parent of a checkpoint is not stored, and delta channels are replayed from it; nothing was stored."""


class ThreadExistsError(DurableError):
    """The target of a copy or an import already has checkpoints; it was left unchanged."""


class ImportFailedError(DurableError):
    """The source of an import cannot be read: it cannot be reached, or its threads cannot be listed.

    Also raised by the first call for a thread that the fallback saver has and that cannot be imported from it.
    """


class CompactionRefusedError(DurableError):
    """Compaction would change the state of a thread; the thread was left unchanged."""


class PruneFailedError(DurableError):
    """Some threads could not be pruned, even after retries; the others were.

    Attributes:
        report: What was removed from the threads that were pruned. Empty after `prune_all`, which covers any number of
            threads: there, the last PruneProgress says what was removed.
        failures: Thread id -> the error that kept it from being pruned.
    """

    def __init__(self, report: PruneReport, failures: Mapping[str, Exception]) -> None:
        names = ", ".join(f"{thread_id!r} ({exc})" for thread_id, exc in list(failures.items())[:3])
        super().__init__(
            f"{len(failures)} threads could not be pruned; the others were. The first failures: {names}. "
            "Prune these threads again"
        )
        self.report = report
        self.failures = failures


class SaverClosedError(DurableError):
    """The saver, or a pool or connection passed to it, was closed before this call."""


class EffectError(DurableError):
    """An effect cannot run, or its log entry cannot be changed; the message says what is known and what to do.

    Attributes:
        effect_id: The effect's id, for `saver.effects.resolve`; None if the error is about no recorded effect.
    """

    def __init__(self, message: str = "", effect_id: str | None = None, *, see: str | None = None) -> None:
        """Create the error.

        Args:
            message: What happened, what is known, and what to do.
            effect_id: The effect's id.
            see: The section of docs/errors.md that the message ends with; by default that of the error's class.
        """
        # An unpickled error is created from its full message.
        if _LINK not in message:
            section = see or type(self).__name__.lower()
            message = f"{message.rstrip('. ')}. {_LINK}{section}"
        super().__init__(message)
        self.effect_id = effect_id


class EffectConflictError(EffectError):
    """The same call was recorded with different arguments; nothing was executed."""


class EffectInFlightError(EffectError):
    """Another attempt at the effect was still running after a bounded wait."""


class EffectUnknownError(EffectError):
    """It is unknown whether an earlier attempt took effect; nothing runs until someone decides."""

    effect_id: str


class EffectUnresolvedError(EffectError):
    """The thread has effects with an unknown outcome, so it cannot be deleted; nothing was deleted."""


class EffectAbandonedError(EffectError):
    """The effect was abandoned by a decision: it does not count as done and never runs."""


class EffectForkedError(EffectError):
    """Another branch of the thread already ran this effect, and the policy refuses to replay it."""


class EffectDuplicateError(EffectError):
    """An equal effect's outcome was never delivered, so the call may be the same request or a new one; nothing ran.

    Attributes:
        effect_id: That effect's id, for `saver.effects.acknowledge`.
    """

    effect_id: str


class EffectSupersededError(EffectError):
    """Another owner took the attempt over before its end was reported; the report is in the audit log."""


class EmbeddedPostgresError(DurableError):
    """The embedded Postgres was not found or cannot start; the message says what to do."""

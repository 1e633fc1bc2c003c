"""Classify errors of Postgres and psycopg: transient, permanent, or better explained by one of ours."""

from __future__ import annotations

import re
from typing import Any

import psycopg
from psycopg import AsyncConnection, Connection
from psycopg_pool import PoolTimeout, TooManyRequests

from langgraph_durable.errors import (
    ConnectionFailedError,
    DurableError,
    InvalidConfigError,
    SchemaOutOfDateError,
)

_TRANSIENT_STATES = {
    "40001",  # serialization failure
    "40P01",  # deadlock detected
    "53300",  # too many connections
    "55006",  # object in use: a database being copied from
    "57P01",  # admin shutdown
    "57P02",  # crash shutdown
    "57P03",  # cannot connect now: starting up or shutting down
    "57P05",  # idle session timeout
    "25P03",  # idle in transaction session timeout
    "25006",  # read-only: a standby that is being promoted, or that an address led to, or a server switched over
}

# libpq gives no SQLSTATE for a refused connection, so permanent faults are recognized by their English text. From a
# server with localized messages they are retried until the timeout and raised then.
_CONNECT_FAULTS = ("connection failed", "connection is bad", "failed to resolve host", "could not match")
_PERMANENT_CONNECT_FAULTS = (
    "authentication failed",
    "no password supplied",
    "does not exist",
    "no pg_hba.conf entry",
    "is not permitted to log in",
    "permission denied",
    "could not translate host name",
    "Name or service not known",
    "could not match",  # the numbers of hosts, addresses and ports differ
    "Servname not supported",  # a port that is not a number
    "definition of service",
    "service file",
    "unrecognized configuration parameter",
    "unsupported startup parameter",  # pgbouncer's words
    "requirepeer",
    "invalid",
    # Not every message with SSL: a server that shuts down aborts handshakes.
    "certificate",
    "private key",
    "does not support SSL",
    "unsupported protocol",
    "wrong version number",
    " alert ",
)


_CONTEXT_KEPT = 160
"""Characters of an error's context that are shown at its beginning, and at its end."""

_MISSING = (
    psycopg.errors.UndefinedTable,
    psycopg.errors.UndefinedFunction,
    psycopg.errors.InvalidSchemaName,
)


def is_transient(exc: psycopg.Error) -> bool:
    """Return whether the same work may succeed soon, on another connection."""
    if isinstance(exc, psycopg.errors.UniqueViolation):
        return _is_ulid_collision(exc)
    if isinstance(exc, (PoolTimeout, TooManyRequests)):
        return False
    if exc.sqlstate is not None:
        return exc.sqlstate in _TRANSIENT_STATES or exc.sqlstate.startswith("08")
    if not isinstance(exc, psycopg.OperationalError):
        return False
    return not is_permanent_connect_fault(exc)


def _is_ulid_collision(exc: psycopg.errors.UniqueViolation) -> bool:
    """Return whether two concurrent puts chose the same ULID in a namespace; a retry chooses the next one.

    Postgres generates the name of a partition's index, and Citus names an index only in the message. So the columns
    decide, which are not translated. If the role may not see them, the name does.
    """
    if (key := re.search(r"\(([^()]*)\)=\(", exc.diag.message_detail or "")) is not None:
        return key[1] == "thread_id, checkpoint_ns, ulid"
    name = exc.diag.constraint_name or exc.diag.message_primary or ""
    return "checkpoints_ulid_key" in name or "_thread_id_checkpoint_ns_ulid_idx" in name


def was_lost(connection: Connection[Any] | AsyncConnection[Any], exc: psycopg.Error) -> bool:
    """Return whether the connection or the server failed, not the statement."""
    if exc.sqlstate is None:
        return isinstance(exc, psycopg.OperationalError)
    # A trigger that works on another server may raise class 08. When this server ends a connection, it sends 57P first.
    return connection.closed or exc.sqlstate.startswith("57P") or exc.sqlstate in ("25P03", "25006")


def refuses_writes(exc: BaseException | None) -> bool:
    """Return whether an error, or one of its causes, is a read-only transaction."""
    return isinstance(exc, psycopg.errors.ReadOnlySqlTransaction) or (
        exc is not None and refuses_writes(exc.__cause__)
    )


def is_permanent_connect_fault(exc: psycopg.OperationalError) -> bool:
    """Return whether a connection was refused for a reason that retries cannot cure."""
    message = str(exc)
    return message.startswith(_CONNECT_FAULTS) and any(w in message for w in _PERMANENT_CONNECT_FAULTS)


def shorten(exc: psycopg.Error) -> None:
    """Cut the middle out of a long context in an error's text.

    Of an error inside a function, the context has the whole statement, hundreds of lines. `exc.diag` keeps it.
    """
    context = exc.diag.context or ""
    if len(context) > 2 * _CONTEXT_KEPT and exc.args:
        short = f"{context[:_CONTEXT_KEPT]} [...] {context[-_CONTEXT_KEPT:]}"
        exc.args = (str(exc.args[0]).replace(context, short), *exc.args[1:])


def explain(exc: psycopg.Error, schema: str) -> DurableError | None:
    """Return an error of ours that says more than psycopg's, if there is one."""
    if isinstance(exc, _MISSING):
        return SchemaOutOfDateError(
            f"schema {schema!r} lacks a table or function of langgraph_durable. Call saver.setup() (or asetup()) "
            "once, or apply the SQL that `python -m langgraph_durable schema` prints."
        )
    if isinstance(exc, psycopg.errors.UndefinedColumn):
        return SchemaOutOfDateError(
            f"the tables in schema {schema!r} do not match this version of langgraph_durable ({exc}). Call "
            "saver.setup() to migrate them."
        )
    if isinstance(exc, psycopg.errors.UntranslatableCharacter):
        return InvalidConfigError(
            f"the database's encoding cannot represent an id, a name or another text ({exc}). Use a database "
            "created with ENCODING 'UTF8'."
        )
    if isinstance(exc, (psycopg.errors.InvalidSqlStatementName, psycopg.errors.DuplicatePreparedStatement)):
        return InvalidConfigError(
            "a connection pooler between this process and Postgres mixes up prepared statements. Set "
            "max_prepared_statements > 0 in pgbouncer >= 1.21, or prepare_threshold=None in the saver."
        )
    if isinstance(exc, psycopg.OperationalError) and exc.sqlstate is None and is_permanent_connect_fault(exc):
        return ConnectionFailedError(f"cannot connect to Postgres; check the connection string: {exc}")
    return None

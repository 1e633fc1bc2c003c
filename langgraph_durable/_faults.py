"""What errors of Postgres and psycopg mean: what passes, what no waiting mends, and what to tell the caller."""

from __future__ import annotations

import re
from typing import Any

import psycopg
from psycopg import AsyncConnection, Connection
from psycopg_pool import PoolTimeout, TooManyRequests

from langgraph_durable.errors import DurableError, InvalidConfig, SchemaOutOfDate

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

# libpq gives no SQLSTATE for a connection that was refused. What no waiting mends is told by its words; a server
# that speaks another language is retried until the time-out, which is late but right.
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
    "could not match",  # the numbers of hosts, addresses and ports
    "Servname not supported",  # a port that is no number
    "definition of service",
    "service file",
    "unrecognized configuration parameter",
    "unsupported startup parameter",  # pgbouncer's words
    "requirepeer",
    "invalid",
    # Not all that names SSL: a server that goes down breaks handshakes off.
    "certificate",
    "private key",
    "does not support SSL",
    "unsupported protocol",
    "wrong version number",
    " alert ",
)


def is_transient(exc: psycopg.Error) -> bool:
    """Tell whether the same work may succeed a little later, on another connection."""
    if isinstance(exc, psycopg.errors.UniqueViolation):
        return _met_at_one_place(exc)
    if isinstance(exc, (PoolTimeout, TooManyRequests)):
        return False
    if exc.sqlstate is not None:
        return exc.sqlstate in _TRANSIENT_STATES or exc.sqlstate.startswith("08")
    if not isinstance(exc, psycopg.OperationalError):
        return False
    return not is_permanent_connect_fault(exc)


def _met_at_one_place(exc: psycopg.errors.UniqueViolation) -> bool:
    """Return whether two puts at once computed the same ULID in a namespace; the later one takes the next.

    A partition's index has a name that Postgres makes, and Citus names one in the message only. So its columns tell,
    which are not translated; or, where a role may not see them, its name.
    """
    if (key := re.search(r"\(([^()]*)\)=\(", exc.diag.message_detail or "")) is not None:
        return key[1] == "thread_id, checkpoint_ns, ulid"
    name = exc.diag.constraint_name or exc.diag.message_primary or ""
    return "checkpoints_ulid_key" in name or "_thread_id_checkpoint_ns_ulid_idx" in name


def was_lost(connection: Connection[Any] | AsyncConnection[Any], exc: psycopg.Error) -> bool:
    """Tell whether an error is of the connection or the whole server, and so of no statement."""
    if exc.sqlstate is None:
        return isinstance(exc, psycopg.OperationalError)
    # A trigger that works on another server may raise any state; when this one ends a connection, it says so first.
    return connection.closed or exc.sqlstate.startswith("57P") or exc.sqlstate in ("25P03", "25006")


def refuses_writes(exc: BaseException | None) -> bool:
    """Return whether an error, or its cause, is that the server is read-only."""
    return isinstance(exc, psycopg.errors.ReadOnlySqlTransaction) or (
        exc is not None and refuses_writes(exc.__cause__)
    )


def is_permanent_connect_fault(exc: psycopg.OperationalError) -> bool:
    """Tell whether a connection was refused for a reason that waiting does not mend."""
    message = str(exc)
    return message.startswith(_CONNECT_FAULTS) and any(w in message for w in _PERMANENT_CONNECT_FAULTS)


def explain(exc: psycopg.Error, schema: str) -> DurableError | None:
    if isinstance(exc, (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName)):
        return SchemaOutOfDate(
            f"schema {schema!r} lacks a table of langgraph_durable: call saver.setup() (or asetup()) once, or "
            "apply the SQL that `python -m langgraph_durable schema` prints"
        )
    if isinstance(exc, psycopg.errors.UndefinedColumn):
        return SchemaOutOfDate(
            f"the tables in schema {schema!r} are not those of this version of langgraph_durable: call "
            f"saver.setup() to migrate them ({exc})"
        )
    if isinstance(exc, psycopg.errors.UntranslatableCharacter):
        return InvalidConfig(
            "the database's encoding cannot hold an id, a name or another text: use a database made with "
            f"ENCODING 'UTF8' ({exc})"
        )
    if isinstance(exc, (psycopg.errors.InvalidSqlStatementName, psycopg.errors.DuplicatePreparedStatement)):
        return InvalidConfig(
            "a connection pooler between here and Postgres mixes prepared statements up: give pgbouncer "
            ">= 1.21 max_prepared_statements > 0, or the saver prepare_threshold=None"
        )
    if isinstance(exc, psycopg.OperationalError) and exc.sqlstate is None and is_permanent_connect_fault(exc):
        return InvalidConfig(f"cannot connect to Postgres; check the connection string: {exc}")
    return None

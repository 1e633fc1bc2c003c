"""The checkpointer of LangGraph's Agent Server, configured by environment variables.

In langgraph.json: `"checkpointer": {"path": "langgraph_durable.agent_server.checkpointer"}`.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import cache

from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer

from langgraph_durable._validation import require_pool_sizes, require_schema
from langgraph_durable.errors import EffectUnresolvedError, InvalidConfigError
from langgraph_durable.reports import DeleteReceipt
from langgraph_durable.saver import DurableSaver
from langgraph_durable.schema import DEFAULT_SCHEMA

__all__ = ["AgentServerSaver", "checkpointer"]

_DSN = "LANGGRAPH_DURABLE_DSN"
_SCHEMA = "LANGGRAPH_DURABLE_SCHEMA"
_MIN_SIZE = "LANGGRAPH_DURABLE_MIN_SIZE"
_MAX_SIZE = "LANGGRAPH_DURABLE_MAX_SIZE"
_SEGMENT_KEY = "LANGGRAPH_DURABLE_SEGMENT_KEY"
_SETUP = "LANGGRAPH_DURABLE_SETUP"
_ON_DELETE = "LANGGRAPH_DURABLE_ON_DELETE"
_AES_KEY = "LANGGRAPH_AES_KEY"  # the server's own, which its built-in checkpointers obey

_CONFLICT = 409


class AgentServerSaver(DurableSaver):
    """The saver that `checkpointer` makes; it answers the server's requests to delete threads.

    Attributes:
        force_delete: Whether to delete threads with unresolved effects, too.
    """

    force_delete: bool = False

    async def adelete_thread(self, thread_id: str, *, force: bool = False) -> DeleteReceipt:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
        """Delete a thread; see DurableSaver.delete_thread.

        Raises:
            EffectUnresolvedError: The thread has unresolved effects. The server answers 409 with the message, instead
                of an internal error without one.
        """
        try:
            return await super().adelete_thread(thread_id, force=force or self.force_delete)
        except EffectUnresolvedError as exc:
            raise _conflict_error()(
                f"{exc}. Of the server: run `langgraph-durable effects resolve`, or set {_ON_DELETE}=force."
            ) from exc


@cache
def _conflict_error() -> type[EffectUnresolvedError]:
    """Return an EffectUnresolvedError that Starlette shows to the client."""
    try:
        from starlette.exceptions import HTTPException  # pyright: ignore[reportMissingImports]
    except ImportError:  # not in a server
        return EffectUnresolvedError

    class ThreadNotDeletedError(EffectUnresolvedError, HTTPException):  # type: ignore[misc, unused-ignore]
        def __init__(self, message: str) -> None:
            HTTPException.__init__(self, _CONFLICT, detail=message)

        __str__ = EffectUnresolvedError.__str__

    return ThreadNotDeletedError


@asynccontextmanager
async def checkpointer() -> AsyncIterator[AgentServerSaver]:
    """Make a saver from the environment, set up its tables, and close it at the end.

    Read are LANGGRAPH_DURABLE_DSN (or DATABASE_URL), and, if set, LANGGRAPH_DURABLE_SCHEMA, _MIN_SIZE, _MAX_SIZE,
    _SEGMENT_KEY, _SETUP and _ON_DELETE, and the server's own LANGGRAPH_AES_KEY; see docs/agent-server.md.

    Raises:
        InvalidConfigError: A variable is missing or cannot be used; the message names it.
        SchemaOutOfDateError: The tables are newer than this package, or, with LANGGRAPH_DURABLE_SETUP=verify, not
            current.
    """
    verify_only = _choice(_SETUP, "migrate", "verify") == "verify"
    async with _saver_from_environment() as saver:
        saver.force_delete = _choice(_ON_DELETE, "refuse", "force") == "force"
        await saver.asetup(verify_only=verify_only)
        yield saver


def _saver_from_environment() -> AgentServerSaver:
    variable, dsn = _first_set(_DSN, "DATABASE_URL")
    sizes = _integer(_MIN_SIZE, 1), _integer(_MAX_SIZE, 16)
    with _naming(f"{_MIN_SIZE}, {_MAX_SIZE}"):
        min_size, max_size = require_pool_sizes(*sizes)
    with _naming(_SCHEMA):
        schema = require_schema(os.environ.get(_SCHEMA) or DEFAULT_SCHEMA)
    segment_key, serde = _segment_key(), _serializer()
    with _naming(variable):
        return AgentServerSaver.from_conn_string(
            dsn, schema=schema, min_size=min_size, max_size=max_size, segment_key=segment_key, serde=serde
        )


@contextmanager
def _naming(variable: str) -> Iterator[None]:
    try:
        yield
    except InvalidConfigError as exc:
        raise InvalidConfigError(f"{variable}: {exc}") from exc


def _first_set(*names: str) -> tuple[str, str]:
    for name in names:
        if value := os.environ.get(name):
            return name, value
    raise InvalidConfigError(
        f"{names[0]} is not set, so the checkpointer has no database. Set it to a Postgres connection string, such as "
        "postgresql://user:password@host:5432/database, in the server's environment or the .env file that "
        "langgraph.json names."
    )


def _integer(name: str, default: int) -> int:
    value = os.environ.get(name)
    if not value:
        return default
    try:
        return int(value)
    except ValueError:
        raise InvalidConfigError(f"{name} must be a number of connections, got {value!r:.100}") from None


def _choice(name: str, default: str, other: str) -> str:
    value = os.environ.get(name) or default
    if value not in (default, other):
        raise InvalidConfigError(f"{name} must be {default!r} or {other!r}, got {value!r:.100}")
    return value


def _segment_key() -> bytes | None:
    value = os.environ.get(_SEGMENT_KEY)
    if not value:
        return None
    try:
        key = bytes.fromhex(value)
    except ValueError:
        key = b""
    if not 16 <= len(key) <= 64:  # the message does not contain the secret
        raise InvalidConfigError(
            f"{_SEGMENT_KEY} must be 32 to 128 hexadecimal digits, as secrets.token_hex(32) makes them"
        )
    return key


def _serializer() -> SerializerProtocol | None:
    """Return a serializer that encrypts if the server is configured to encrypt checkpoints."""
    if not os.environ.get(_AES_KEY):
        return None
    try:
        return EncryptedSerializer.from_pycryptodome_aes()  # reads the variable, and checks its length
    except ImportError as exc:
        raise InvalidConfigError(
            f"{_AES_KEY} is set, so checkpoints are to be encrypted, which needs pycryptodome: add it to the "
            "project's requirements"
        ) from exc
    except (ValueError, AssertionError) as exc:
        raise InvalidConfigError(f"{_AES_KEY} cannot be used: it must have 16, 24 or 32 bytes") from exc

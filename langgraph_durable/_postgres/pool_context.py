"""What the pools of one saver share: their settings, and what is known about the server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psycopg

from langgraph_durable._postgres import psycopg_internals
from langgraph_durable._postgres.conninfo_source import Conninfo, ConninfoSource
from langgraph_durable.errors import SaverClosedError

CLOSE_TIMEOUT = 5.0
_RECONNECT_TIMEOUT = 2.0
"""Seconds until a pool starts its connection attempts anew. Its own back-off doubles after each attempt."""

_REFUSED_OPTIONS = ("unsupported startup parameter", "command-line options")
"""Texts of pgbouncer and similar poolers, and of RDS Proxy."""

inherited: list[Any] = []
"""Pools that a forked process got from its parent. Kept, since freeing them would close the parent's sockets."""


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """The validated settings of `DurableSaver.from_conn_string` about connections."""

    min_size: int
    max_size: int
    timeout: float
    """Seconds that an operation waits for a free connection."""
    prepare_threshold: int | None
    tuning: bool = True
    """Whether to use the private API of psycopg, if the installed versions are tested."""


class PoolContext:
    """Shared by the blocking pool and the asyncio pools of a saver and its clones."""

    def __init__(self, conninfo: Conninfo, settings: PoolSettings) -> None:
        self.source = ConninfoSource(conninfo)
        self.planning = self.source.planning
        self.tuning = settings.tuning and psycopg_internals.is_tested()
        self.connection_options: dict[str, Any] = {
            "autocommit": True,
            "prepare_threshold": settings.prepare_threshold,
        }
        self.pool_options: dict[str, Any] = {
            "min_size": settings.min_size,
            "max_size": settings.max_size,
            "timeout": settings.timeout,
            "reconnect_timeout": _RECONNECT_TIMEOUT,
            "kwargs": self.connection_options,
            "open": False,
        }
        self.closed = False
        self.reached = False
        """Whether a connection was ever made. The first one is made without a pool, which would hide its error."""

    def give_up_options(self, tried_plain: bool, exc: psycopg.OperationalError) -> bool:
        """Return whether to retry a first connection without our startup options.

        Some poolers refuse options that they do not know. If several first connections fail at once, each must be
        retried. So what this one tried decides, not what another has given up meanwhile.
        """
        if not any(words in str(exc) for words in _REFUSED_OPTIONS):
            return False
        self.source.plain = True
        return not tried_plain

    def require_open(self) -> None:
        """Raise SaverClosedError after `close`."""
        if self.closed:
            raise SaverClosedError("the saver was closed. Close it later, or make another one.")

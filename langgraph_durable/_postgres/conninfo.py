"""Complete connection strings with our defaults and startup options."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo, timeout_from_conninfo
from psycopg.pq import PGconn

from langgraph_durable.errors import InvalidConfigError

Planning = Mapping[str, str | None]
"""Setting -> its value in our transactions; None to leave it as it is."""

PLANNING: Mapping[str, str] = {"plan_cache_mode": "force_generic_plan", "jit": "off"}
"""The settings that our statements run under.

They find rows by their keys, so one plan fits all parameters. Planning at each execution costs as much as running the
statement, and JIT compilation a hundred times as much.
"""

DEFAULTS: Mapping[str, int | str] = {
    "connect_timeout": 10,
    # Else a call on a connection whose peer is gone waits until the kernel gives up, after 15 minutes.
    "tcp_user_timeout": 15_000,  # milliseconds that sent data may stay unacknowledged
    "keepalives_idle": 15,  # seconds of silence before the peer is probed, also while waiting for a result
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "fallback_application_name": "langgraph_durable",
}
"""Used unless the connection string, the environment or a service file sets them."""


def planning_beside(options: str | None) -> Planning:
    """Return PLANNING, with None for settings in the caller's startup options."""
    named = re.findall(r"(?:^|\s)(?:-c\s*|--)([\w-]+)=", options or "")
    chosen = {name.replace("-", "_").lower() for name in named}
    return {name: None if name in chosen else value for name, value in PLANNING.items()}


def complete_conninfo(conninfo: str) -> tuple[str, str | None]:
    """Return a connection string with our defaults, and its startup options.

    Startup options may also come from the environment or a service file.

    Raises:
        InvalidConfigError: It is not a connection string.
    """
    try:
        given = conninfo_to_dict(conninfo)
        effective: dict[str, Any] = {**_effective_parameters(conninfo), **given}
        _check(effective)
    except (
        psycopg.ProgrammingError,
        AttributeError,
        ValueError,
    ) as exc:  # not a str, not Unicode, or of `_check`
        raise InvalidConfigError(
            f"not a Postgres connection string ({str(exc).strip()}): pass "
            '"postgresql://user:password@host:5432/database" or "host=... dbname=..."'
        ) from exc
    # psycopg ignores the connect_timeout in a service file.
    completed = {name: effective.get(name, value) for name, value in DEFAULTS.items()}
    # PGCLIENTENCODING is for terminals, and a database's encoding may be SQL_ASCII, whose text psycopg loads as bytes.
    completed["client_encoding"] = given.get("client_encoding", "UTF8")
    return make_conninfo(conninfo, **completed), effective.get("options")


def _effective_parameters(conninfo: str) -> dict[str, str]:
    """Return the parameters that libpq would use: from the connection string, a service file or the environment.

    libpq reports them only for a connection. This one fails at once, without network access, because the directory of
    its socket does not exist.
    """
    nowhere = make_conninfo(conninfo, host="/nonexistent", hostaddr="", port="")
    attempt = PGconn.connect_start(nowhere.encode())
    try:
        found = {option.keyword.decode(): option.val for option in attempt.info}
    finally:
        attempt.finish()
    # Only these are decoded, since a password may not be Unicode.
    return {name: value.decode() for name in (*DEFAULTS, "options") if (value := found.get(name)) is not None}


def _check(given: dict[str, Any]) -> None:
    """Raise now for what psycopg and the resolver would refuse at the first connection."""
    if "connect_timeout" in given:
        timeout_from_conninfo(given)
    for port in str(given.get("port") or "").split(","):
        if port and not port.strip().isdecimal():
            raise ValueError(f"port {port!r} is not a number")
    for host in str(given.get("host") or "").split(","):
        if not host.startswith(("/", "@")):  # the path of a socket
            try:
                host.encode("idna")
            except UnicodeError as exc:
                raise ValueError(f"host {host!r} cannot be a name: {exc}") from exc

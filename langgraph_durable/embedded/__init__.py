"""A Postgres server for demos, tests and trying things out.

    with embedded.start() as server:
        psycopg.connect(server.conninfo())

It listens on a Unix socket only, has a random password, and stops when the last process that uses it ends. In
production, set DATABASE_URL to a server of yours.
"""

from __future__ import annotations

import contextlib
import os
import time
import weakref
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path

import psycopg
from psycopg.conninfo import make_conninfo

from langgraph_durable.embedded.binaries import Account, find_bindir, reachable_bindir, server_version
from langgraph_durable.embedded.data_directory import (
    PASSWORD_FILE,
    check_access,
    create_if_missing,
    is_empty,
    run_initdb,
)
from langgraph_durable.embedded.run_directory import try_lock
from langgraph_durable.embedded.supervisor import POLL_INTERVAL, Supervisor
from langgraph_durable.errors import EmbeddedPostgresError

__all__ = ["EmbeddedPostgres", "database", "start"]

_RESTART_TIMEOUT = 30.0  # seconds


def start(
    *,
    data_dir: Path | str | None = None,
    fsync: bool = True,
    settings: Mapping[str, str] | None = None,
    timeout: float | timedelta = 30.0,
) -> EmbeddedPostgres:
    """Start a server, or join the one that another process runs on `data_dir`.

    Keep the result: the server stops when no EmbeddedPostgres refers to it, in any process.

    Args:
        data_dir: The data directory, which remains when the server stops. It is created if it is missing; its
            parent is not. None: a temporary directory, removed with the server.
        fsync: False turns off fsync and full_page_writes. This is faster, but a crash of the operating system may
            corrupt the data. A crash of Postgres loses nothing either way.
        settings: Postgres settings, such as `{"work_mem": "64MB"}`, which override the defaults. Ignored when
            joining a running server.
        timeout: Seconds, or a timedelta, until the server must accept connections. A first start takes about 0.6 s.

    Raises:
        EmbeddedPostgresError: No binaries were found, the data directory cannot be used, or the server did not
            start. The message says what to do, or ends with the server's log.
    """
    seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    deadline = time.monotonic() + seconds
    options = {"listen_addresses": "", "unix_socket_permissions": "0700", "max_connections": "200"}
    options |= dict.fromkeys(("fsync", "full_page_writes"), "on" if fsync else "off") | dict(settings or {})
    try:
        account = Account.choose()
        if data_dir is None:
            return _start_server(None, [], account, options, deadline)
        data = Path(data_dir).expanduser().resolve()
        check_access(data, account, deadline)
        while True:
            create_if_missing(data, account)
            if (lock := try_lock(data)) is not None:
                return _start_server(data, [lock], account, options, deadline)
            if (joined := _join_server(data, deadline)) is not None:
                return joined
            if time.monotonic() > deadline:
                raise EmbeddedPostgresError(
                    f"No server answered within {seconds:g} s on {data}, which another process uses. Wait for that "
                    "process, stop it, or name another directory."
                )
            time.sleep(POLL_INTERVAL)
    except OSError as error:
        raise EmbeddedPostgresError(
            f"The embedded Postgres cannot start: {error}. Fix the cause, or set DATABASE_URL to a running server."
        ) from error


@contextlib.contextmanager
def database(
    *,
    data_dir: Path | str | None = None,
    fsync: bool = True,
    settings: Mapping[str, str] | None = None,
    timeout: float | timedelta = 30.0,
) -> Iterator[str]:
    """Yield DATABASE_URL, or the connection string of a server started for this block.

    An empty DATABASE_URL counts as not set. The arguments only apply to a server started here.

    Args:
        data_dir: See `start`.
        fsync: See `start`.
        settings: See `start`.
        timeout: See `start`.

    Raises:
        EmbeddedPostgresError: See `start`.
    """
    if url := os.environ.get("DATABASE_URL"):
        yield url
        return
    with start(data_dir=data_dir, fsync=fsync, settings=settings, timeout=timeout) as server:
        yield server.conninfo()


class EmbeddedPostgres:
    """A running server, returned by `start`; also a context manager that calls `stop`.

    A forked child may use the connection string, but the server stops with the parent.

    Attributes:
        version: The server's version, such as "18.6".
        bindir: The directory of the server's programs.
        data_dir: The server's data directory.
    """

    version: str
    bindir: Path
    data_dir: Path

    def __init__(
        self, supervisor: Supervisor, data_dir: Path, bindir: Path, port: str, deadline: float
    ) -> None:
        self._supervisor = supervisor
        self._finalizer = weakref.finalize(self, supervisor.release)  # also runs at exit
        self.data_dir = data_dir
        self.bindir = bindir
        self._port = port
        try:
            self._password = (data_dir / PASSWORD_FILE).read_text()
            self.version = self._wait_until_ready(deadline)
        except BaseException:
            self.stop()
            raise

    def __enter__(self) -> EmbeddedPostgres:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def conninfo(self, dbname: str = "postgres") -> str:
        """Return a libpq connection string with socket, user and password.

        Args:
            dbname: A database of this server; its existence is not checked.
        """
        host, port, password = str(self._supervisor.sockets), self._port, self._password
        return make_conninfo(host=host, port=port, user="postgres", password=password, dbname=dbname)

    def stop(self) -> None:
        """Stop using the server; the last user waits until it has stopped. Idempotent."""
        self._finalizer()

    def restart(self, *, immediate: bool = False) -> None:
        """Stop the server and start it again, with the same data and connection string.

        Args:
            immediate: Stop as in a crash: without a checkpoint, and with recovery at the start. Otherwise a fast
                shutdown: clients are disconnected, their transactions are rolled back, a checkpoint is written.

        Raises:
            EmbeddedPostgresError: This process did not start the server, or has stopped it, or the server did not
                start again within 30 s.
        """
        deadline = time.monotonic() + _RESTART_TIMEOUT
        self._supervisor.relaunch("QUIT" if immediate else "INT")
        self._wait_until_ready(deadline)

    def _wait_until_ready(self, deadline: float) -> str:
        """Return the server's version once it accepts connections."""
        while True:
            try:
                with psycopg.connect(self.conninfo(), connect_timeout=10) as connection:
                    return (connection.info.parameter_status("server_version") or "").split(" ")[0]
            except psycopg.OperationalError as error:
                if self._supervisor.send() and time.monotonic() < deadline:
                    time.sleep(POLL_INTERVAL)
                    continue
                raise EmbeddedPostgresError(
                    f"Postgres did not start in {self.data_dir}: {error}. Look for the cause at the end of its log:"
                    f"{self._supervisor.log_tail()}"
                ) from error


def _start_server(
    data: Path | None, locks: list[int], account: Account, options: Mapping[str, str], deadline: float
) -> EmbeddedPostgres:
    """Start a server.

    Args:
        data: The data directory; None for one in the run directory.
        locks: This process's lock on `data`, which the server inherits.
        account: The account Postgres runs under.
        options: Postgres settings.
        deadline: On the monotonic clock, in seconds.
    """
    supervisor = Supervisor.create(account, locks)
    try:
        bindir = find_bindir()
        new = data is None or is_empty(data, server_version(bindir))
        bindir = reachable_bindir(bindir, account, supervisor.run / "programs")
        sync = data is not None and options["fsync"] != "off"
        data = data or supervisor.run / "data"
        if new:
            run_initdb(data, bindir, supervisor, account, deadline, sync=sync)
        command = [str(bindir / "postgres"), "-D", str(data)]
        for name, value in {**options, "unix_socket_directories": str(supervisor.sockets)}.items():
            command += ["-c", f"{name}={value}"]
        supervisor.launch(command, account.identity)
        return EmbeddedPostgres(supervisor, data, bindir, options.get("port", "5432"), deadline)
    except BaseException:
        supervisor.release()
        raise


def _join_server(data: Path, deadline: float) -> EmbeddedPostgres | None:
    """Join the server that runs on a data directory, or return None if it is starting or stopping.

    Args:
        data: The data directory.
        deadline: On the monotonic clock, in seconds.
    """
    try:
        bindir = Path((data / "postmaster.opts").read_text().split(' "')[0]).parent
        port, sockets = (data / "postmaster.pid").read_text().splitlines()[3:5]
    except (FileNotFoundError, ValueError):
        return None
    supervisor = Supervisor.join(Path(sockets).parent, deadline) if sockets else None
    if supervisor is None:
        return None
    try:
        return EmbeddedPostgres(supervisor, data, bindir, port, deadline)
    except EmbeddedPostgresError:
        return None  # the process that started the server reports the cause

"""A Postgres of our own for demos, tests and trying things out; production sets DATABASE_URL.

    with embedded.start() as server:
        psycopg.connect(server.conninfo())

Without TCP, with a random password, as `postgres` or `nobody` if we are root, and gone with the last process
that uses it however that dies: how, `_embedded_run.py` tells.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import stat
import subprocess
import sys
import time
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path

import psycopg
from psycopg.conninfo import make_conninfo

from langgraph_durable.embedded.binaries import Account, find_bindir, reachable_bindir, server_version
from langgraph_durable.embedded.supervisor import POLL, Hold, lock, tail
from langgraph_durable.errors import EmbeddedPostgresError

__all__ = ["EmbeddedPostgres", "database", "find_bindir", "start"]

_PASSWORD_FILE = "langgraph_durable.password"  # noqa: S105 - a file's name; in a data directory that lasts, 0600
_LOCALE = "C.UTF-8" if sys.platform == "linux" else "C"  # other systems may lack C.UTF-8


def start(
    *,
    data_dir: Path | str | None = None,
    fsync: bool = True,
    settings: Mapping[str, str] | None = None,
    timeout: float = 30.0,
) -> EmbeddedPostgres:
    """Start a Postgres, or join the one that another process runs on the same data directory.

    Keep the result: the server ends with the last EmbeddedPostgres that holds it, or with that one's process.

    Args:
        data_dir: Where the data lives on after the server; made if missing, but not its parent. None: in a
            temporary directory that goes with the server.
        fsync: False turns off fsync and full_page_writes: faster, and a crash of the operating system may
            corrupt the data. A crash of Postgres loses nothing either way.
        settings: Postgres's own, such as `{"work_mem": "64MB"}`, over our defaults. A process that joins a
            running server gets that server's.
        timeout: Seconds until the server must accept connections. A first start takes about 0.6 s.

    Raises:
        EmbeddedPostgresError: No binaries, a data directory that cannot be used, or the server did not start;
            the message names the remedy or ends with the server's log.
    """
    deadline = time.monotonic() + timeout
    options = {"listen_addresses": "", "unix_socket_permissions": "0700", "max_connections": "200"}
    options |= dict.fromkeys(("fsync", "full_page_writes"), "on" if fsync else "off") | dict(settings or {})
    try:
        account = Account.choose()
        if data_dir is None:
            return _start_server(None, [], account, options, deadline)
        data = Path(data_dir).expanduser().resolve()
        _check_place(data, account, deadline)
        while True:
            with contextlib.suppress(FileExistsError):
                data.mkdir(mode=0)  # "being made", to _check_place in another process
                account.own(data)
                data.chmod(0o700)
            if (held := lock(data)) is not None:
                return _start_server(data, [held], account, options, deadline)
            if (joined := _join_server(data, deadline)) is not None:
                return joined
            if time.monotonic() > deadline:
                raise EmbeddedPostgresError(
                    f"another process uses {data}, and no server answered within {timeout:g} s: "
                    "wait for that process, stop it, or name another directory"
                )
            time.sleep(POLL)
    except OSError as error:
        raise EmbeddedPostgresError(
            f"the embedded Postgres cannot start: {error}; mend that, or set DATABASE_URL to a running server"
        ) from error


@contextlib.contextmanager
def database(
    *,
    data_dir: Path | str | None = None,
    fsync: bool = True,
    settings: Mapping[str, str] | None = None,
    timeout: float = 30.0,
) -> Iterator[str]:
    """Yield DATABASE_URL if it is set and not empty, else the connection string of a server for this block.

    Args:
        data_dir: As for `start`; like the rest, without effect on DATABASE_URL.
        fsync: As for `start`.
        settings: As for `start`.
        timeout: As for `start`, in seconds.

    Raises:
        EmbeddedPostgresError: As for `start`.
    """
    if url := os.environ.get("DATABASE_URL"):
        yield url
        return
    with start(data_dir=data_dir, fsync=fsync, settings=settings, timeout=timeout) as server:
        yield server.conninfo()


class EmbeddedPostgres:
    """A running Postgres, made by `start`; a context manager that lets go of it at the end.

    A child made by fork may use the connection string, but the server ends with the parent.

    Attributes:
        version: The server's, such as "18.6".
        bindir: Directory of the server's programs.
        data_dir: The server's data directory.
    """

    version: str
    bindir: Path
    data_dir: Path

    def __init__(self, hold: Hold, data_dir: Path, bindir: Path, port: str, deadline: float) -> None:
        self._hold = hold
        self._finalizer = weakref.finalize(self, hold.release)  # runs at exit, too
        self.data_dir = data_dir
        self.bindir = bindir
        self._port = port
        try:
            self._password = (data_dir / _PASSWORD_FILE).read_text()
            self.version = self._await_ready(deadline)
        except BaseException:
            self.stop()
            raise

    def __enter__(self) -> EmbeddedPostgres:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def conninfo(self, dbname: str = "postgres") -> str:
        """Return a libpq connection string: Unix socket, user and password.

        Args:
            dbname: A database of this server; whether it exists is not checked.
        """
        host, port, password = str(self._hold.sockets), self._port, self._password
        return make_conninfo(host=host, port=port, user="postgres", password=password, dbname=dbname)

    def stop(self) -> None:
        """Let go of the server; its last user waits until it has stopped. Idempotent."""
        self._finalizer()

    def restart(self, *, immediate: bool = False) -> None:
        """Stop the server and start it again, with the same data and connection string: to test retries.

        Args:
            immediate: Stop as in a crash: no checkpoint, and recovery at the start. Otherwise a fast
                shutdown: clients are disconnected, their transactions rolled back, a checkpoint written.

        Raises:
            EmbeddedPostgresError: This process did not start the server, or stopped it; or it did not start
                again within 30 s.
        """
        deadline = time.monotonic() + 30.0
        self._hold.relaunch("QUIT" if immediate else "INT")
        self._await_ready(deadline)

    def _await_ready(self, deadline: float) -> str:
        """Return the server's version once it accepts connections."""
        while True:
            try:
                with psycopg.connect(self.conninfo(), connect_timeout=10) as connection:
                    return (connection.info.parameter_status("server_version") or "").split(" ")[0]
            except psycopg.OperationalError as error:
                if self._hold.tell() and time.monotonic() < deadline:
                    time.sleep(POLL)
                    continue
                raise EmbeddedPostgresError(
                    f"Postgres did not start in time ({error}); the end of its log:{self._hold.log_tail()}"
                ) from error


def _check_place(data: Path, account: Account, deadline: float) -> None:
    """Raise EmbeddedPostgresError unless a path is, or can become, a data directory of the account."""
    try:
        while stat.S_IMODE((found := data.stat()).st_mode) == 0 and time.monotonic() < deadline:
            time.sleep(POLL)  # another process makes it, and has not given it to the account yet
    except FileNotFoundError:
        if not data.parent.is_dir():
            raise EmbeddedPostgresError(f"{data.parent} does not exist: make it first") from None
        if not os.access(data.parent, os.W_OK | os.X_OK) or not account.may("x", data.parent):
            raise EmbeddedPostgresError(
                f"{data} cannot be made, or not be entered by {account.name}, whom Postgres runs under: "
                f"open {data.parent} to {account.name}, or name a directory elsewhere"
            ) from None
        return
    if not stat.S_ISDIR(found.st_mode):
        raise EmbeddedPostgresError(f"{data} is not a directory: name another path, or move it away")
    if found.st_uid != account.uid or not account.may("wx", data):
        raise EmbeddedPostgresError(
            f"{data} must belong to {account.name}, whom Postgres runs under, and be writable to it: "
            "chown and chmod it, or name a path that does not exist yet"
        )


def _is_new(data: Path, version: str) -> bool:
    """Tell whether a data directory is empty; raise EmbeddedPostgresError if its content is not for us."""
    if not any(data.iterdir()):
        return True
    if not (data / "PG_VERSION").is_file():
        raise EmbeddedPostgresError(f"{data} is neither empty nor a Postgres data directory: name another")
    theirs = (data / "PG_VERSION").read_text().strip()
    if theirs != version.partition(".")[0]:
        raise EmbeddedPostgresError(
            f"{data} was made by Postgres {theirs}, and the binaries found are {version}: name another "
            f"directory, or the bin directory of a Postgres {theirs} in LANGGRAPH_DURABLE_PG_BINDIR"
        )
    if not (data / _PASSWORD_FILE).is_file():
        raise EmbeddedPostgresError(
            f"{data} was not made by this package, or its making was cut short: remove it if nothing in it "
            "matters, name another, or start its own server and set DATABASE_URL"
        )
    return False


def _start_server(
    data: Path | None, locks: list[int], account: Account, options: Mapping[str, str], deadline: float
) -> EmbeddedPostgres:
    """Start a server.

    Args:
        data: The data directory; None: one in the run directory.
        locks: Our lock on `data`, which becomes the server's.
        account: Whom Postgres runs under.
        options: Postgres's settings.
        deadline: On the monotonic clock, in seconds.
    """
    hold = Hold.make(account, locks)
    try:
        bindir = find_bindir()
        new = data is None or _is_new(data, server_version(bindir))
        bindir = reachable_bindir(bindir, account, hold.run / "programs")
        sync = data is not None and options["fsync"] != "off"
        data = data or hold.run / "data"
        if new:
            with _emptied_on_error(data):
                _make_cluster(data, bindir, hold, account, deadline, sync=sync)
        command = [str(bindir / "postgres"), "-D", str(data)]
        for name, value in {**options, "unix_socket_directories": str(hold.sockets)}.items():
            command += ["-c", f"{name}={value}"]
        hold.launch(command, account.identity)
        return EmbeddedPostgres(hold, data, bindir, options.get("port", "5432"), deadline)
    except BaseException:
        hold.release()
        raise


@contextlib.contextmanager
def _emptied_on_error(directory: Path) -> Iterator[None]:
    try:
        yield
    except BaseException:
        for entry in directory.iterdir() if directory.is_dir() else ():
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()
        raise


def _make_cluster(
    data: Path, bindir: Path, hold: Hold, account: Account, deadline: float, *, sync: bool
) -> None:
    """Run initdb, with a random password that is kept in the data directory, for later starts and joins.

    Args:
        data: An empty or missing directory.
        bindir: Where initdb is.
        hold: The run directory and the locks.
        account: Whom initdb runs under.
        deadline: On the monotonic clock, in seconds.
        sync: Whether initdb waits until the cluster is on the disk.
    """
    password = secrets.token_urlsafe(24)
    pwfile = hold.run / "password"
    _write_private(pwfile, password, account)
    command = [str(bindir / "initdb"), "-D", str(data), "-U", "postgres", "-A", "scram-sha-256"]
    command += [f"--pwfile={pwfile}", "-E", "UTF8", f"--locale={_LOCALE}", *([] if sync else ["--no-sync"])]
    try:
        done = account.run(*command, pass_fds=hold.locks, timeout=max(0.1, deadline - time.monotonic()))
    except subprocess.TimeoutExpired as error:
        raise EmbeddedPostgresError("initdb took too long: raise timeout") from error
    if done.returncode != 0:
        raise EmbeddedPostgresError(f"initdb failed:{tail(done.stdout + done.stderr)}")
    _write_private(data / _PASSWORD_FILE, password, account)


def _write_private(path: Path, text: str, account: Account) -> None:
    path.touch(mode=0o600, exist_ok=False)
    path.write_text(text)
    account.own(path)


def _join_server(data: Path, deadline: float) -> EmbeddedPostgres | None:
    """Join the server that runs on a data directory; None while none answers (it is starting or stopping).

    Args:
        data: The data directory.
        deadline: On the monotonic clock, in seconds.
    """
    try:
        bindir = Path((data / "postmaster.opts").read_text().split(' "')[0]).parent
        port, sockets = (data / "postmaster.pid").read_text().splitlines()[3:5]
    except (FileNotFoundError, ValueError):
        return None
    hold = Hold.join(Path(sockets).parent, deadline) if sockets else None
    if hold is None:
        return None
    try:
        return EmbeddedPostgres(hold, data, bindir, port, deadline)
    except EmbeddedPostgresError:
        return None  # the server's starter tells why

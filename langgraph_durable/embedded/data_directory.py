"""Checks of a data directory that the caller named, and initdb."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from langgraph_durable.embedded.binaries import Account, last_lines
from langgraph_durable.embedded.supervisor import POLL_INTERVAL, Supervisor
from langgraph_durable.errors import EmbeddedPostgresError

PASSWORD_FILE = "langgraph_durable.password"  # noqa: S105 - a file's name; mode 0600 in the data directory
_LOCALE = "C.UTF-8" if sys.platform == "linux" else "C"  # other systems may lack C.UTF-8


def check_access(data: Path, account: Account, deadline: float) -> None:
    """Check that a path is, or can become, a data directory of an account.

    Args:
        data: The absolute path.
        account: The account Postgres runs under.
        deadline: On the monotonic clock, in seconds; until then another process may finish creating it.

    Raises:
        EmbeddedPostgresError: The account cannot use it.
    """
    try:
        while stat.S_IMODE((found := data.stat()).st_mode) == 0 and time.monotonic() < deadline:
            time.sleep(POLL_INTERVAL)  # another process creates it, and has not given it to the account yet
    except FileNotFoundError:
        if not data.parent.is_dir():
            raise EmbeddedPostgresError(
                f"The directory {data.parent} does not exist. Create it first."
            ) from None
        if not os.access(data.parent, os.W_OK | os.X_OK) or not account.can("x", data.parent):
            raise EmbeddedPostgresError(
                f"The data directory {data} cannot be created for {account.name}, the account Postgres runs under. "
                f"Give {account.name} access to {data.parent}, or name a directory elsewhere."
            ) from None
        return
    if not stat.S_ISDIR(found.st_mode):
        raise EmbeddedPostgresError(f"{data} is not a directory. Name another path, or move the file away.")
    if found.st_uid != account.uid or not account.can("wx", data):
        raise EmbeddedPostgresError(
            f"The data directory {data} must belong to {account.name}, the account Postgres runs under, and be "
            "writable. Use chown and chmod, or name a path that does not exist yet."
        )


def create_if_missing(data: Path, account: Account) -> None:
    """Create an empty data directory that belongs to an account, unless the path exists."""
    with contextlib.suppress(FileExistsError):
        data.mkdir(mode=0)  # mode 0 is how check_access in another process recognizes it
        account.chown(data)
        data.chmod(0o700)


def is_empty(data: Path, version: str) -> bool:
    """Return whether a data directory needs initdb.

    Args:
        data: An existing directory.
        version: The version of the binaries, such as "18.6".

    Raises:
        EmbeddedPostgresError: It contains something other than a cluster of ours and of that version.
    """
    if not any(data.iterdir()):
        return True
    if not (data / "PG_VERSION").is_file():
        raise EmbeddedPostgresError(
            f"{data} is neither empty nor a Postgres data directory. Name another directory."
        )
    major = (data / "PG_VERSION").read_text().strip()
    if major != version.partition(".")[0]:
        raise EmbeddedPostgresError(
            f"{data} was created by Postgres {major}, but the binaries are version {version}. Name another "
            f"directory, or set LANGGRAPH_DURABLE_PG_BINDIR to the bin directory of Postgres {major}."
        )
    if not (data / PASSWORD_FILE).is_file():
        raise EmbeddedPostgresError(
            f"{data} was not created by this package, or its creation was interrupted. Remove it if you do not need "
            "its contents, name another directory, or start its server yourself and set DATABASE_URL."
        )
    return False


def run_initdb(
    data: Path, bindir: Path, supervisor: Supervisor, account: Account, deadline: float, *, sync: bool
) -> None:
    """Run initdb with a random password, which is stored in the data directory for later starts.

    Args:
        data: An empty or missing directory; emptied on failure.
        bindir: The directory of initdb.
        supervisor: Its run directory and locks are used.
        account: The account initdb runs under.
        deadline: On the monotonic clock, in seconds.
        sync: Whether initdb waits until the cluster is on disk.

    Raises:
        EmbeddedPostgresError: initdb failed or took too long.
    """
    password = secrets.token_urlsafe(24)
    pwfile = supervisor.run / "password"
    _write_private(pwfile, password, account)
    command = [str(bindir / "initdb"), "-D", str(data), "-U", "postgres", "-A", "scram-sha-256"]
    command += [f"--pwfile={pwfile}", "-E", "UTF8", f"--locale={_LOCALE}", *([] if sync else ["--no-sync"])]
    with _emptied_on_error(data):
        try:
            done = account.run(
                *command, pass_fds=supervisor.locks, timeout=max(0.1, deadline - time.monotonic())
            )
        except subprocess.TimeoutExpired as error:
            raise EmbeddedPostgresError(f"initdb took too long in {data}. Raise timeout=.") from error
        if done.returncode != 0:
            raise EmbeddedPostgresError(
                f"initdb failed in {data}. Its output:{last_lines(done.stdout + done.stderr)}"
            )
        _write_private(data / PASSWORD_FILE, password, account)


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


def _write_private(path: Path, text: str, account: Account) -> None:
    path.touch(mode=0o600, exist_ok=False)
    path.write_text(text)
    account.chown(path)

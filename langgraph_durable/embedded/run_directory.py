"""A server's run directory, and the locks on directories that say which processes use it.

docs/design/embedded.md describes the locks.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import tempfile
from pathlib import Path

from langgraph_durable.embedded.binaries import Account
from langgraph_durable.errors import EmbeddedPostgresError

_PREFIX = "lgd-pg-"
_MAX_BASE_LENGTH = 103 - len(f"/{_PREFIX}xxxxxxxx/run/.s.PGSQL.65535")  # bytes; Linux allows 107, macOS 103
_MAX_ATTEMPTS = 100  # each one lost to another process's removal within microseconds


def try_lock(directory: Path, kind: int = fcntl.LOCK_EX) -> int | None:
    """Lock a directory without waiting.

    Args:
        directory: The directory to lock.
        kind: LOCK_EX or LOCK_SH of fcntl.

    Returns:
        The descriptor that holds the lock: 10 or more, because the supervisor's shell redirects those below, and
        inherited only if passed on. None if another process holds the lock, or the directory does not exist.
    """
    try:
        low = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    try:
        descriptor = fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, 10)
    finally:
        os.close(low)
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(descriptor), directory.stat()):  # not removed since it was opened
            return descriptor
    except (BlockingIOError, FileNotFoundError):
        pass
    os.close(descriptor)
    return None


def create_run_directory(account: Account) -> tuple[Path, int]:
    """Create a run directory, after removing those that killed processes left.

    Returns:
        The directory, and the descriptor that locks it.

    Raises:
        EmbeddedPostgresError: No temporary directory can hold a socket that the account can reach.
    """
    base = _choose_base(account)
    _remove_abandoned(base, account)
    for _ in range(_MAX_ATTEMPTS):
        run = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=base))
        locked = try_lock(run)
        if locked is not None:
            return run, locked
        # Before we locked it, another process took it for abandoned, and removes it.
    raise EmbeddedPostgresError(
        f"Other processes removed every run directory created in {base}. Set TMPDIR to another directory."
    )


def _choose_base(account: Account) -> Path:
    bases = dict.fromkeys((tempfile.gettempdir(), "/tmp"))  # noqa: S108 - mkdtemp adds a random name
    for base in bases:
        # Other characters would need quoting in Postgres's settings and in connection strings.
        fits = len(os.fsencode(base)) <= _MAX_BASE_LENGTH and re.fullmatch(r"/[\w./+-]+", base)
        if fits and os.access(base, os.W_OK | os.X_OK) and account.can("x", Path(base)):
            return Path(base)
    raise EmbeddedPostgresError(
        f"No temporary directory can hold the server's socket (tried {', '.join(bases)}). Set TMPDIR to a "
        f"writable directory that {account.name} can enter, with a path of at most {_MAX_BASE_LENGTH} letters, "
        "digits and ./+-_"
    )


def _remove_abandoned(base: Path, account: Account) -> None:
    for run in base.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            if run.lstat().st_uid in (os.geteuid(), account.uid):
                remove_run_directory(run)


def remove_run_directory(run: Path) -> bool:
    """Remove a run directory unless it is locked; return whether it is gone."""
    locked = try_lock(run)
    if locked is None:
        return not run.exists()
    shutil.rmtree(run, ignore_errors=True)
    os.close(locked)
    return True

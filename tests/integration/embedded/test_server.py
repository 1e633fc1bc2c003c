"""Settings, connections and restarts of a running server."""

from __future__ import annotations

import gc
import os
import signal
import threading
from pathlib import Path

import psycopg
import pytest

from langgraph_durable import embedded
from langgraph_durable.embedded import EmbeddedPostgres
from langgraph_durable.errors import EmbeddedPostgresError
from tests.integration.embedded.processes import execute, is_running, pid_of, query_value, runs, until


def test_public_names() -> None:
    assert sorted(embedded.__all__) == ["EmbeddedPostgres", "database", "start"]
    assert all(hasattr(embedded, name) for name in embedded.__all__)


def test_conninfo_reaches_a_database(shared: EmbeddedPostgres) -> None:
    version = query_value(shared.conninfo(), "SHOW server_version")
    assert version.split()[0] == shared.version
    assert (shared.bindir / "initdb").exists()
    execute(shared.conninfo(), 'CREATE DATABASE "it\'s a \\ name"')
    assert query_value(shared.conninfo("it's a \\ name"), "SELECT current_database()") == "it's a \\ name"


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
def test_settings_override_the_defaults(shared: EmbeddedPostgres, setting: str, value: str) -> None:
    assert query_value(shared.conninfo(), f"SHOW {setting}") == value


def test_wrong_password_is_refused(shared: EmbeddedPostgres) -> None:
    with pytest.raises(psycopg.OperationalError, match="password"):
        psycopg.connect(shared.conninfo(), password="another")


def test_only_the_servers_account_can_read_its_files(shared: EmbeddedPostgres) -> None:
    run = shared.data_dir.parent
    for path in (run, run / "run", shared.data_dir):
        assert path.stat().st_mode & 0o777 == 0o700
    assert all(path.stat().st_mode & 0o077 == 0 for path in shared.data_dir.glob("*.password"))


def test_two_servers_run_independently_at_the_same_time(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"PGPORT": "1", "PGDATA": "/nowhere", "PGUSER": "x", "PGHOST": "x"}.items():
        monkeypatch.setenv(name, value)  # must not reach the servers
    with (
        embedded.start(fsync=False) as one,
        embedded.start(fsync=False, settings={"port": "6000"}) as two,
    ):
        execute(one.conninfo(), "CREATE TABLE only_here ()")
        assert query_value(two.conninfo(), "SELECT to_regclass('only_here')") is None
        assert [query_value(server.conninfo(), "SHOW port") for server in (one, two)] == ["5432", "6000"]
        assert len(runs(base)) == 2


def test_server_outlives_its_thread_and_stops_when_collected(base: Path) -> None:
    servers: list[EmbeddedPostgres] = []
    thread = threading.Thread(target=lambda: servers.append(embedded.start(fsync=False)))
    thread.start()
    thread.join()
    assert query_value(servers[0].conninfo(), "SELECT 1") == 1
    servers.clear()
    gc.collect()
    assert runs(base) == []


def test_restart_keeps_committed_rows_and_stop_removes_everything(base: Path) -> None:
    server = embedded.start(fsync=False)
    execute(server.conninfo(), "CREATE TABLE t AS SELECT 1 AS committed")
    log = server.data_dir.parent / "log"
    for how, recovers in (("fast", False), ("immediate", True), ("killed", True)):
        pid, logged = pid_of(server), len(log.read_text())
        with psycopg.connect(server.conninfo()) as connection:
            connection.execute("INSERT INTO t VALUES (2)")
            if how == "killed":
                os.kill(pid, signal.SIGKILL)
                until(lambda gone=pid: not is_running(gone))  # type: ignore[misc]
            server.restart(immediate=how == "immediate")
            with pytest.raises(psycopg.OperationalError):
                connection.execute("SELECT 1")
        assert not is_running(pid)
        assert query_value(server.conninfo(), "SELECT array_agg(committed) FROM t") == [1]
        assert ("automatic recovery in progress" in log.read_text()[logged:]) == recovers
    pid = pid_of(server)
    server.stop()
    assert not is_running(pid)
    assert runs(base) == []
    server.stop()
    with pytest.raises(EmbeddedPostgresError, match="before stop"):
        server.restart()


def test_database_prefers_database_url(monkeypatch: pytest.MonkeyPatch, base: Path) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgresql://elsewhere/x")
    with embedded.database(fsync=False) as conninfo:
        assert conninfo == "postgresql://elsewhere/x"
        assert runs(base) == []


def test_database_starts_a_server_without_database_url(monkeypatch: pytest.MonkeyPatch, base: Path) -> None:
    monkeypatch.setenv("DATABASE_URL", "")
    with embedded.database(fsync=False) as conninfo:
        for setting, value in {"fsync": "off", "full_page_writes": "off", "synchronous_commit": "on"}.items():
            assert query_value(conninfo, f"SHOW {setting}") == value
    assert runs(base) == []

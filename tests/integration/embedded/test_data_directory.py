"""Data directories that last, and the processes that share them."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from langgraph_durable import embedded
from langgraph_durable.embedded.binaries import Account
from langgraph_durable.embedded.supervisor import Supervisor
from langgraph_durable.errors import EmbeddedPostgresError
from tests.integration.embedded.processes import (
    Child,
    environment,
    execute,
    is_running,
    pid_of,
    query_value,
    runs,
)


def test_data_directory_keeps_its_data_after_the_server_stops(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = 'it\'s a "data" $dir, \\ é'
    monkeypatch.chdir(base)
    with embedded.start(data_dir=name) as server:
        assert server.data_dir == (base / name).resolve()
        assert (server.data_dir / "langgraph_durable.password").stat().st_mode & 0o777 == 0o600
        execute(server.conninfo(), "CREATE TABLE t AS SELECT 1 AS kept")
    assert runs(base) == []
    with embedded.start(data_dir=base / name) as server:
        assert query_value(server.conninfo(), "SELECT kept FROM t") == 1
    with Child(data_dir=str(base / name)).started() as child:
        assert query_value(child.conninfo, "SELECT kept FROM t") == 1
        with embedded.start(data_dir=base / name) as server:
            assert query_value(server.conninfo(), "SELECT kept FROM t") == 1
        child.finish()


def test_second_process_joins_and_the_last_user_stops_the_server(base: Path) -> None:
    place = base / "data"
    with Child(data_dir=str(place), fsync=False).started() as child:
        joined = embedded.start(data_dir=place)
        again = embedded.start(data_dir=place)
        assert joined.conninfo() == again.conninfo() == child.conninfo
        assert pid_of(joined) == child.server_pid
        assert (joined.bindir / "postgres").exists()
        assert query_value(joined.conninfo(), "SHOW server_version").split()[0] == joined.version
        with pytest.raises(EmbeddedPostgresError, match="Only the process that started"):
            joined.restart()
        joined.stop()
        assert query_value(child.conninfo, "SELECT 1") == 1  # the other two still use it
        assert child.finish() == (0, "")  # the starter does not wait for other users
        assert query_value(again.conninfo(), "SELECT 1") == 1
        again.stop()
        assert not is_running(child.server_pid)
    assert runs(base) == []


def test_server_outlives_its_killed_starter_and_data_outlives_the_last_user(base: Path) -> None:
    place = base / "data"
    with Child(data_dir=str(place), fsync=False).started() as starter, Child(data_dir=str(place)) as joined:
        assert joined.started().server_pid == starter.server_pid
        starter.process.kill()
        starter.process.wait()
        execute(joined.conninfo, "CREATE TABLE t AS SELECT 1 AS kept")
        joined.process.kill()
        with embedded.start(
            data_dir=place, fsync=False
        ) as server:  # joins the server, or waits until it has stopped
            assert query_value(server.conninfo(), "SELECT kept FROM t") == 1
    assert not is_running(starter.server_pid)


def test_joined_processes_can_connect_after_a_restart(base: Path) -> None:
    with embedded.start(data_dir=base / "data", fsync=False) as server:
        with Child(data_dir=str(base / "data")).started() as child:
            server.restart(immediate=True)
            assert query_value(child.conninfo, "SELECT 1") == 1
            assert child.finish() == (0, "")
        assert query_value(server.conninfo(), "SELECT 1") == 1


def test_start_waits_for_a_data_directory_that_is_being_created(base: Path) -> None:
    place = base / "data"
    place.mkdir(mode=0)
    with Child(data_dir=str(place), fsync=False) as child:
        Account.choose().chown(place)
        place.chmod(0o700)
        child.started()
        child.finish()
    (base / "left").mkdir(mode=0)
    with pytest.raises(EmbeddedPostgresError, match="must belong to"):
        embedded.start(data_dir=base / "left", timeout=0.1)
    (base / "left").rmdir()


def test_concurrent_starts_share_one_server(base: Path) -> None:
    with contextlib.ExitStack() as stack:
        children = [stack.enter_context(Child(data_dir=str(base / "data"), fsync=False)) for _ in range(4)]
        assert len({child.started().server_pid for child in children}) == 1
        for child in children:
            assert child.finish() == (0, "")
    assert runs(base) == []


def test_join_fails_if_the_supervisor_does_not_answer(base: Path) -> None:
    """The supervisor may just have read end of file, and be about to stop the server."""
    (base / "run").mkdir()
    os.mkfifo(base / "control")
    assert Supervisor.join(base, time.monotonic() + 1.0) is None  # the FIFO has no reader
    reader = os.open(base / "control", os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert Supervisor.join(base, time.monotonic() + 0.1) is None
        assert os.read(reader, 6) == b"hello-"
    finally:
        os.close(reader)


def test_start_racing_with_the_last_users_stop_gets_a_working_server(base: Path) -> None:
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

"""A server and its files are gone after the last process that uses it, however that ends."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest

from langgraph_durable import embedded
from langgraph_durable.embedded.binaries import Account
from langgraph_durable.embedded.supervisor import Supervisor
from tests.integration.embedded.processes import ROOT, Child, is_running, query_value, runs, until

ENDINGS = {
    "sys.exit": ("sys.exit(3)", 3),
    "exception": ("raise RuntimeError('boom')", 1),
    "SIGTERM": ("os.kill(os.getpid(), signal.SIGTERM); time.sleep(60)", -signal.SIGTERM),
    "SIGKILL": ("os.kill(os.getpid(), signal.SIGKILL); time.sleep(60)", -signal.SIGKILL),
}


@pytest.mark.parametrize("how", ENDINGS)
def test_server_and_files_are_gone_after_the_process_ends_by(how: str, base: Path) -> None:
    ending, code = ENDINGS[how]
    with Child(ending, fsync=False).started() as child:
        assert query_value(child.conninfo, "SELECT 1") == 1
        returncode, stderr = child.finish()
    assert returncode == code
    if returncode < 0:  # the process could not wait for the end
        until(lambda: not is_running(child.server_pid))
        until(lambda: runs(base) == [])
    assert not is_running(child.server_pid)
    assert runs(base) == []
    # Development mode reports every leak, so only the exception raised on purpose may appear.
    assert stderr == "" or (how == "exception" and stderr.endswith("RuntimeError: boom\n"))
    assert "Warning" not in stderr


def test_server_is_not_in_the_process_group_a_terminal_interrupts() -> None:
    with Child(fsync=False).started() as child:
        assert os.getpgid(child.server_pid) == child.supervisor_pid != os.getpgid(child.process.pid)
        child.finish()


def test_server_without_signal_handlers_is_stopped(base: Path) -> None:
    """The process died just after the launch; sleep stands for a Postgres that is still being loaded."""
    account = Account.choose()
    supervisor = Supervisor.create(account, [])
    supervisor.launch(["sleep", "60"], account.identity)
    assert len(runs(base)) == 1
    release = threading.Thread(target=supervisor.release)
    release.start()
    until(lambda: not release.is_alive())
    assert runs(base) == []


def test_killed_starts_leave_nothing_after_the_next_start(base: Path) -> None:
    for moment in ("run", "password", "data/PG_VERSION", "log", "data/postmaster.pid"):
        before = set(base.glob(f"lgd-pg-*/{moment}"))
        with Child(fsync=False) as child:
            until(lambda moment=moment, before=before: set(base.glob(f"lgd-pg-*/{moment}")) - before)  # type: ignore[misc]
            child.process.kill()
    until(lambda: removed_by_the_next_start(base))


def removed_by_the_next_start(base: Path) -> bool:
    """A running initdb continues to its end, so removal may take more than one start."""
    with embedded.start(fsync=False) as server:
        return runs(base) == [server.data_dir.parent]


def test_start_removes_abandoned_run_directories_only(base: Path) -> None:
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
        live = query_value(child.conninfo, "SHOW data_directory")
        assert set(base.iterdir()) == {*strangers, Path(live).parent}
        with embedded.start(fsync=False) as server:
            assert set(base.iterdir()) == {*strangers, Path(live).parent, server.data_dir.parent}
        child.finish()
    for path in strangers:
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()


def test_run_directory_of_a_killed_supervisor_is_removed_by_the_next_start(base: Path) -> None:
    with Child(fsync=False).started() as child:
        os.kill(child.supervisor_pid, signal.SIGKILL)
        child.process.kill()
        until(lambda: not is_running(child.server_pid))  # the supervisor's subshell has stopped it
    until(lambda: removed_by_the_next_start(base))


def test_end_of_a_forked_child_does_not_stop_the_server() -> None:
    ending = """
import multiprocessing, psycopg

def query():
    with psycopg.connect(server.conninfo()) as connection:
        connection.execute("SELECT 1")

child = multiprocessing.get_context("fork").Process(target=query)
child.start()
child.join()
assert child.exitcode == 0

def forked(end):
    pid = os.fork()
    if not pid:
        query()
        end()
        sys.exit(0)  # with atexit
    assert os.waitpid(pid, 0)[1] == 0
    query()

def collected():
    global server
    del server

for end in (lambda: None, lambda: server.stop(), collected):
    forked(end)
"""
    with Child(ending, fsync=False).started() as child:
        assert child.finish() == (0, "")


def test_surviving_children_do_not_keep_the_server_running(base: Path) -> None:
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
            until(lambda: not is_running(child.server_pid))
            until(lambda: runs(base) == [])
            assert [is_running(pid) for pid in pids] == [True, True]
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGKILL)

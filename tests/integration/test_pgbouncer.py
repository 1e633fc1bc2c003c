"""Behind pgbouncer in transaction mode, each transaction may run on another connection."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from langgraph_durable import DurableSaver
from langgraph_durable.errors import InvalidConfigError
from tests.samples import WRITES, Driver, a_put, config, wait_until

BINARY = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")

pytestmark = pytest.mark.skipif(BINARY is None, reason="pgbouncer is not on PATH")

INI = """
[databases]
{dbname} = host={host} port={port} dbname={dbname} user={user}{password}
[pgbouncer]
listen_addr =
listen_port = 6432
unix_socket_dir = {directory}
auth_type = any
pool_mode = transaction
default_pool_size = 4
max_client_conn = 200
{settings}
"""


def version() -> tuple[int, int]:
    said = subprocess.run([str(BINARY), "--version"], capture_output=True, text=True, check=True).stdout
    match = re.search(r"(\d+)\.(\d+)", said)
    assert match is not None
    return int(match[1]), int(match[2])


def owner(host: str) -> str:
    """The user that may connect to a server's socket, in case only its owner may."""
    name = Path(host).owner() if host.startswith("/") else "nobody"
    return name if name != "root" else "nobody"


@contextmanager
def bouncer(conninfo: str, settings: str = "") -> Iterator[str]:
    """Conninfo of a pgbouncer before a database."""
    with psycopg.connect(conninfo) as connection:
        info = connection.info
        server: dict[str, Any] = {
            "host": info.host,
            "port": info.port,
            "user": info.user,
            "dbname": info.dbname,
        }
        server["password"] = f" password='{info.password}'" if info.password else ""
    with tempfile.TemporaryDirectory(prefix="bouncer-") as directory:
        ini = Path(directory, "pgbouncer.ini")
        ini.write_text(INI.format(**server, directory=directory, settings=settings))
        Path(directory).chmod(0o777)
        ini.chmod(0o644)
        # pgbouncer refuses to run as root.
        identity = ["-u", owner(str(server["host"]))]
        command = [str(BINARY), *(identity if os.geteuid() == 0 else []), "-q", str(ini)]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            try:
                wait_until(Path(directory, ".s.PGSQL.6432").exists, "pgbouncer")
                yield make_conninfo(
                    host=directory, port=6432, user=server["user"], dbname=server["dbname"], password="any"
                )
            finally:
                process.terminate()


async def exercise(drive: Driver, saver: DurableSaver) -> None:
    """More calls at once than pgbouncer has connections."""

    async def work(thread_id: str) -> None:
        parent = None
        for step in range(5):
            stored = await drive(saver, "put", *a_put(thread_id, step=step, parent_id=parent))
            parent = stored["configurable"]["checkpoint_id"]
            await drive(saver, "put_writes", stored, WRITES, "task")
            found = await drive(saver, "get_tuple", config(thread_id))
            assert found.config == stored
            assert len(found.pending_writes) == len(WRITES)
        assert len(await drive(saver, "list", config(thread_id))) == 5
        await drive(saver, "delete_thread", thread_id)

    await asyncio.gather(*(work(f"thread-{number}") for number in range(20)))
    assert await drive(saver, "list", None) == []


async def test_pgbouncer_without_prepared_statements_works(empty_conninfo: str, drive: Driver) -> None:
    with bouncer(empty_conninfo) as conninfo:
        async with DurableSaver.from_conn_string(conninfo, prepare_threshold=None) as saver:
            await drive(saver, "setup")
            await drive(saver, "setup", verify_only=True)
            await exercise(drive, saver)


@pytest.mark.skipif(BINARY is not None and version() < (1, 21), reason="pgbouncer is older than 1.21")
async def test_pgbouncer_with_prepared_statements_works(empty_conninfo: str, drive: Driver) -> None:
    with bouncer(empty_conninfo, "max_prepared_statements = 200") as conninfo:
        async with DurableSaver.from_conn_string(conninfo) as saver:
            await drive(saver, "setup")
            await exercise(drive, saver)


async def test_mixed_up_prepared_statements_raise_an_error_that_names_the_setting(
    conninfo: str, drive: Driver
) -> None:
    settings = "max_prepared_statements = 0" if version() >= (1, 21) else ""
    with bouncer(conninfo, settings) as bounced:
        async with DurableSaver.from_conn_string(bounced) as saver:
            with pytest.raises(InvalidConfigError, match="prepare_threshold=None"):
                await exercise(drive, saver)

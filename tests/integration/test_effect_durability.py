"""Effects are on disk when they are said to be recorded, also where synchronous_commit is off: the server crashes."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from typing import Any

import psycopg
import pytest
from psycopg import sql

from langgraph_durable import DurableSaver, Happened, embedded
from langgraph_durable.embedded import EmbeddedPostgres
from tests.effects import Log
from tests.samples import Driver, a_put

SCHEMA = "langgraph_durable"


@pytest.fixture(scope="module")
def crashing() -> Iterator[EmbeddedPostgres]:
    """A server that flushes nothing which nobody asks it to flush."""
    settings = {"autovacuum": "off", "checkpoint_timeout": "1h", "restart_after_crash": "on"}
    with embedded.start(settings=settings) as server:
        yield server


@pytest.fixture(params=["database", "role"])
def lazy(crashing: EmbeddedPostgres, request: pytest.FixtureRequest) -> Iterator[str]:
    """A database with the tables, whose commits are not flushed."""
    with psycopg.connect(crashing.conninfo(), autocommit=True) as connection:
        connection.execute("CREATE DATABASE lazy")
        with DurableSaver.from_conn_string(crashing.conninfo("lazy")) as saver:
            saver.setup()
        whose = "DATABASE lazy" if request.param == "database" else "ROLE postgres"
        connection.execute(sql.SQL("ALTER {} SET synchronous_commit = off").format(sql.SQL(whose)))
        yield crashing.conninfo("lazy")
    with psycopg.connect(crashing.conninfo(), autocommit=True) as connection:
        connection.execute("ALTER ROLE postgres RESET synchronous_commit")
        connection.execute("DROP DATABASE lazy WITH (FORCE)")


@contextmanager
def crash(conninfo: str) -> Iterator[None]:
    """Crash the server at the block's end, with whatever commits in the block are not flushed by whoever commits."""
    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute("CHECKPOINT")
        row = connection.execute(
            "SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'"
        ).fetchone()
    assert row is not None
    os.kill(row[0], signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(row[0], signal.SIGKILL)  # the server ends its other processes, and recovers
        await_recovery(conninfo, row[0])


def await_recovery(conninfo: str, killed: int) -> None:
    deadline = time.monotonic() + 30
    while True:
        try:
            with psycopg.connect(conninfo) as connection:
                row = connection.execute(
                    "SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'"
                ).fetchone()
                if row is not None and row[0] != killed:
                    return
        except psycopg.OperationalError:
            pass
        assert time.monotonic() < deadline, "the server does not come back"
        time.sleep(0.01)


async def completes(log: Log) -> None:
    async with log.effect() as e:
        await e.complete("paid")


async def ends_unknown(log: Log) -> None:
    await log.leave_unknown()


async def is_decided(log: Log) -> None:
    await log.leave_unknown()
    await log.resolve((await log.only()).effect_id, Happened("found"))


async def in_a_transaction(log: Log) -> None:
    async with log.transaction() as (execute, e):
        await execute("CREATE TABLE seats AS SELECT '12a' AS seat")
        e.complete("sold")


@pytest.mark.parametrize(
    ("act", "state"),
    [
        (completes, "completed"),
        (ends_unknown, "unknown"),
        (is_decided, "completed"),
        (in_a_transaction, "completed"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
async def test_an_effect_outlives_a_crash_of_the_server(
    lazy: str, drive: Driver, act: Callable[[Log], Any], state: str
) -> None:
    async with DurableSaver.from_conn_string(lazy) as saver:
        log = Log(saver, asynchronous=drive.kind == "async")
        await log.list()
        with crash(lazy):
            await act(log)
        assert [r.state for r in await log.list()] == [state]
        if act is in_a_transaction:
            with psycopg.connect(lazy) as connection:
                assert connection.execute("SELECT seat FROM seats").fetchall() == [("12a",)]


async def test_an_effect_that_goes_on_while_the_server_crashes(lazy: str, drive: Driver) -> None:
    async with DurableSaver.from_conn_string(lazy) as saver:
        log = Log(saver, asynchronous=drive.kind == "async")
        await log.list()
        async with AsyncExitStack() as stack:
            with crash(lazy):
                e = await stack.enter_async_context(log.effect())
                await e.issue()
            assert (await log.only()).state == "issued"
            await e.complete("paid")


async def test_checkpoints_keep_the_servers_setting(lazy: str, drive: Driver) -> None:
    async with DurableSaver.from_conn_string(lazy) as saver:
        await drive(saver, "put", *a_put())
        with crash(lazy):
            await drive(saver, "put", *a_put())
            with psycopg.connect(lazy) as connection:
                row = connection.execute(
                    "SELECT pg_current_wal_flush_lsn() < pg_current_wal_insert_lsn()"
                ).fetchone()
            assert row == (True,), "the put waited for the disk"


@pytest.mark.parametrize("setting", ["off", "local", "remote_write", "on", "remote_apply"])
async def test_only_what_is_off_is_raised(conninfo: str, drive: Driver, setting: str) -> None:
    name = psycopg.conninfo.conninfo_to_dict(conninfo)["dbname"]
    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute(
            sql.SQL("ALTER DATABASE {} SET synchronous_commit = {}").format(
                sql.Identifier(str(name)), sql.Literal(setting)
            )
        )
    async with DurableSaver.from_conn_string(conninfo, max_size=1) as saver:
        log = Log(saver, asynchronous=drive.kind == "async")
        for _ in range(2):  # the connection is given back as it was
            async with log.transaction(key=str(_)) as (execute, e):
                shown = await execute("SHOW synchronous_commit")
                row = shown.fetchone() if drive.kind == "sync" else await shown.fetchone()
                assert row == ("on" if setting == "off" else setting,)
                e.complete()

"""Servers that are read-only for a while: what writes is retried, on other connections; what reads is served."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest
from psycopg import AsyncConnection, sql
from psycopg.conninfo import make_conninfo
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from langgraph_durable import DurableSaver, embedded
from langgraph_durable.embedded import EmbeddedPostgres
from langgraph_durable.interrupts import apending_interrupts, pending_interrupts
from tests.acceptance.graphs import CHAIN, Runs, chain
from tests.proxy import Proxy
from tests.samples import WRITES, Driver, Observer, a_put, await_until, config

READ_ONLY = "-c default_transaction_read_only=on"


@pytest.fixture(scope="module")
def switchable() -> Iterator[EmbeddedPostgres]:
    """A server of this file's own."""
    with embedded.start(fsync=False) as made:
        yield made


@pytest.fixture(scope="module")
def standby() -> Iterator[EmbeddedPostgres]:
    """Another one, which can be read only."""
    with embedded.start(fsync=False, settings={"default_transaction_read_only": "on"}) as made:
        yield made


def set_read_only(conninfo: str, *, on: bool) -> None:
    """For all connections that are made from now on; those that there are stay as they are."""
    with psycopg.connect(conninfo, autocommit=True, application_name="observer") as connection:
        value = sql.SQL(
            "SET default_transaction_read_only = on" if on else "RESET default_transaction_read_only"
        )
        connection.execute("SET default_transaction_read_only = off")
        connection.execute(
            sql.SQL("ALTER DATABASE {} {}").format(sql.Identifier(connection.info.dbname), value)
        )


async def run_graphs(saver: DurableSaver, drive: Driver, name: str, count: int) -> Runs:
    """Run graphs at once, over and over, and check what they returned and stored."""
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(count))
    runs = Runs()
    graph = chain(saver, runs)

    async def run(number: int) -> None:
        thread: Any = {"configurable": {"thread_id": f"{name} {number}"}}
        expected = []
        for turn in range(4):
            expected += [f"input {turn}", *CHAIN]
            given: Any = {"trail": [f"input {turn}"]}
            if drive.kind == "async":
                result = await graph.ainvoke(given, thread, durability="sync")
            else:
                result = await asyncio.to_thread(graph.invoke, given, thread, durability="sync")
            assert result == {"trail": expected}
        assert (await drive(saver, "get", thread))["channel_values"]["trail"] == expected

    await asyncio.gather(*(run(number) for number in range(count)))
    return runs


async def test_graphs_outlast_a_server_that_is_read_only_for_a_while(
    switchable: EmbeddedPostgres, drive: Driver
) -> None:
    async with DurableSaver.from_conn_string(switchable.conninfo()) as saver:
        await drive(saver, "setup")
        running = asyncio.create_task(run_graphs(saver, drive, f"all {drive.kind}", 20))
        await await_until(lambda: "put_writes" in saver.metrics().operations, "graphs under way")
        with psycopg.connect(switchable.conninfo(), autocommit=True) as admin:
            admin.execute("ALTER SYSTEM SET default_transaction_read_only = on")
            admin.execute("SELECT pg_reload_conf()")
            try:
                await asyncio.sleep(0.7)
            finally:
                admin.execute("ALTER SYSTEM RESET default_transaction_read_only")
                admin.execute("SELECT pg_reload_conf()")
        runs = await running
        assert len(runs.names) == 20 * 4 * len(CHAIN)
        assert saver.metrics().retries > 0


async def test_graphs_outlast_an_address_that_leads_to_a_standby(
    switchable: EmbeddedPostgres, standby: EmbeddedPostgres, drive: Driver
) -> None:
    """It leads to the primary again, but the pool's connections do not."""
    for server in (standby, switchable):
        writable = make_conninfo(server.conninfo(), options="-c default_transaction_read_only=off")
        with DurableSaver.from_conn_string(writable) as there:
            there.setup()
        with psycopg.connect(writable) as admin:  # each server has a password of its own
            admin.execute("DROP ROLE IF EXISTS graphs")
            admin.execute("CREATE ROLE graphs LOGIN SUPERUSER PASSWORD 'graphs'")
    with Proxy(standby.conninfo()) as address:
        as_graphs = make_conninfo(address.conninfo, user="graphs", password="graphs")
        async with DurableSaver.from_conn_string(as_graphs, max_size=8) as saver:
            for _ in range(3):
                assert await drive(saver, "get_tuple", config()) is None
            running = asyncio.create_task(run_graphs(saver, drive, f"address {drive.kind}", 12))
            await await_until(lambda: saver.metrics().retries >= 12, "refused writes")
            address.lead_to(switchable.conninfo())
            runs = await running
            assert len(runs.names) == 12 * 4 * len(CHAIN)


@asynccontextmanager
async def saver_on(kind: str, drive: Driver, conninfo: str, size: int) -> AsyncIterator[DurableSaver]:
    """A saver on a pool that is full of connections."""
    if kind == "own":
        async with DurableSaver.from_conn_string(conninfo, min_size=size, max_size=size) as own:
            yield own
    elif drive.kind == "sync":
        with ConnectionPool(conninfo, min_size=size) as pool:
            pool.wait()
            yield DurableSaver(pool)
    else:
        async with AsyncConnectionPool(conninfo, min_size=size) as asynchronous:
            await asynchronous.wait()
            yield DurableSaver(async_pool=asynchronous)


@pytest.mark.parametrize("kind", ["own", "given"])
async def test_a_pool_of_read_only_connections_is_emptied_by_one_write(
    conninfo: str, observer: Observer, drive: Driver, kind: str
) -> None:
    """However many they are: else every put fails until they are replaced for their age."""
    size = 30
    set_read_only(conninfo, on=True)
    async with saver_on(kind, drive, conninfo, size) as saver:
        for _ in range(2):
            await drive(saver, "get_tuple", config())
        await await_until(lambda: len(observer.backends()) >= size, "a full pool")
        old = set(observer.backends())
        set_read_only(conninfo, on=False)
        assert await drive(saver, "get_tuple", config()) is None
        assert old <= set(observer.backends()), "reading closes none"
        started = time.monotonic()
        stored = await drive(saver, "put", *a_put())
        assert time.monotonic() - started < 5
        assert saver.metrics().retries == 1
        await drive(saver, "put_writes", stored, WRITES, "task")


async def test_what_a_batch_was_refused_on_leaves_the_pool(
    conninfo: str, observer: Observer, drive: Driver
) -> None:
    set_read_only(conninfo, on=True)
    async with DurableSaver.from_conn_string(conninfo) as saver:
        await drive(saver, "get_tuple", config())
        puts = [asyncio.create_task(drive(saver, "put", *a_put(f"thread {n}"))) for n in range(40)]
        await await_until(lambda: saver.metrics().retries > 20, "refused writes")
        set_read_only(conninfo, on=False)
        await asyncio.gather(*puts)
        assert observer.value("SELECT count(*) FROM langgraph_durable.checkpoints") == 40


async def test_a_reader_that_writes_is_told_in_the_end(
    conninfo: str, observer: Observer, drive: Driver
) -> None:
    """After retry_timeout, and no later in a batch; all that reads is served, by connections that stay."""
    with DurableSaver.from_conn_string(conninfo) as other:
        other.put(*a_put())
    async with DurableSaver.from_conn_string(
        make_conninfo(conninfo, options=READ_ONLY), retry_timeout=1, min_size=4
    ) as saver:
        await drive(saver, "setup")
        assert await drive(saver, "get_tuple", config()) is not None
        await await_until(lambda: len(observer.backends()) >= 4, "a full pool")
        before = set(observer.backends())
        for _ in range(3):
            assert len(await drive(saver, "list", None)) == 1
            assert await drive(saver, "get_ulid", config()) is not None
            assert (await drive(saver, "storage_stats")).tables
            if drive.kind == "sync":
                assert list(pending_interrupts(saver)) == []
                assert list(saver.timeline("thread"))
            else:
                assert [i async for i in apending_interrupts(saver)] == []
                assert [e async for e in saver.atimeline("thread")]
        assert before <= set(observer.backends())
        for count in (1, 20):
            started = time.monotonic()
            puts = [drive(saver, "put", *a_put(f"thread {n}")) for n in range(count)]
            ends = await asyncio.gather(*puts, return_exceptions=True)
            assert [type(end) for end in ends] == [psycopg.errors.ReadOnlySqlTransaction] * count
            assert 0.3 < time.monotonic() - started < 6
        assert await drive(saver, "get_tuple", config()) is not None


# --- one connection of the caller's ---


async def test_a_connection_of_the_callers_stays_open(conninfo: str, drive: Driver) -> None:
    """In a read-only transaction of the caller's nothing is retried; outside of one it is, on the same connection."""
    asynchronous = drive.kind == "async"
    connection: Any
    if asynchronous:
        connection = await AsyncConnection.connect(conninfo, autocommit=True)
        saver = DurableSaver(async_pool=connection)
    else:
        connection = psycopg.connect(conninfo, autocommit=True)
        saver = DurableSaver(connection)

    async def execute(query: str) -> None:
        if asynchronous:
            await connection.execute(query)
        else:
            await asyncio.to_thread(connection.execute, query)

    try:
        await execute("BEGIN READ ONLY")
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
            await drive(saver, "put", *a_put())
        assert saver.metrics().retries == 0
        await execute("ROLLBACK")
        await execute("SET default_transaction_read_only = on")
        call = asyncio.create_task(drive(saver, "put", *a_put()))
        await await_until(lambda: saver.metrics().retries > 1, "refused writes")
        await execute("SET default_transaction_read_only = off")
        stored = await call
        assert (await drive(saver, "get_tuple", config())).config == stored
    finally:
        if asynchronous:
            await connection.close()
        else:
            connection.close()

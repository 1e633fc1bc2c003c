"""Startup options of our connections, and which options of the caller override them."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from psycopg.conninfo import make_conninfo
from psycopg_pool import AsyncConnectionPool

from langgraph_durable import DurableSaver
from langgraph_durable._postgres.conninfo import planning_beside
from tests.integration.test_group_commit import SETTINGS, busy, writes_of
from tests.proxy import Proxy
from tests.samples import Driver, Observer, a_put, await_until, config

SHOW = "SELECT current_setting('plan_cache_mode'), current_setting('jit')"
OURS = ("force_generic_plan", "off")


@asynccontextmanager
async def a_connection(saver: DurableSaver, drive: Driver) -> AsyncIterator[Any]:
    """One of the saver's connections."""
    assert saver.durable_context.own_pools is not None
    if drive.kind == "async":
        async with saver.durable_context.own_pools.asynchronous.checkout() as asynchronous:
            yield asynchronous
    else:
        with saver.durable_context.own_pools.blocking.checkout() as blocking:
            yield blocking


async def show_settings(saver: DurableSaver, drive: Driver, query: str = SHOW) -> Any:
    """What a query returns on a connection that the saver's pool made."""
    await drive(saver, "get_tuple", config())  # the first one is made without a pool
    async with a_connection(saver, drive) as connection:
        cursor = connection.execute(query)
        if drive.kind == "async":
            return await (await cursor).fetchone()
        return cursor.fetchone()


async def test_connections_use_generic_plans_without_jit(conninfo: str, drive: Driver) -> None:
    async with DurableSaver.from_conn_string(conninfo) as saver:
        assert await show_settings(saver, drive) == OURS


@pytest.mark.parametrize("source", ["conninfo", "environment"])
async def test_startup_options_of_the_caller_win(
    conninfo: str, drive: Driver, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = "-c work_mem=7MB --plan-cache-mode=auto -cjit=on"
    if source == "conninfo":
        conninfo = make_conninfo(conninfo, options=options)
    else:
        monkeypatch.setenv("PGOPTIONS", options)
    async with DurableSaver.from_conn_string(conninfo) as saver:
        assert await show_settings(saver, drive) == ("auto", "on")
        assert await show_settings(saver, drive, "SHOW work_mem") == ("7MB",)


@pytest.mark.parametrize(
    ("options", "left"),
    [
        (None, {"plan_cache_mode", "jit"}),
        ("-c jit_above_cost=1 -c work_mem=1MB", {"plan_cache_mode", "jit"}),
        ("-c  JIT=on", {"plan_cache_mode"}),
        ("-c work_mem=1MB --plan_cache_mode=auto", {"jit"}),
        ("-cplan_cache_mode=auto -c search_path=a\\ jit=on", {"jit"}),
    ],
)
def test_planning_keeps_settings_that_the_options_do_not_name(options: str | None, left: set[str]) -> None:
    assert {name for name, value in planning_beside(options).items() if value} == left


@pytest.mark.parametrize("pool", ["own", "given"])
@pytest.mark.parametrize(
    ("options", "expected"),
    [("", OURS), ("-c plan_cache_mode=auto", ("auto", "off")), ("-c jit=on", ("force_generic_plan", "on"))],
)
async def test_batches_of_writes_keep_the_callers_planning(
    conninfo: str, observer: Observer, pool: str, options: str, expected: tuple[str, str]
) -> None:
    """Also on a caller's pool, and only inside their transactions."""
    observer.rows(SETTINGS.format(table="writes"))
    conninfo = make_conninfo(conninfo, options=options)

    async def work(saver: DurableSaver) -> None:
        async with busy(saver, conninfo, observer, Driver("async")):
            await asyncio.gather(*(saver.aput_writes(*writes_of(f"thread {n}")) for n in range(5)))
        found = observer.rows("SELECT DISTINCT mode, jit FROM settings WHERE thread_id LIKE 'thread%'")
        assert found == [expected]
        assert observer.value("SELECT count(*) FROM settings WHERE thread_id LIKE 'thread%'") == 5

    if pool == "own":
        async with DurableSaver.from_conn_string(conninfo) as own:
            await work(own)
        return
    async with AsyncConnectionPool(conninfo, min_size=1, max_size=4) as given:
        await work(DurableSaver(async_pool=given))
        async with given.connection() as connection:
            cursor = await connection.execute(SHOW)
            assert await cursor.fetchone() == ("auto", "on")


@pytest.mark.parametrize("options", ["", "-c plan_cache_mode=force_custom_plan -c jit=on"])
async def test_puts_are_planned_alike_whatever_the_connection_is_set_to(
    conninfo: str, observer: Observer, options: str
) -> None:
    """Alone and in batches: their function sets how it is planned, until the call ends."""
    observer.rows(SETTINGS.format(table="checkpoints"))
    conninfo = make_conninfo(conninfo, options=options)
    async with AsyncConnectionPool(conninfo, min_size=1, max_size=4) as pool:
        async with pool.connection() as connection:
            before = await (await connection.execute(SHOW)).fetchone()
        saver = DurableSaver(async_pool=pool)
        await saver.aput(*a_put("thread alone"))
        async with busy(saver, conninfo, observer, Driver("async")):
            await asyncio.gather(*(saver.aput(*a_put(f"thread {n}")) for n in range(5)))
        async with pool.connection() as connection:
            assert await (await connection.execute(SHOW)).fetchone() == before
    found = observer.rows("SELECT DISTINCT mode, jit FROM settings WHERE thread_id LIKE 'thread%'")
    assert found == [OURS]
    assert observer.value("SELECT count(*) FROM settings WHERE thread_id LIKE 'thread%'") == 6


# --- poolers that refuse options, and servers that cannot be reached ---


async def test_a_refused_first_connection_keeps_the_options(
    conninfo: str, drive: Driver, proxy: Proxy
) -> None:
    proxy.go_down()
    async with DurableSaver.from_conn_string(proxy.conninfo) as saver:
        call = asyncio.create_task(drive(saver, "put", *a_put()))
        await await_until(lambda: proxy.refused > 1, "attempts to connect")
        proxy.come_up()
        await call
        assert await show_settings(saver, drive) == OURS


async def test_a_first_connection_to_a_closed_port_keeps_the_options(conninfo: str, drive: Driver) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = free.getsockname()
    there = make_conninfo(conninfo, host=address[0], port=address[1])
    async with DurableSaver.from_conn_string(there) as saver:
        call = asyncio.create_task(drive(saver, "put", *a_put()))
        await await_until(lambda: saver.metrics().retries > 1, "attempts to connect")
        with socket.create_server(address) as listener, Proxy(conninfo, listener):
            await call
            assert await show_settings(saver, drive) == OURS


async def test_too_many_clients_keep_the_options(conninfo: str, observer: Observer, drive: Driver) -> None:
    """The server refuses the first connection, by name."""
    observer.rows("CREATE ROLE limited LOGIN PASSWORD 'limited' CONNECTION LIMIT 0")
    observer.rows("GRANT ALL ON SCHEMA langgraph_durable TO limited")
    observer.rows("GRANT ALL ON ALL TABLES IN SCHEMA langgraph_durable TO limited")
    try:
        async with DurableSaver.from_conn_string(
            make_conninfo(conninfo, user="limited", password="limited")
        ) as saver:
            call = asyncio.create_task(drive(saver, "put", *a_put()))
            await await_until(lambda: saver.metrics().retries > 1, "attempts to connect")
            observer.rows("ALTER ROLE limited CONNECTION LIMIT 9")
            await call
            assert await show_settings(saver, drive) == OURS
    finally:
        observer.rows("DROP OWNED BY limited")
        observer.rows("DROP ROLE limited")


@pytest.mark.parametrize(
    "words",
    [
        "unsupported startup parameter: options",  # pgbouncer's, before 1.20
        "unsupported startup parameter in options: plan_cache_mode",
        "Feature not supported: RDS Proxy currently doesn't support command-line options.",
    ],
)
async def test_a_pooler_that_refuses_options_gets_none(
    conninfo: str, drive: Driver, proxy: Proxy, words: str
) -> None:
    """A write makes its settings in its transaction instead."""
    proxy.refuse_options(words)
    async with DurableSaver.from_conn_string(proxy.conninfo) as saver:
        await drive(saver, "put", *a_put())
        assert await show_settings(saver, drive) == ("auto", "on")

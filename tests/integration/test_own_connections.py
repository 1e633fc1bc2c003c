"""Asyncio connections on busy event loops, and cancellation while they connect."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
from collections.abc import AsyncIterator
from statistics import median
from typing import Any

import psycopg
import pytest

from langgraph_durable import DurableSaver
from langgraph_durable._postgres import psycopg_internals
from langgraph_durable._postgres.loop_checkout import finish
from langgraph_durable._postgres.loop_pools import LoopConnection
from langgraph_durable._postgres.psycopg_internals import is_tested
from tests.samples import Driver, Observer, a_put, await_until
from tests.samples import config as config_of


@pytest.fixture
async def saver(conninfo: str) -> AsyncIterator[DurableSaver]:
    async with DurableSaver.from_conn_string(conninfo, max_size=1) as made:
        await made.asetup()
        yield made


async def test_a_connection_cancelled_while_it_connects_leaves_no_socket_open() -> None:
    """Otherwise the server waits a minute for it, and DROP DATABASE waits for the server."""
    arrived, left = asyncio.Event(), asyncio.Event()

    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        arrived.set()
        while await reader.read(4096):
            pass
        left.set()
        writer.close()

    listener = await asyncio.start_server(say_nothing, "127.0.0.1")
    async with listener:
        port = listener.sockets[0].getsockname()[1]
        attempt = asyncio.create_task(LoopConnection.connect(f"host=127.0.0.1 port={port} user=u dbname=d"))
        await arrived.wait()
        gc.disable()  # closing must not depend on the garbage collector
        try:
            attempt.cancel()
            with pytest.raises(asyncio.CancelledError):
                await attempt
            del attempt
            await asyncio.wait_for(left.wait(), 5)
        finally:
            gc.enable()


async def test_a_call_takes_few_turns_of_a_busy_loop(saver: DurableSaver) -> None:
    """One to send, one to see the result, one to take it: among 200 graphs, turns are the cost of a call."""
    turns = 0

    async def keep_busy() -> None:
        nonlocal turns
        while True:
            time.sleep(0.03)  # noqa: ASYNC251 (a result takes less; psycopg yields if its last turn was 5 ms ago)
            turns += 1
            await asyncio.sleep(0)

    put, config = a_put(), config_of()
    await saver.aput(*put)
    others = asyncio.create_task(keep_busy())
    taken: dict[str, list[int]] = {"get": [], "put": []}
    for _ in range(10):
        for name, call in (("get", saver.aget_tuple(config)), ("put", saver.aput(*put))):
            await asyncio.sleep(0)
            time.sleep(0.006)  # noqa: ASYNC251 (see there)
            before = turns
            await call
            taken[name].append(turns - before)
    others.cancel()
    is_old = tuple(map(int, psycopg.__version__.split(".")[:3])) < (3, 3, 9)  # which waits differently
    assert median(taken["get"]) <= (5 if is_old else 3)
    assert median(taken["put"]) <= median(taken["get"])


async def test_a_cancelled_statement_leaves_its_connection_usable(
    conninfo: str, saver: DurableSaver, observer: Observer
) -> None:
    await saver.aput(*a_put())
    before = observer.backends()
    with psycopg.connect(conninfo, application_name="observer") as other:
        other.execute("LOCK langgraph_durable.checkpoints IN ACCESS EXCLUSIVE MODE")
        call = asyncio.create_task(saver.aget_tuple(config_of()))
        await await_until(observer.blocked, "the call to wait for the lock")
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
    assert await saver.aget_tuple(config_of()) is not None
    assert observer.backends() == before


@pytest.mark.parametrize(
    ("versions", "tested"),
    [(("3.3.4", "3.3.0"), True), (("3.4.0", "3.3.0"), False), (("3.3.4", "3.4.0b1"), False)],
)
def test_private_api_is_used_only_with_tested_versions(versions: tuple[str, str], tested: bool) -> None:
    assert is_tested(*versions) is tested


@pytest.mark.parametrize("off", ["option", "untested version"])
async def test_without_tuning_connections_and_pools_are_psycopgs(
    conninfo: str, drive: Driver, observer: Observer, monkeypatch: pytest.MonkeyPatch, off: str
) -> None:
    size = 4
    if off == "untested version":
        monkeypatch.setattr(psycopg_internals, "is_tested", lambda: False)
    used: list[Any] = []
    monkeypatch.setattr(psycopg_internals, "_after_sending", used.append)
    async with DurableSaver.from_conn_string(
        conninfo, min_size=size, max_size=size, tuning=off != "option"
    ) as saver:
        stored = await drive(saver, "put", *a_put())
        await await_until(lambda: len(observer.backends()) == size, "the pool to be full")
        for _ in range(3 * size):
            assert (await drive(saver, "get_tuple", config_of())).config == stored
        reads = "query LIKE '%get_checkpoint_v1(%'"
        assert len(observer.backends(reads)) == size, "psycopg_pool lends connections in turn"
    assert not used


@pytest.mark.parametrize("waits", [0, 1, 3])
async def test_finish_completes_a_cancelled_coroutine(waits: int) -> None:
    done = asyncio.Event()

    async def work() -> None:
        for _ in range(waits):
            await asyncio.sleep(0.01)
        with contextlib.suppress(TimeoutError, asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), 0.01) if waits else None
        done.set()

    caller = asyncio.create_task(finish(work()))
    await asyncio.sleep(0)
    caller.cancel()
    if waits:
        with pytest.raises(asyncio.CancelledError):
            await caller
        assert not done.is_set()
    await asyncio.wait_for(done.wait(), 5)


async def test_finish_raises_the_coroutines_error() -> None:
    async def fail() -> None:
        await asyncio.sleep(0)
        raise ValueError("of the work")

    with pytest.raises(ValueError, match="of the work"):
        await finish(fail())

"""Round trips, counted between a saver and its server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from langgraph.checkpoint.base.id import uuid6

from langgraph_durable import DurableSaver
from tests.proxy import Proxy
from tests.samples import LARGE, WRITES, Driver, a_put, checkpoint, config


@pytest.fixture
async def saver(proxy: Proxy, drive: Driver) -> AsyncIterator[DurableSaver]:
    """A saver whose only connection has prepared everything."""
    async with DurableSaver.from_conn_string(proxy.conninfo, max_size=1) as made:
        for thread_id in ("warm", "warm too", "warm again"):
            stored = await drive(made, "put", *a_put(thread_id))
            await drive(made, "put", *next_put(thread_id, stored["configurable"]["checkpoint_id"]))
            await drive(made, "put_writes", stored, WRITES, "task")
            await drive(made, "put_writes", stored, [("__error__", "what")], "task")
            await drive(made, "get_tuple", config(thread_id))
            await drive(made, "get_tuple", stored)
            await drive(made, "get_tuple", config(thread_id, await drive(made, "get_ulid", stored)))
            await drive(made, "list", config(thread_id))
            await drive(made, "delete_thread", thread_id)
        yield made


def next_put(thread_id: str, parent_id: str) -> tuple[Any, ...]:
    """A put of three large values, and of one that its parent stored."""
    made = checkpoint({"messages": LARGE, "a": LARGE * 2, "b": {"x": LARGE}, "c": "long" * 1000, "count": 2})
    new_versions = {c: v for c, v in made["channel_versions"].items() if c != "messages"}
    return config(thread_id, parent_id), made, {"source": "loop", "step": 1, "parents": {}}, new_versions


async def test_each_operation_is_one_round_trip(saver: DurableSaver, proxy: Proxy, drive: Driver) -> None:
    first = await drive(saver, "put", *a_put())
    second = next_put("thread", first["configurable"]["checkpoint_id"])
    unknown = config(checkpoint_id=str(uuid6()))
    calls: list[tuple[str, tuple[Any, ...]]] = [
        ("put", a_put("other")),
        ("put", second),
        ("put", second),  # the same again, as a retry would
        ("put_writes", (first, WRITES, "task")),
        ("put_writes", (first, WRITES, "task")),
        ("put_writes", (first, [("__error__", "what")], "task")),
        ("put_writes", (unknown, WRITES, "task")),
        ("get_tuple", (config(),)),
        ("get_tuple", (first,)),
        ("get_tuple", (unknown,)),
        ("get_tuple", (config("unknown"),)),
        ("get", (config(),)),
        ("get_ulid", (config(),)),
        ("list", (config(),)),
        ("delete_thread", ("thread",)),
        ("delete_thread", ("unknown",)),
    ]
    connections = proxy.connections
    for name, args in calls:
        before = proxy.round_trips
        await drive(saver, name, *args)
        assert proxy.round_trips - before == 1, (name, args)
    assert proxy.connections == connections


async def test_one_round_trip_stores_the_whole_checkpoint(saver: DurableSaver, drive: Driver) -> None:
    first = await drive(saver, "put", *a_put())
    put = next_put("thread", first["configurable"]["checkpoint_id"])
    await drive(saver, "put", *put)
    assert (await drive(saver, "get", config())) == put[1]


async def test_a_value_that_turns_out_missing_costs_one_more(
    saver: DurableSaver, proxy: Proxy, drive: Driver
) -> None:
    before = proxy.round_trips
    put = next_put("thread", str(uuid6()))
    await drive(saver, "put", *put)  # its parent never stored "messages"
    assert proxy.round_trips - before == 2
    assert (await drive(saver, "get", config())) == put[1]


async def test_a_list_is_one_round_trip_a_page(saver: DurableSaver, proxy: Proxy, drive: Driver) -> None:
    for step in range(130):
        await drive(saver, "put", *a_put(values={"count": step}, step=step))
    before = proxy.round_trips
    assert len(await drive(saver, "list", config())) == 130
    assert proxy.round_trips - before == 3
    before = proxy.round_trips
    assert len(await drive(saver, "list", config(), limit=10)) == 10
    assert proxy.round_trips - before == 1


async def test_naming_a_checkpoint_by_its_ulid_costs_one_more(
    saver: DurableSaver, proxy: Proxy, drive: Driver
) -> None:
    stored = await drive(saver, "put", *a_put())
    ulid = await drive(saver, "get_ulid", stored)
    before = proxy.round_trips
    assert (await drive(saver, "get_tuple", config(checkpoint_id=ulid))).config == stored
    assert proxy.round_trips - before == 2


async def test_a_prune_is_two_round_trips_with_its_transaction(
    saver: DurableSaver, proxy: Proxy, drive: Driver
) -> None:
    for thread_id in ("first", "second"):  # the first prepares
        stored = await drive(saver, "put", *a_put(thread_id))
        await drive(saver, "put", *next_put(thread_id, stored["configurable"]["checkpoint_id"]))
        before = proxy.round_trips
        await drive(saver, "prune", [thread_id])
        assert len(await drive(saver, "list", config(thread_id))) == 1
    assert proxy.round_trips - before == 2 + 1  # and the list's

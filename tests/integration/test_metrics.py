"""A saver's metrics match what happened."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import FrozenInstanceError

import pytest
from psycopg_pool import ConnectionPool

from langgraph_durable import DurableSaver
from langgraph_durable.errors import InvalidConfigError
from tests.samples import WRITES, Driver, Observer, a_put, config


async def test_calls_and_their_durations_are_counted(
    conninfo: str, observer: Observer, drive: Driver
) -> None:
    async with DurableSaver.from_conn_string(conninfo) as saver:
        assert not saver.metrics().operations
        stored = await drive(saver, "put", *a_put())
        await drive(saver, "put", *a_put("another"))
        await drive(saver, "put_writes", stored, WRITES, "task")
        await drive(saver, "get_tuple", stored)
        with pytest.raises(InvalidConfigError):
            await drive(saver, "get_tuple", {})
        observer.terminate(observer.backends())
        found = saver.metrics()
        assert {name: latency.count for name, latency in found.operations.items()} == {
            "put": 2,
            "put_writes": 1,
            "get_tuple": 2,
        }
        for latency in found.operations.values():
            assert 0 < latency.longest <= latency.seconds <= latency.longest * latency.count
        assert found.batches == found.batched_writes == found.waiting_writes == found.retries == 0
        assert found.pool_requests > 0
        with pytest.raises(FrozenInstanceError):
            found.batches = 1  # type: ignore[misc]


async def test_batches_are_counted(conninfo: str, drive: Driver) -> None:
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(50))
    async with DurableSaver.from_conn_string(conninfo) as saver:
        for turn in range(3):
            await asyncio.gather(*(drive(saver, "put", *a_put(f"{turn} {n}")) for n in range(50)))
        found = saver.metrics()
        assert found.operations["put"].count == 150
        assert 0 < found.batches <= found.batched_writes < 150
        assert 2 <= found.largest_batch < 50
        assert found.waiting_writes == found.waiting_bytes == found.broken_batches == 0


def test_retries_and_segments_are_counted(conninfo: str, observer: Observer) -> None:
    long = [{"text": f"{n} " * 400} for n in range(40)]
    with DurableSaver.from_conn_string(conninfo) as saver:
        saver.put(*a_put(values={"messages": long}))
        saver.get_tuple(config())
        assert saver.metrics().segment_hits > 0
        assert saver.metrics().segment_misses == 0
        with DurableSaver.from_conn_string(conninfo) as other:
            other.get_tuple(config())
            assert other.metrics().segment_misses == saver.metrics().segment_hits
        observer.rows(
            "CREATE SEQUENCE faults; CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
            "IF nextval('faults') <= 2 THEN RAISE EXCEPTION 'no' USING ERRCODE = '40001'; END IF; "
            "RETURN NULL; END $$; CREATE TRIGGER fail BEFORE INSERT ON langgraph_durable.checkpoints "
            "FOR EACH STATEMENT EXECUTE FUNCTION fail()"
        )
        saver.put(*a_put())
        assert saver.metrics().retries == 2


def test_requests_to_a_given_pool_are_counted(conninfo: str) -> None:
    with ConnectionPool(conninfo, min_size=1, open=True) as pool:
        saver = DurableSaver(pool)
        saver.put(*a_put())
        assert saver.metrics().pool_requests == pool.get_stats()["requests_num"] > 0

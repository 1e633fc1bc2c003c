"""Writes that wait at the same time share a transaction; callers notice no difference but the speed."""

from __future__ import annotations

import asyncio
import copy
import gc
import os
import random
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest
from langgraph.checkpoint.base.id import uuid6
from psycopg import AsyncConnection
from psycopg_pool import AsyncConnectionPool

from langgraph_durable import DurableSaver
from langgraph_durable._postgres import group_commit as _group_commit
from langgraph_durable._postgres import group_waiters as _group_waiters
from langgraph_durable._postgres.database import Database
from langgraph_durable._postgres.group_commit import WRITERS, Batch, QueuedWrite
from langgraph_durable._postgres.locks import LOCK_THREAD
from langgraph_durable._postgres.statement import render
from langgraph_durable.errors import ThreadDeletedError
from langgraph_durable.schema import DEFAULT_SCHEMA
from tests.proxy import Proxy
from tests.samples import WRITES, Driver, Observer, a_put, await_until, checkpoint, config

# What happens to a checkpoint of a thread of this name, the first so many times.
TROUBLE = """
CREATE SEQUENCE troubles;
CREATE FUNCTION trouble() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.thread_id = 'trouble' AND nextval('troubles') <= {times} THEN
        {what};
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER trouble BEFORE INSERT ON langgraph_durable.checkpoints FOR EACH ROW EXECUTE FUNCTION trouble();
"""


ARRIVALS = """
CREATE TABLE arrivals (number bigserial, thread_id text, checkpoint_id text);
CREATE FUNCTION arrive() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO arrivals (thread_id, checkpoint_id) VALUES (NEW.thread_id, NEW.checkpoint_id);
    RETURN NEW;
END $$;
CREATE TRIGGER arrive AFTER INSERT ON langgraph_durable.checkpoints FOR EACH ROW EXECUTE FUNCTION arrive();
"""


@pytest.fixture(autouse=True)
async def enough_threads() -> None:
    """As many threads as a test has calls; otherwise the sync driver's calls would wait for each other."""
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(64))


@pytest.fixture(autouse=True)
def one_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put all waiting writes into one batch, however slowly threads start; shares have a separate test."""
    monkeypatch.setattr(_group_commit, "LEAST_SHARE", 1000)
    for module in (_group_commit, _group_waiters):
        monkeypatch.setattr(module, "PATIENCE", 0.25)


@pytest.fixture
async def saver(conninfo: str) -> AsyncIterator[DurableSaver]:
    async with DurableSaver.from_conn_string(conninfo) as made:
        yield made


class Locked:
    """Threads locked as by a prune, until released."""

    def __init__(self, conninfo: str, thread_ids: Sequence[str]) -> None:
        self.connection = psycopg.connect(conninfo, application_name="observer")
        for thread_id in thread_ids:
            cursor = psycopg.RawCursor(self.connection)
            cursor.execute(render(LOCK_THREAD, DEFAULT_SCHEMA).query, [thread_id])

    def release(self) -> None:
        self.connection.close()


@asynccontextmanager
async def busy(
    saver: DurableSaver, conninfo: str, observer: Observer, drive: Driver
) -> AsyncIterator[list[asyncio.Task[Any]]]:
    """Keep all writers busy with locked threads, so that other writes have to wait at first."""
    thread_ids = [f"busy {number}" for number in range(WRITERS)]
    await drive(saver, "get_tuple", config())
    locked = Locked(conninfo, thread_ids)
    puts = [asyncio.create_task(drive(saver, "put", *a_put(thread_id))) for thread_id in thread_ids]
    try:
        await await_until(lambda: len(observer.blocked()) == WRITERS, "busy writers")
        yield puts
    finally:
        locked.release()
        await asyncio.gather(*puts)


def transactions(observer: Observer, table: str = "checkpoints") -> Counter[int]:
    """Transaction id -> its rows of threads that are not busy."""
    rows = observer.rows(
        f"SELECT xmin::text::bigint FROM langgraph_durable.{table} WHERE thread_id NOT LIKE 'busy%'"
    )
    return Counter(xmin for (xmin,) in rows)


def writes_of(thread_id: str, count: int = 1) -> tuple[Any, ...]:
    return config(thread_id, str(uuid6())), [("messages", n) for n in range(count)], "task"


# --- together ---


async def test_waiting_writes_share_a_transaction(
    saver: DurableSaver, conninfo: str, observer: Observer, drive: Driver
) -> None:
    async with busy(saver, conninfo, observer, drive) as others:
        calls = [drive(saver, "put", *a_put(f"thread {n}")) for n in range(20)]
        calls += [drive(saver, "put_writes", *writes_of(f"thread {n}")) for n in range(10, 30)]
        await asyncio.gather(*calls)
        assert not any(put.done() for put in others)  # and the others did not wait for them
        assert list(transactions(observer).values()) == [20]
        assert transactions(observer, "writes").keys() == transactions(observer).keys()
        assert sum(transactions(observer, "writes").values()) == 20


@pytest.mark.parametrize("why_not", ["turned off", "one connection"])
async def test_writes_are_separate_without_group_commit_or_pool(
    conninfo: str, observer: Observer, drive: Driver, why_not: str
) -> None:
    connection = psycopg.connect(conninfo, autocommit=True)
    async_connection = await AsyncConnection.connect(conninfo, autocommit=True)
    async with async_connection:
        if why_not == "turned off":
            saver = DurableSaver.from_conn_string(conninfo, group_commit=False, max_size=4)
        else:
            saver = DurableSaver(connection, async_pool=async_connection)
        await asyncio.gather(*(drive(saver, "put", *a_put(f"thread {n}")) for n in range(20)))
        assert list(transactions(observer).values()) == [1] * 20
        await saver.aclose()
    connection.close()


async def test_a_batch_is_one_round_trip(
    conninfo: str, proxy: Proxy, observer: Observer, drive: Driver
) -> None:
    async with DurableSaver.from_conn_string(proxy.conninfo, min_size=4, max_size=4) as saver:
        for attempt in range(12):  # until the connection that takes the batch has prepared all
            async with busy(saver, conninfo, observer, drive):
                before = proxy.round_trips
                await asyncio.gather(*(drive(saver, "put", *a_put(f"{attempt} {n}")) for n in range(10)))
                spent = proxy.round_trips - before
            if spent == 1:
                break
        assert spent == 1


async def test_a_batch_is_bounded(
    saver: DurableSaver,
    conninfo: str,
    observer: Observer,
    drive: Driver,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_group_commit, "MOST_ROWS", 8)
    async with busy(saver, conninfo, observer, drive):
        await asyncio.gather(*(drive(saver, "put", *a_put(f"thread {n}")) for n in range(20)))
    assert max(transactions(observer).values()) == 8
    monkeypatch.setattr(_group_commit, "MOST_BYTES", 10_000)
    values = {"large": random.randbytes(2000).hex()}  # 4 KB, hardly compressible
    async with busy(saver, conninfo, observer, drive):
        puts = [drive(saver, "put", *a_put(f"large {n}", values)) for n in range(20)]
        await asyncio.gather(*puts)
    large = observer.rows(
        "SELECT count(*) FROM langgraph_durable.checkpoints WHERE thread_id LIKE 'large%' GROUP BY xmin"
    )
    assert 1 < max(count for (count,) in large) <= 5


async def test_many_waiting_writes_are_split_into_shares(
    saver: DurableSaver, conninfo: str, observer: Observer, drive: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that one share is prepared while others are in flight; all of them together would also end together."""
    monkeypatch.setattr(_group_commit, "LEAST_SHARE", 16)
    count = 60
    async with busy(saver, conninfo, observer, drive):
        await asyncio.gather(*(drive(saver, "put", *a_put(f"thread {n}")) for n in range(count)))
    sizes = transactions(observer).values()
    assert sum(sizes) == count
    assert max(sizes) == -(-(count + WRITERS) // (WRITERS + 1))
    async with busy(saver, conninfo, observer, drive):
        await asyncio.gather(*(drive(saver, "put", *a_put(f"few {n}")) for n in range(16)))
    few = observer.rows(
        "SELECT count(DISTINCT xmin::text) FROM langgraph_durable.checkpoints WHERE thread_id ~ 'few'"
    )
    assert few == [(1,)]


async def test_objects_of_a_batch_are_freed_without_the_garbage_collector(
    saver: DurableSaver, drive: Driver
) -> None:
    """Reference cycles would wait for the garbage collector, whose pauses took a fifth of the time under load."""
    await drive(saver, "get_tuple", config())
    gc.collect()
    gc.disable()
    try:
        for turn in range(3):
            await asyncio.gather(*(drive(saver, "put", *a_put(f"{turn} {n}")) for n in range(30)))
        left = [o for o in gc.get_objects() if isinstance(o, QueuedWrite | Batch)]
    finally:
        gc.enable()
    assert saver.metrics().batched_writes
    assert not left


ODD_TEXTS = [
    "plain",
    "",
    "NULL",
    "null",
    '"',
    "\\",
    "{a,b}",
    '{"x"}',
    "a,b",
    " ",
    "\n",
    "'",
    "\\x41",
    "ü\U0001f600",
    "%s",
]
STORED = """
SELECT to_jsonb(t) - 'created_at' - 'stored_at' - 'ulid' FROM {schema}.{table} t
WHERE thread_id LIKE 'thread %' ORDER BY 1
"""


class Text(str):
    """A subclass of str."""

    __slots__ = ()


def many_puts(rng: random.Random, thread_id: str) -> list[tuple[str, tuple[Any, ...]]]:
    """Calls on a thread, one after the other: values large and small, known and new, channels of every name."""
    calls: list[tuple[str, tuple[Any, ...]]] = []
    words = [str(rng.random()) for _ in range(400)]
    values: dict[str, Any] = {}
    versions: dict[str, Any] = {}
    parent: str | None = None
    for step in range(6):
        changed = {}
        for name in rng.sample(ODD_TEXTS, 5):
            words = [*words, str(rng.random())]
            channel = rng.choice([str, Text])(f"channel {name}")
            values[channel] = rng.choice([words, name, {"a": name * 300}, rng.randbytes(600), None])
            changed[channel] = f"{step + 1:032}.{name}"
        versions |= changed
        made = checkpoint({})
        made["channel_values"] = {c: v for c, v in values.items() if rng.random() < 0.9}
        made["channel_versions"] = dict(versions)
        metadata = {"source": "loop", "step": step, "parents": {}, "odd": rng.choice(ODD_TEXTS)}
        metadata |= {"large": 2**63 - 1, "float": rng.choice([0.1, 1e22, -0.0]), Text("text"): Text("a text")}
        ns = rng.choice(["", "", "child:1"])
        calls.append(("put", (config(thread_id, parent, ns), made, metadata, changed)))
        writes = [(f"channel {name}", rng.choice([name, words])) for name in rng.sample(ODD_TEXTS, 3)]
        special = [("__interrupt__", (rng.choice(ODD_TEXTS),))]
        calls += [
            ("put_writes", (config(thread_id, made["id"], ns), written, f"task {n}", rng.choice(ODD_TEXTS)))
            for n, written in enumerate([writes, special, special])
        ]
        parent = made["id"]
    return calls


async def test_a_batch_stores_the_same_rows_as_separate_puts(
    conninfo: str, observer: Observer, drive: Driver
) -> None:
    rng = random.Random(11)
    names = [f"thread {number} {odd}" for number in range(2) for odd in ODD_TEXTS]
    scripts = [many_puts(rng, name) for name in names]
    stored = []
    for schema, is_grouped in (("alone", False), ("together", True)):
        saver = DurableSaver.from_conn_string(conninfo, schema=schema, group_commit=is_grouped)

        async def play(script: Sequence[Any], saver: DurableSaver = saver) -> None:
            for name, args in script:
                await drive(saver, name, *args)

        async with saver:
            await saver.asetup()
            await asyncio.gather(*(play(script) for script in scripts))
            assert saver.metrics().largest_batch > 10 or not is_grouped
        tables = ["checkpoints", "writes", "channel_values", "segments"]
        stored.append([observer.rows(STORED.format(schema=schema, table=table)) for table in tables])
    alone, together = stored
    assert all(len(rows) > 40 for rows in alone)
    assert together == alone


# --- one after the other ---


async def test_puts_of_one_checkpoint_are_applied_in_order(
    saver: DurableSaver, conninfo: str, observer: Observer
) -> None:
    async with busy(saver, conninfo, observer, Driver("async")):
        id_ = str(uuid6())
        puts = [saver.aput(*a_put(checkpoint_id=id_, values={"n": n}, step=n)) for n in range(5)]
        writes = [("messages", "first")], [("messages", "second")]
        later = [saver.aput_writes(config(checkpoint_id=id_), w, "task") for w in writes]
        await asyncio.gather(*puts, *later)
    [found] = [c async for c in saver.alist(config())]
    assert found.metadata["step"] == 4
    assert found.checkpoint["channel_values"] == {"n": 4}
    assert found.pending_writes == [("task", "messages", "first")]
    assert len(transactions(observer)) == 1


@pytest.mark.parametrize("broken", [False, True])
async def test_a_threads_puts_keep_their_order(
    saver: DurableSaver, conninfo: str, observer: Observer, broken: bool
) -> None:
    """Also when their batch fails and they run alone. Ids without a timestamp are ordered by arrival."""
    if broken:
        observer.rows(TROUBLE.format(times=2, what="RAISE EXCEPTION 'trouble'"))
    ids = [f"{random.random()}" for _ in range(12)]
    async with busy(saver, conninfo, observer, Driver("async")):
        puts = [
            saver.aput(*a_put(checkpoint_id=id_, parent_id=parent))
            for id_, parent in zip(ids, [None, *ids], strict=False)
        ]
        trouble = [saver.aput(*a_put("trouble"))] if broken else []
        ends = await asyncio.gather(*puts, *trouble, return_exceptions=True)
    assert [isinstance(end, Exception) for end in ends] == [False] * len(ids) + [True] * len(trouble)
    assert [c.checkpoint["id"] async for c in saver.alist(config())] == ids[::-1]
    assert len(transactions(observer)) == (len(ids) if broken else 1)


async def test_a_put_in_a_batch_is_repeated_with_missing_values(
    saver: DurableSaver, conninfo: str, observer: Observer, drive: Driver
) -> None:
    async with busy(saver, conninfo, observer, drive):
        made = checkpoint({"messages": list(range(100)), "count": 1})
        metadata = {"source": "loop", "step": 1, "parents": {}}
        puts = [drive(saver, "put", *a_put(f"thread {n}")) for n in range(5)]
        put = (config("new", str(uuid6())), made, metadata, {"count": made["channel_versions"]["count"]})
        await asyncio.gather(*puts, drive(saver, "put", *put))
    assert await drive(saver, "get", config("new")) == made


async def test_a_refused_put_in_a_batch_fails_only_its_caller(
    saver: DurableSaver, conninfo: str, observer: Observer, drive: Driver
) -> None:
    stored = await drive(saver, "put", *a_put("deleted"))
    await drive(saver, "delete_thread", "deleted")
    parent_id = stored["configurable"]["checkpoint_id"]
    async with busy(saver, conninfo, observer, drive):
        puts = [drive(saver, "put", *a_put(f"thread {n}")) for n in range(5)]
        late = drive(saver, "put", *a_put("deleted", parent_id=parent_id))
        *ends, refusal = await asyncio.gather(*puts, late, return_exceptions=True)
    assert isinstance(refusal, ThreadDeletedError)
    assert not any(isinstance(end, Exception) for end in ends)
    assert list(transactions(observer).values()) == [5]


# --- failures ---


BAD_ROWS = {
    "at once": TROUBLE.format(times=1000, what="RAISE EXCEPTION 'trouble of the test'"),
    "as another server's connection would": TROUBLE.format(
        times=1000, what="RAISE EXCEPTION 'trouble of the test' USING ERRCODE = '08001'"
    ),
    "at the commit": TROUBLE.format(times=1000, what="RAISE EXCEPTION 'trouble of the test'")
    .replace("CREATE TRIGGER", "CREATE CONSTRAINT TRIGGER")
    .replace("BEFORE INSERT", "AFTER INSERT")
    .replace("FOR EACH ROW", "DEFERRABLE INITIALLY DEFERRED FOR EACH ROW"),
}


@pytest.mark.parametrize("trouble", BAD_ROWS.values(), ids=BAD_ROWS)
async def test_a_bad_row_in_a_batch_fails_only_its_caller(
    conninfo: str, observer: Observer, drive: Driver, trouble: str
) -> None:
    observer.rows(trouble)
    async with DurableSaver.from_conn_string(conninfo, retry_timeout=0.2) as saver:
        async with busy(saver, conninfo, observer, drive):
            thread_ids = [
                *(f"thread {n}" for n in range(9)),
                "trouble",
                *(f"thread {n}" for n in range(9, 20)),
            ]
            ends = await asyncio.gather(
                *(drive(saver, "put", *a_put(t)) for t in thread_ids), return_exceptions=True
            )
        failed = {t: end for t, end in zip(thread_ids, ends, strict=True) if isinstance(end, Exception)}
        assert list(failed) == ["trouble"]
        assert "trouble of the test" in str(failed["trouble"])
        assert len(transactions(observer)) == 20
        await drive(saver, "put", *a_put("afterwards"))


async def test_a_refused_commit_on_a_callers_connection_is_reported(
    conninfo: str, observer: Observer, drive: Driver
) -> None:
    observer.rows(BAD_ROWS["at the commit"])
    with psycopg.connect(conninfo, autocommit=True) as connection:
        async with await AsyncConnection.connect(conninfo, autocommit=True) as async_connection:
            saver = DurableSaver(connection, async_pool=async_connection)
            with pytest.raises(psycopg.errors.RaiseException, match="trouble of the test"):
                await drive(saver, "put", *a_put("trouble"))
            await drive(saver, "put", *a_put("origin"))
            # A pipeline, whose error psycopg loses.
            with pytest.raises(psycopg.OperationalError, match="refused the commit"):
                await drive(saver, "copy_thread", "origin", "trouble")
    assert observer.rows("SELECT thread_id FROM langgraph_durable.checkpoints") == [("origin",)]


async def test_stuck_writes_do_not_occupy_all_writers(
    saver: DurableSaver, conninfo: str, observer: Observer, drive: Driver
) -> None:
    async with busy(saver, conninfo, observer, drive):
        for turn in range(3):
            await asyncio.gather(*(drive(saver, "put", *a_put(f"{turn} {n}")) for n in range(10)))
        assert saver.durable_context.committers is not None
        group = (
            saver.durable_context.committers.blocking
            if drive.kind == "sync"
            else saver.durable_context.committers.for_running_loop()
        )
        assert (group._extra, group._free) == (1, 1), "one was added, and is still running"
    assert (group._extra, group._free) == (0, WRITERS)


SETTINGS = """
CREATE TABLE settings (thread_id text, jit text, mode text);
CREATE FUNCTION tell() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO settings VALUES (NEW.thread_id, current_setting('jit'), current_setting('plan_cache_mode'));
    RETURN NEW;
END $$;
CREATE TRIGGER tell BEFORE INSERT ON langgraph_durable.{table} FOR EACH ROW EXECUTE FUNCTION tell();
"""


@pytest.mark.parametrize("table", ["checkpoints", "writes"])
async def test_a_batch_runs_without_jit_and_with_generic_plans(
    conninfo: str, observer: Observer, table: str
) -> None:
    """The planner overestimates its rows, so on a caller's pool each batch would take seconds."""
    observer.rows(SETTINGS.format(table=table))
    async with AsyncConnectionPool(conninfo, min_size=1, max_size=4) as pool:
        saver = DurableSaver(async_pool=pool)
        async with busy(saver, conninfo, observer, Driver("async")):
            if table == "writes":
                await asyncio.gather(*(saver.aput_writes(*writes_of(f"thread {n}")) for n in range(5)))
            else:
                await asyncio.gather(*(saver.aput(*a_put(f"thread {n}")) for n in range(5)))
        found = observer.rows("SELECT DISTINCT jit, mode FROM settings WHERE thread_id LIKE 'thread%'")
        assert found == [("off", "force_generic_plan")]
        async with pool.connection() as connection:
            cursor = await connection.execute("SHOW plan_cache_mode")
            assert await cursor.fetchone() == ("auto",)


def test_the_schema_of_a_saver_is_immutable(saver: DurableSaver) -> None:
    with pytest.raises(AttributeError):
        copy.copy(saver).schema = "other"  # type: ignore[misc]


async def test_a_row_that_cannot_be_sent_fails_only_its_caller(
    saver: DurableSaver, conninfo: str, observer: Observer, drive: Driver
) -> None:
    """The driver refuses it, so the server never receives the batch."""
    too_large = checkpoint()
    too_large["v"] = 2**40
    async with busy(saver, conninfo, observer, drive):
        puts = [drive(saver, "put", *a_put(f"thread {n}")) for n in range(5)]
        bad = drive(saver, "put", config("bad"), too_large, {"source": "loop", "step": 0, "parents": {}}, {})
        *ends, failure = await asyncio.gather(*puts, bad, return_exceptions=True)
    assert isinstance(failure, psycopg.Error)
    assert not any(isinstance(end, Exception) for end in ends)


async def test_a_batch_is_retried_after_its_backend_was_killed(
    saver: DurableSaver, conninfo: str, observer: Observer, drive: Driver
) -> None:
    observer.rows(TROUBLE.format(times=1, what="PERFORM pg_terminate_backend(pg_backend_pid())"))
    async with busy(saver, conninfo, observer, drive):
        calls = [drive(saver, "put", *a_put(f"thread {n}")) for n in range(10)]
        calls += [drive(saver, "put_writes", *writes_of(f"thread {n}", 3)) for n in range(10)]
        await asyncio.gather(*calls, drive(saver, "put", *a_put("trouble")))
    assert observer.value("SELECT last_value FROM troubles") == 2
    assert list(transactions(observer).values()) == [11]
    assert list(transactions(observer, "writes").values()) == [30]


async def test_a_row_that_kills_each_connection_fails_only_its_caller(
    conninfo: str, observer: Observer, drive: Driver
) -> None:
    observer.rows(TROUBLE.format(times=1000, what="PERFORM pg_terminate_backend(pg_backend_pid())"))
    async with DurableSaver.from_conn_string(conninfo, retry_timeout=0.5) as saver:
        async with busy(saver, conninfo, observer, drive):
            puts = [drive(saver, "put", *a_put(f"thread {n}")) for n in range(10)]
            bad = drive(saver, "put", *a_put("trouble"))
            *ends, failure = await asyncio.gather(*puts, bad, return_exceptions=True)
        assert isinstance(failure, psycopg.Error)
        assert not any(isinstance(end, Exception) for end in ends), ends
        assert len(transactions(observer)) == 10


async def test_every_caller_of_a_batch_gets_the_connection_error(
    conninfo: str, proxy: Proxy, observer: Observer
) -> None:
    async with DurableSaver.from_conn_string(proxy.conninfo, retry_timeout=0.5, pool_timeout=1) as saver:
        await saver.aput(*a_put())
        proxy.go_down()
        puts = [saver.aput(*a_put(f"thread {n}")) for n in range(20)]
        ends = await asyncio.wait_for(asyncio.gather(*puts, return_exceptions=True), 20)
        assert all(isinstance(end, psycopg.Error) for end in ends), ends
        proxy.come_up()
        await saver.aput(*a_put())


async def test_a_locked_thread_in_a_batch_does_not_delay_others(
    saver: DurableSaver, conninfo: str, observer: Observer, drive: Driver
) -> None:
    async with busy(saver, conninfo, observer, drive):
        locked = Locked(conninfo, ["pruned"])
        pruned = asyncio.create_task(drive(saver, "put", *a_put("pruned")))
        await asyncio.gather(*(drive(saver, "put", *a_put(f"thread {n}")) for n in range(10)))
        assert not pruned.done()
        await asyncio.gather(*(drive(saver, "put", *a_put(f"more {n}")) for n in range(10)))
        assert not pruned.done()
        locked.release()
        await pruned


async def test_prunes_copies_and_batches_of_two_savers_do_not_deadlock(conninfo: str, drive: Driver) -> None:
    thread_ids = [f"thread {n}" for n in range(6)]
    async with (
        DurableSaver.from_conn_string(conninfo) as saver,
        DurableSaver.from_conn_string(conninfo) as other,
    ):

        async def put_many(saver: DurableSaver, thread_id: str) -> None:
            for _ in range(15):
                stored = await drive(saver, "put", *a_put(thread_id))
                await drive(saver, "put_writes", stored, WRITES, "task")

        async def prune_and_copy(saver: DurableSaver, number: int) -> None:
            for turn in range(15):
                await drive(saver, "prune", [random.choice(thread_ids)])
                await drive(saver, "copy_thread", random.choice(thread_ids), f"{number} copy {turn}")

        await asyncio.gather(
            *(put_many(s, t) for s in (saver, other) for t in thread_ids),
            *(prune_and_copy(s, n) for n, s in enumerate((saver, other))),
        )
        for thread_id in thread_ids:
            assert await drive(saver, "get_tuple", config(thread_id)) is not None


# --- cancellation ---


async def test_cancelling_one_caller_leaves_its_batch_running(
    saver: DurableSaver, conninfo: str, observer: Observer
) -> None:
    """A write that is still waiting is not stored; one whose batch is running may be."""
    observer.rows(TROUBLE.format(times=1, what="PERFORM pg_sleep(0.5)"))
    async with busy(saver, conninfo, observer, Driver("async")):
        waiting = asyncio.create_task(saver.aput(*a_put("waiting")))
        running = asyncio.create_task(saver.aput(*a_put("trouble")))
        puts = [asyncio.create_task(saver.aput(*a_put(f"thread {n}"))) for n in range(10)]
        await asyncio.sleep(0)
        waiting.cancel()
        await await_until(lambda: observer.backends("wait_event = 'PgSleep'"), "the batch to run")
        running.cancel()
        await asyncio.wait([waiting, running])
        assert waiting.cancelled()
        assert running.cancelled()
        assert not any(put.done() for put in puts)
        await asyncio.gather(*puts)
    assert await saver.aget_tuple(config("waiting")) is None
    assert len(transactions(observer)) == 1


async def test_a_batch_without_callers_is_cancelled(
    saver: DurableSaver, conninfo: str, observer: Observer
) -> None:
    observer.rows(TROUBLE.format(times=1, what="PERFORM pg_sleep(60)"))
    async with busy(saver, conninfo, observer, Driver("async")):
        puts = [asyncio.create_task(saver.aput(*a_put(t))) for t in ("trouble", "one", "two")]
        await await_until(lambda: observer.backends("wait_event = 'PgSleep'"), "the batch to run")
        for put in puts:
            put.cancel()
        await asyncio.wait(puts)
        await await_until(lambda: not observer.backends("wait_event = 'PgSleep'"), "the batch's end")
        await asyncio.gather(*(saver.aput(*a_put(f"later {n}")) for n in range(5)))
    assert sum(transactions(observer).values()) == 5


async def test_a_caller_cancelled_as_its_batch_starts_frees_writer_and_thread(
    saver: DurableSaver, conninfo: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batch's task is cancelled before its first step, and still releases the writer and the thread."""
    await saver.aget_tuple(config())
    locked = Locked(conninfo, ["a", "b"])
    calls = [asyncio.create_task(saver.aput(*a_put(thread_id))) for thread_id in ("a", "b", "c")]
    assert saver.durable_context.committers is not None
    group = saver.durable_context.committers.for_running_loop()
    await await_until(lambda: group.waiting()[0] == 1, "a put that waits")
    end = group._end

    def leave_at_the_end(*args: Any) -> None:
        calls[2].cancel()
        end(*args)

    monkeypatch.setattr(group, "_end", leave_at_the_end)
    locked.release()
    await asyncio.gather(*calls[:2])
    await asyncio.wait(calls)
    monkeypatch.undo()
    await asyncio.wait_for(saver.aput(*a_put("c")), 10)
    assert (group._free, group._busy) == (WRITERS, set())


async def test_writes_of_a_cancelled_batch_run_alone(
    saver: DurableSaver, conninfo: str, observer: Observer
) -> None:
    """As at the end of an event loop, when some callers are still saving."""
    observer.rows(TROUBLE.format(times=1, what="PERFORM pg_sleep(60)"))
    async with busy(saver, conninfo, observer, Driver("async")):
        puts = [asyncio.create_task(saver.aput(*a_put(t))) for t in ("trouble", "one", "two")]
        await await_until(lambda: observer.backends("wait_event = 'PgSleep'"), "the batch to run")
        [leader] = [task for task in asyncio.all_tasks() if "_lead" in repr(task.get_coro())]
        leader.cancel()
        await asyncio.gather(*puts)
    assert list(transactions(observer).values()) == [1, 1, 1]


@pytest.mark.parametrize("seed", range(6))
async def test_acknowledged_writes_survive_any_interleaving_with_cancellations(
    conninfo: str, observer: Observer, seed: int
) -> None:
    """Acknowledged writes are stored completely and in order; others completely or not at all; none twice."""
    chance = random.Random(seed)
    observer.rows(ARRIVALS)
    if seed % 2:
        observer.rows(TROUBLE.format(times=3, what="RAISE EXCEPTION 'trouble'"))
    async with DurableSaver.from_conn_string(conninfo, max_size=3) as saver:
        thread_ids = [*(f"thread {n}" for n in range(8)), "trouble"]
        acknowledged: dict[str, list[str]] = {t: [] for t in thread_ids}
        written: set[str] = set()
        tried: dict[str, set[str]] = {t: set() for t in thread_ids}

        async def put(thread_id: str, id_: str) -> None:
            tried[thread_id].add(id_)
            await saver.aput(*a_put(thread_id, checkpoint_id=id_))
            acknowledged[thread_id].append(id_)

        async def write(thread_id: str, id_: str) -> None:
            await saver.aput_writes(config(thread_id, id_), [("messages", n) for n in range(4)], "task")
            written.add(id_)

        calls: list[asyncio.Task[None]] = []
        submitted: dict[str, list[str]] = {t: [] for t in thread_ids}
        for number in range(250):
            thread_id, id_ = chance.choice(thread_ids), f"id {number}"
            submitted[thread_id].append(id_)
            calls.append(asyncio.create_task(put(thread_id, id_)))
            calls.append(asyncio.create_task(write(thread_id, id_)))
            if chance.random() < 0.3:
                chance.choice(calls).cancel()
            for _ in range(chance.choice((0, 0, 0, 1, 5))):
                await asyncio.sleep(0)
        ends = await asyncio.gather(*calls, return_exceptions=True)
        allowed = (type(None), asyncio.CancelledError, psycopg.errors.RaiseException)
        assert all(isinstance(end, allowed) for end in ends), ends
        for thread_id in thread_ids:
            found = [c async for c in saver.alist(config(thread_id))]
            arrived = observer.rows(
                "SELECT checkpoint_id FROM arrivals WHERE thread_id = %s ORDER BY number", [thread_id]
            )
            ids = [id_ for (id_,) in arrived]
            assert set(ids) == {c.checkpoint["id"] for c in found}
            assert len(ids) == len(set(ids))
            assert set(acknowledged[thread_id]) <= set(ids) <= tried[thread_id]
            assert ids == [id_ for id_ in submitted[thread_id] if id_ in ids]
            for stored in found:
                count = len(stored.pending_writes or ())
                assert count == 4 or (count == 0 and stored.checkpoint["id"] not in written)
        assert not [t for t in asyncio.all_tasks() if "GroupCommit" in repr(t)]


# --- threads and processes ---


def test_group_commits_of_closed_loops_are_removed(conninfo: str) -> None:
    async def write(made: DurableSaver) -> None:
        await asyncio.gather(*(made.aput(*a_put(f"thread {n}")) for n in range(8)))

    with DurableSaver.from_conn_string(conninfo) as made:
        for _ in range(3):
            asyncio.run(write(made))
        assert made.durable_context.committers is not None
        assert len(made.durable_context.committers._by_loop) == 1


def test_group_commit_works_after_a_fork(conninfo: str) -> None:
    with DurableSaver.from_conn_string(conninfo) as saver:
        with ThreadPoolExecutor(20) as threads:
            list(threads.map(lambda n: saver.put(*a_put(f"thread {n}")), range(40)))
        assert saver.durable_context.committers is not None
        saver.durable_context.committers.blocking._free = 0  # as if other threads were writing just now
        saver.durable_context.committers.blocking._busy.add("child")
        if (child := os.fork()) == 0:
            try:
                saver.put(*a_put("child"))
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_an_interrupted_leader_fails_only_itself(
    conninfo: str, observer: Observer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by Ctrl-C in the thread that runs a batch: the others' writes run alone."""
    together = Database.write_together
    interrupted: list[int] = []

    async def interrupt(db: Database, writes: Any) -> Any:
        if not interrupted:
            interrupted.append(len(writes))
            raise KeyboardInterrupt
        return await together(db, writes)

    monkeypatch.setattr(Database, "write_together", interrupt)

    def put_one(number: int) -> BaseException | None:
        try:
            interrupted_saver.put(*a_put(f"thread {number}"))
        except KeyboardInterrupt as exc:
            return exc
        return None

    with DurableSaver.from_conn_string(conninfo) as interrupted_saver, ThreadPoolExecutor(30) as threads:
        ends = list(threads.map(put_one, range(30)))
        assert len([end for end in ends if end is not None]) == len(interrupted) == 1
        assert sum(transactions(observer).values()) == 29

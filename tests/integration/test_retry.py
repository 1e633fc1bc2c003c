"""Transient faults are retried without duplicating rows; other errors are raised at once, unchanged."""

from __future__ import annotations

import asyncio
import itertools
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, contextmanager
from functools import partial
from typing import Any

import psycopg
import pytest
from psycopg import AsyncConnection, sql
from psycopg.conninfo import make_conninfo
from psycopg_pool import AsyncConnectionPool, PoolTimeout
from typing_extensions import LiteralString
from ulid import ULID

from langgraph_durable import DurableSaver, embedded
from langgraph_durable._postgres import database as _database
from langgraph_durable._postgres import faults as _faults
from langgraph_durable._postgres.locks import LOCK_THREAD
from langgraph_durable._postgres.loop_checkout import async_live_connection
from langgraph_durable._postgres.statement import render
from langgraph_durable.embedded import EmbeddedPostgres
from langgraph_durable.errors import ConnectionFailedError, InvalidConfigError
from langgraph_durable.schema import DEFAULT_SCHEMA
from tests.proxy import Proxy
from tests.samples import OPERATIONS, WRITES, Driver, Observer, a_put, await_until, config, wait_until

# A trigger that fails the first `times` statements on a table. A sequence counts, since no rollback takes it back.
FAULT = """
CREATE SEQUENCE faults;
CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF nextval('faults') <= {times} THEN
        RAISE EXCEPTION 'a fault of the test' USING ERRCODE = {state};
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER fail BEFORE INSERT ON {table} FOR EACH STATEMENT EXECUTE FUNCTION fail();
"""


def make_fault(observer: Observer, table: str, state: str, times: int) -> Callable[[], int]:
    """Make the first inserts into a table fail; return how to count the attempts."""
    identifiers = {"table": sql.Identifier(DEFAULT_SCHEMA, table)}
    observer.rows(sql.SQL(FAULT).format(state=sql.Literal(state), times=sql.Literal(times), **identifiers))
    return lambda: int(observer.value("SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM faults"))


@contextmanager
def locked(conninfo: str, table: str = "checkpoints") -> Iterator[psycopg.Connection[Any]]:
    """Hold an exclusive lock on a table."""
    with psycopg.connect(conninfo, application_name="observer") as connection:
        connection.execute(
            sql.SQL("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE").format(sql.Identifier(DEFAULT_SCHEMA, table))
        )
        yield connection
        connection.rollback()


def lock_thread(connection: psycopg.Connection[Any]) -> None:
    """Take the lock of `thread` as a prune does."""
    psycopg.RawCursor(connection).execute(render(LOCK_THREAD, DEFAULT_SCHEMA).query, ["thread"])


async def stored_ids(drive: Driver, saver: DurableSaver, thread_id: str = "thread") -> list[str]:
    """The ids of a thread's checkpoints, oldest first."""
    return [t.checkpoint["id"] for t in await drive(saver, "list", config(thread_id))][::-1]


# --- connections that die ---


async def test_calls_succeed_after_backends_were_terminated(
    conninfo: str, observer: Observer, drive: Driver
) -> None:
    async with DurableSaver.from_conn_string(conninfo) as saver:
        for operation, arguments in OPERATIONS.items():
            await drive(saver, operation, *arguments())
            observer.terminate(observer.backends())
            await drive(saver, operation, *arguments())


async def test_one_call_replaces_many_dead_connections_quickly(
    conninfo: str, observer: Observer, drive: Driver
) -> None:
    """All connections of a large pool are dead, and a call does not fail on each of them in turn."""
    size = 40
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(size))
    async with DurableSaver.from_conn_string(conninfo, max_size=size, retry_timeout=5) as saver:
        await drive(saver, "put", *a_put())
        with locked(conninfo):
            calls = [asyncio.create_task(drive(saver, "get_tuple", config())) for _ in range(size)]
            await await_until(lambda: len(observer.blocked()) == size, "a pool that grew")
        await asyncio.gather(*calls)
        observer.terminate(observer.backends())
        await await_until(lambda: not observer.backends(), "every backend's end")
        await drive(saver, "put", *a_put())


@pytest.mark.parametrize("operation", ["put", "put_writes", "get_tuple", "list", "delete_thread"])
async def test_a_call_is_retried_after_its_backend_was_terminated(
    conninfo: str, observer: Observer, drive: Driver, operation: str
) -> None:
    async with DurableSaver.from_conn_string(conninfo) as saver:
        stored = await drive(saver, "put", *a_put())
        await drive(saver, "put_writes", stored, WRITES, "first task")
        with locked(conninfo, "writes" if operation == "put_writes" else "checkpoints"):
            call = asyncio.create_task(drive(saver, operation, *OPERATIONS[operation]()))
            await await_until(observer.blocked, "the call to wait for the lock")
            [pid] = observer.blocked()
            observer.terminate([pid])
            await await_until(lambda: [p for p in observer.blocked() if p != pid], "the second attempt")
        await call
        assert len(await stored_ids(drive, saver)) == {"put": 2, "delete_thread": 0}.get(operation, 1)


def went_on(acknowledged: dict[str, list[str]], puts: list[asyncio.Task[None]], enough: int) -> bool:
    return sum(map(len, acknowledged.values())) >= enough or all(put.done() for put in puts)


async def test_no_put_is_lost_while_backends_are_terminated_repeatedly(
    conninfo: str, observer: Observer, drive: Driver
) -> None:
    async with DurableSaver.from_conn_string(conninfo, max_size=8) as saver:
        acknowledged: dict[str, list[str]] = {f"thread-{n}": [] for n in range(6)}

        async def put_many(thread_id: str) -> None:
            parent = None
            while len(acknowledged[thread_id]) < 30:
                stored = await drive(saver, "put", *a_put(thread_id, parent_id=parent))
                parent = stored["configurable"]["checkpoint_id"]
                acknowledged[thread_id].append(parent)

        puts = [asyncio.create_task(put_many(thread_id)) for thread_id in acknowledged]
        while not all(put.done() for put in puts):
            observer.terminate(observer.backends("random() < 0.5"))
            await await_until(
                partial(went_on, acknowledged, puts, sum(map(len, acknowledged.values())) + 20), "progress"
            )
        await asyncio.gather(*puts)
        for thread_id, ids in acknowledged.items():
            assert await stored_ids(drive, saver, thread_id) == ids


# --- a server that restarts ---


@pytest.fixture(scope="module")
def restartable() -> Iterator[EmbeddedPostgres]:
    """A server for this file alone."""
    with embedded.start() as server:
        yield server


@pytest.mark.parametrize("immediate", [False, True])
async def test_no_put_is_lost_during_a_server_restart(
    restartable: EmbeddedPostgres, drive: Driver, immediate: bool
) -> None:
    schema = f"restart {drive.kind} {immediate}"
    async with DurableSaver.from_conn_string(restartable.conninfo(), schema=schema, max_size=4) as saver:
        await drive(saver, "setup")
        acknowledged: dict[str, list[str]] = {f"thread-{n}": [] for n in range(4)}
        enough = threading.Event()

        async def put_many(thread_id: str) -> None:
            parent = None
            while not enough.is_set():
                stored = await drive(saver, "put", *a_put(thread_id, parent_id=parent))
                parent = stored["configurable"]["checkpoint_id"]
                acknowledged[thread_id].append(parent)
                await drive(saver, "put_writes", stored, WRITES, "task")

        def each_went_on(by: int, since: dict[str, int]) -> bool:
            return all(len(ids) >= since[thread_id] + by for thread_id, ids in acknowledged.items())

        puts = [asyncio.create_task(put_many(thread_id)) for thread_id in acknowledged]
        try:
            await await_until(lambda: each_went_on(10, dict.fromkeys(acknowledged, 0)), "some puts")
            await asyncio.to_thread(restartable.restart, immediate=immediate)
            since = {thread_id: len(ids) for thread_id, ids in acknowledged.items()}
            await await_until(
                lambda: each_went_on(10, since) or any(put.done() for put in puts), "puts after the restart"
            )
        finally:
            enough.set()
            await asyncio.gather(*puts)
        for thread_id, ids in acknowledged.items():
            found = await drive(saver, "list", config(thread_id))
            assert [t.checkpoint["id"] for t in found][::-1] == ids
            assert all(len(t.pending_writes) == len(WRITES) for t in found)


async def test_a_call_waits_for_the_end_of_an_outage(conninfo: str, proxy: Proxy, drive: Driver) -> None:
    async with DurableSaver.from_conn_string(proxy.conninfo) as saver:
        await drive(saver, "put", *a_put())
        proxy.go_down()
        refused = proxy.refused
        call = asyncio.create_task(drive(saver, "put", *a_put()))
        await await_until(lambda: proxy.refused > refused, "an attempt to connect")
        assert not call.done()
        proxy.come_up()
        await call
        assert len(await stored_ids(drive, saver)) == 2


async def test_the_end_of_an_outage_is_noticed_soon(conninfo: str, proxy: Proxy, drive: Driver) -> None:
    """However long it lasted, although a pool doubles its delay after each attempt."""
    async with DurableSaver.from_conn_string(proxy.conninfo) as saver:
        for _ in range(3):
            await drive(saver, "get_tuple", config())
        proxy.go_down()
        refused = proxy.refused
        call = asyncio.create_task(drive(saver, "put", *a_put()))
        await await_until(lambda: proxy.refused >= refused + 9, "many attempts to connect")
        proxy.come_up()
        started = time.monotonic()
        await call
        assert time.monotonic() - started < 3


async def test_a_call_waits_if_the_first_connection_is_refused(
    conninfo: str, proxy: Proxy, drive: Driver
) -> None:
    proxy.go_down()
    async with DurableSaver.from_conn_string(proxy.conninfo) as saver:
        call = asyncio.create_task(drive(saver, "put", *a_put()))
        await await_until(lambda: proxy.refused > 1, "attempts to connect")
        proxy.come_up()
        await call
        assert len(await stored_ids(drive, saver)) == 1


# --- faults within the database ---


@pytest.mark.parametrize("state", ["40001", "40P01", "57P01", "08006"])
async def test_transient_faults_are_retried(
    conninfo: str, observer: Observer, drive: Driver, state: str
) -> None:
    attempts = make_fault(observer, "checkpoints", state, times=2)
    async with DurableSaver.from_conn_string(conninfo) as saver:
        stored = await drive(saver, "put", *a_put())
        assert attempts() == 3
        assert (await drive(saver, "get_tuple", config())).config == stored
        assert len(await stored_ids(drive, saver)) == 1


async def test_a_real_deadlock_is_retried(conninfo: str, observer: Observer, drive: Driver) -> None:
    async with DurableSaver.from_conn_string(conninfo) as saver:
        await drive(saver, "put", *a_put())
        with locked(conninfo) as other:
            call = asyncio.create_task(drive(saver, "put", *a_put()))
            await await_until(observer.blocked, "the put to wait for the table")
            [pid] = observer.blocked()
            # The put, which waits longer, finds the deadlock out and is its victim; this gets the lock.
            await asyncio.to_thread(lock_thread, other)
            assert pid not in observer.blocked()
        await call
        assert len(await stored_ids(drive, saver)) == 2


async def test_a_real_serialization_failure_is_retried(
    conninfo: str, observer: Observer, drive: Driver
) -> None:
    strict = make_conninfo(conninfo, options=r"-c default_transaction_isolation=repeatable\ read")
    async with DurableSaver.from_conn_string(strict) as saver:
        arguments = a_put()
        await drive(saver, "put", *arguments)
        with psycopg.connect(conninfo, application_name="observer") as other:
            other.execute("UPDATE langgraph_durable.checkpoints SET run_id = 'other'")
            call = asyncio.create_task(drive(saver, "put", *arguments))
            await await_until(observer.blocked, "the put to wait for the row")
        await call
        assert observer.value("SELECT run_id FROM langgraph_durable.checkpoints") is None


async def test_concurrent_puts_with_the_same_ulid_both_succeed(conninfo: str, drive: Driver) -> None:
    async with DurableSaver.from_conn_string(conninfo, max_size=8) as saver:
        await drive(saver, "put", *a_put(checkpoint_id="root"))
        ids = [f"id-{number}" for number in range(40)]
        puts = [drive(saver, "put", *a_put(checkpoint_id=i, parent_id="root")) for i in ids]
        await asyncio.gather(*puts)
        found = await drive(saver, "list", config())
        assert sorted(t.checkpoint["id"] for t in found) == sorted([*ids, "root"])


@pytest.mark.parametrize(
    ("state", "error"),
    [
        ("53100", psycopg.errors.DiskFull),
        ("42501", psycopg.errors.InsufficientPrivilege),
        ("57014", psycopg.errors.QueryCanceled),
        ("23505", psycopg.errors.UniqueViolation),
        ("P0001", psycopg.errors.RaiseException),
    ],
)
async def test_permanent_faults_are_raised_at_once_and_unchanged(
    conninfo: str, observer: Observer, drive: Driver, state: str, error: type[psycopg.Error]
) -> None:
    attempts = make_fault(observer, "checkpoints", state, times=100)
    async with DurableSaver.from_conn_string(conninfo) as saver:
        with pytest.raises(error, match="a fault of the test") as caught:
            await drive(saver, "put", *a_put())
        assert type(caught.value) is error
        assert attempts() == 1
        assert await stored_ids(drive, saver) == []


async def test_a_lock_timeout_is_raised_at_once(conninfo: str, drive: Driver) -> None:
    """The first statement of a pipeline fails, and its error is raised, not a later statement's."""
    hasty = make_conninfo(conninfo, options="-c lock_timeout=1")
    async with DurableSaver.from_conn_string(hasty) as saver:
        await drive(saver, "put", *a_put())
        with psycopg.connect(conninfo) as other:
            lock_thread(other)
            with pytest.raises(psycopg.errors.LockNotAvailable):
                await drive(saver, "put", *a_put())
        await drive(saver, "put", *a_put())


# --- for how long ---


async def test_no_retry_without_a_timeout(
    conninfo: str, observer: Observer, drive: Driver, caplog: pytest.LogCaptureFixture
) -> None:
    attempts = make_fault(observer, "checkpoints", "40001", times=100)
    async with DurableSaver.from_conn_string(conninfo, retry_timeout=0) as saver:
        with pytest.raises(psycopg.errors.SerializationFailure):
            await drive(saver, "put", *a_put())
        assert attempts() == 1
        assert [r.message for r in caplog.records if r.name == "langgraph_durable"] == []


async def test_retries_end_with_their_timeout(
    conninfo: str, observer: Observer, drive: Driver, caplog: pytest.LogCaptureFixture
) -> None:
    attempts = make_fault(observer, "checkpoints", "40001", times=1000)
    async with DurableSaver.from_conn_string(conninfo, retry_timeout=0.5) as saver:
        started = time.monotonic()
        with pytest.raises(psycopg.errors.SerializationFailure):
            await drive(saver, "put", *a_put())
        assert time.monotonic() - started < 5
        assert attempts() > 2
    logged = [r.message for r in caplog.records if r.name == "langgraph_durable"]
    assert len(logged) == 1
    assert "a fault of the test" in logged[0]


async def test_a_pool_timeout_is_not_retried(conninfo: str, observer: Observer, drive: Driver) -> None:
    async with DurableSaver.from_conn_string(conninfo, max_size=1, pool_timeout=0.2) as saver:
        await drive(saver, "get_tuple", config())
        await drive(saver, "get_tuple", config())
        with locked(conninfo):
            holder = asyncio.create_task(drive(saver, "get_tuple", config()))
            await await_until(observer.blocked, "the pool's one connection to be busy")
            started = time.monotonic()
            with pytest.raises(PoolTimeout):
                await drive(saver, "get_tuple", config())
            assert time.monotonic() - started < 5
        assert await holder is None


# --- in a transaction of the caller's ---


@pytest.mark.parametrize("autocommit", [True, False])
async def test_no_retry_inside_the_callers_transaction(
    conninfo: str, observer: Observer, drive: Driver, autocommit: bool
) -> None:
    attempts = make_fault(observer, "checkpoints", "40001", times=1)
    async with AsyncExitStack() as stack:
        saver, execute = await on_one_connection(stack, drive, conninfo, autocommit)
        await execute("BEGIN" if autocommit else "SELECT 1")
        with pytest.raises(psycopg.errors.SerializationFailure):
            await drive(saver, "put", *a_put())
        assert attempts() == 1
        await execute("ROLLBACK")
        await drive(saver, "put", *a_put())
        assert len(await stored_ids(drive, saver)) == 1


@pytest.mark.parametrize("autocommit", [True, False])
async def test_retry_on_a_connection_outside_a_transaction(
    conninfo: str, observer: Observer, drive: Driver, autocommit: bool
) -> None:
    attempts = make_fault(observer, "checkpoints", "40001", times=2)
    async with AsyncExitStack() as stack:
        saver, _ = await on_one_connection(stack, drive, conninfo, autocommit)
        await drive(saver, "put", *a_put())
        assert attempts() == 3


@pytest.mark.parametrize("autocommit", [True, False])
async def test_retry_while_others_use_the_same_connection(
    conninfo: str, observer: Observer, drive: Driver, autocommit: bool
) -> None:
    attempts = make_fault(observer, "checkpoints", "40001", times=20)
    async with AsyncExitStack() as stack:
        saver, _ = await on_one_connection(stack, drive, conninfo, autocommit)
        await asyncio.gather(*(drive(saver, "put", *a_put(f"thread-{n}")) for n in range(20)))
        assert attempts() == 40


async def test_retry_while_another_thread_is_on_the_connection(
    conninfo: str, observer: Observer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread's operation is not taken for the caller's transaction."""
    make_fault(observer, "writes", "40001", times=1)
    failed, asked = threading.Event(), threading.Event()
    really_transient = _faults.is_transient

    def is_transient(exc: psycopg.Error) -> bool:
        if isinstance(exc, psycopg.errors.SerializationFailure):
            failed.set()
            wait_until(observer.blocked, "the other thread's call")
            asked.set()
        return really_transient(exc)

    monkeypatch.setattr(_database, "is_transient", is_transient)
    with psycopg.connect(conninfo, autocommit=True) as connection:
        saver = DurableSaver(connection)
        stored = saver.put(*a_put())
        with locked(conninfo):
            writing = asyncio.create_task(asyncio.to_thread(saver.put_writes, stored, WRITES, "task"))
            await await_until(failed.is_set, "the fault")
            getting = asyncio.create_task(asyncio.to_thread(saver.get_tuple, config()))
            await await_until(asked.is_set, "the other thread's call")
        await writing
        await getting
        found = saver.get_tuple(config())
        assert found is not None
        assert len(found.pending_writes or ()) == len(WRITES)


async def on_one_connection(
    stack: AsyncExitStack, drive: Driver, conninfo: str, autocommit: bool
) -> tuple[DurableSaver, Callable[[Any], Any]]:
    """A saver on one connection, and how to run a statement on it."""
    if drive.kind == "sync":
        connection = stack.enter_context(psycopg.connect(conninfo, autocommit=autocommit))
        return DurableSaver(connection), lambda query: asyncio.to_thread(connection.execute, query)
    asynchronous = await AsyncConnection.connect(conninfo, autocommit=autocommit)
    await stack.enter_async_context(asynchronous)
    return DurableSaver(async_pool=asynchronous), asynchronous.execute


# --- connections that cannot be made ---


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"password": "wrong"}, "password authentication failed"),
        ({"dbname": "no_such_database"}, "does not exist"),
        ({"user": "no_such_role"}, "authentication failed"),
        ({"host": "nowhere.invalid"}, "resolve host"),
    ],
)
async def test_a_permanent_connection_fault_is_raised_at_once(
    restartable: EmbeddedPostgres,
    drive: Driver,
    wrong: dict[str, str],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_such_host(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", no_such_host)
    started = time.monotonic()
    async with DurableSaver.from_conn_string(make_conninfo(restartable.conninfo(), **wrong)) as saver:
        for operation in ("setup", "get_tuple"):
            with pytest.raises(ConnectionFailedError, match=f"check the connection string.*{said}"):
                await drive(saver, operation, *OPERATIONS.get(operation, tuple)())
    assert time.monotonic() - started < 10


@pytest.mark.parametrize("conninfo", ["nonsense", "host=/tmp nonsense=1", "postgresql://h?x=1"])
def test_an_invalid_conninfo_is_refused_at_once(conninfo: str) -> None:
    with pytest.raises(InvalidConfigError, match=r"(?s)not a Postgres connection string.*postgresql://"):
        DurableSaver.from_conn_string(conninfo)


# --- cancellation ---


@pytest.mark.parametrize("operation", ["put", "put_writes", "get_tuple", "delete_thread", "setup"])
async def test_a_cancelled_call_leaves_the_pool_usable(
    conninfo: str, observer: Observer, operation: str
) -> None:
    async with DurableSaver.from_conn_string(conninfo, max_size=1) as saver:
        await saver.aput(*a_put())
        await saver.aget_tuple(config())
        table = {"put_writes": "writes", "setup": "schema_migrations"}.get(operation, "checkpoints")
        for _ in range(3):
            with locked(conninfo, table):
                arguments = OPERATIONS.get(operation, tuple)()
                call = asyncio.create_task(getattr(saver, f"a{operation}")(*arguments))
                await await_until(observer.blocked, "the call to wait for the lock")
                call.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await call
                await await_until(lambda: not observer.blocked(), "the statement's end")
            await saver.aput(*a_put("another"))
        await await_until(lambda: len(observer.backends()) == 1, "the pool to have one connection")
        assert len(await stored_ids(Driver("async"), saver)) == 1


@pytest.mark.parametrize("pool", ["own", "given"])
async def test_a_call_cancelled_on_entering_its_pipeline_leaves_the_pool_usable(
    conninfo: str, observer: Observer, monkeypatch: pytest.MonkeyPatch, pool: str
) -> None:
    """psycopg yields to the event loop there if the loop was busy for long; our connections do so later."""
    enter = AsyncConnection.pipeline
    cancel = False

    def pipeline(connection: AsyncConnection[Any]) -> Any:
        task = asyncio.current_task()
        if cancel and task is not None:
            time.sleep(0.1)
            task.cancel()
        return enter(connection)

    async with AsyncExitStack() as stack:
        if pool == "own":
            saver = await stack.enter_async_context(DurableSaver.from_conn_string(conninfo, max_size=1))
        else:
            given = AsyncConnectionPool[Any](
                conninfo, min_size=1, max_size=1, open=False, kwargs={"autocommit": True}
            )
            saver = DurableSaver(async_pool=await stack.enter_async_context(given))
        for number in range(3):
            await saver.aput(*a_put(f"thread-{number}"))
        with monkeypatch.context() as patch:
            patch.setattr(AsyncConnection, "pipeline", pipeline)
            cancel = True
            with pytest.raises(asyncio.CancelledError):
                await asyncio.create_task(saver.adelete_thread("cancelled"))
        query = "SELECT count(*) FROM langgraph_durable.checkpoints WHERE thread_id <> 'cancelled'"
        for number in range(3, 6):
            stored = await saver.aput(*a_put(f"thread-{number}"))
            assert observer.value(query) == number + 1
            for thread_id in (f"thread-{number}", "thread-1", "nobody"):
                found = await saver.aget_tuple(config(thread_id))
                assert (found and found.config["configurable"]["thread_id"]) == (
                    None if thread_id == "nobody" else thread_id
                )
            found = await saver.aget_tuple(stored)
            assert found is not None
            assert found.config == stored


async def test_calls_cancelled_at_any_step_leave_the_pool_usable(conninfo: str, observer: Observer) -> None:
    """No later call receives the result of a cancelled one, and no connection is lost."""
    size = 4
    async with DurableSaver.from_conn_string(conninfo, max_size=size) as saver:
        await saver.aput(*a_put())
        for round_ in range(60):
            acknowledged: list[str] = []

            async def put(number: int, round_: int = round_, acknowledged: list[str] = acknowledged) -> None:
                thread_id = f"thread-{round_}-{number}"
                await saver.aput(*a_put(thread_id, checkpoint_id=thread_id))
                acknowledged.append(thread_id)

            calls = [asyncio.create_task(put(number)) for number in range(12)]
            for _ in range(round_ % 40):
                await asyncio.sleep(0)  # a step further each time
            for call in calls[::2]:
                call.cancel()
            ends = await asyncio.gather(*calls, return_exceptions=True)
            assert [end for end in ends if not isinstance(end, (asyncio.CancelledError, type(None)))] == []
            for thread_id in acknowledged:
                assert await stored_ids(Driver("async"), saver, thread_id) == [thread_id]
                found = await saver.aget(config(thread_id))
                assert found is not None
                assert found["id"] == thread_id
        with locked(conninfo):
            gets = [asyncio.create_task(saver.aget_tuple(config())) for _ in range(size)]
            await await_until(lambda: len(observer.blocked()) == size, "every connection to be used")
        await asyncio.gather(*gets)
        await await_until(lambda: len(observer.backends()) == size, "the pool to have as many connections")


async def test_a_call_cancelled_while_it_ends_returns_its_connection(conninfo: str) -> None:
    """At whatever step it is, while other calls wait for the connection or begin to."""
    async with AsyncConnectionPool(conninfo, min_size=1, max_size=1, timeout=2, open=False) as pool:

        async def call(begun: asyncio.Event, end: asyncio.Event) -> None:
            async with async_live_connection(pool):
                begun.set()
                await end.wait()

        for waits_for, cancelled_after in itertools.product(range(8), range(8)):
            begun, end = asyncio.Event(), asyncio.Event()
            first = asyncio.create_task(call(begun, end))
            await begun.wait()
            others = [asyncio.create_task(call(begun, end)) for _ in range(2)]
            for _ in range(waits_for):
                await asyncio.sleep(0)
            end.set()
            for _ in range(cancelled_after):
                await asyncio.sleep(0)
            first.cancel()
            _, *ends = await asyncio.gather(first, *others, return_exceptions=True)
            assert ends == [None, None], (waits_for, cancelled_after)


async def test_a_call_that_times_out_leaves_the_pool_usable(conninfo: str) -> None:
    async with DurableSaver.from_conn_string(conninfo, max_size=1) as saver:
        await saver.aput(*a_put())
        with locked(conninfo), pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(saver.aget_tuple(config()), 0.1)
        assert await saver.aget_tuple(config()) is not None


# --- a statement that arrives twice ---


async def test_a_retried_put_whose_result_was_lost_keeps_its_place(
    conninfo: str, proxy: Proxy, observer: Observer, drive: Driver
) -> None:
    """It is stored, its result is lost, another caller puts, and then the retry arrives."""
    place = "SELECT ulid FROM langgraph_durable.checkpoints WHERE checkpoint_id = 'first'"
    seen: list[Any] = []

    with DurableSaver.from_conn_string(conninfo) as other:
        other.get_tuple(config())
        async with DurableSaver.from_conn_string(proxy.conninfo) as saver:
            await drive(saver, "put", *a_put(checkpoint_id="root"))
            await drive(saver, "get_tuple", config())

            def put_between() -> None:
                seen.append(observer.value(place))
                other.put(*a_put(checkpoint_id="second", parent_id="root"))

            proxy.lose_next_answer(put_between)
            await drive(saver, "put", *a_put(checkpoint_id="first", parent_id="root"))
            assert seen == [observer.value(place)]
            assert await stored_ids(drive, saver) == ["root", "first", "second"]
            assert (await drive(saver, "get", config(checkpoint_id="first")))["id"] == "first"


def count_writes(observer: Observer, counts: list[int]) -> None:
    counts.append(observer.value("SELECT count(*) FROM langgraph_durable.writes"))


async def test_retried_writes_whose_result_was_lost_are_not_duplicated(
    proxy: Proxy, observer: Observer, drive: Driver
) -> None:
    async with DurableSaver.from_conn_string(proxy.conninfo) as saver:
        stored = await drive(saver, "put", *a_put())
        for writes, task_id in [(WRITES, "a task"), ([("__error__", "what")], "b task")]:
            for _ in range(2):  # prepares the statement
                await drive(saver, "put_writes", config("another", "none"), writes, "a task")
            lost: list[Any] = []
            proxy.lose_next_answer(partial(count_writes, observer, lost))
            await drive(saver, "put_writes", stored, writes, task_id)
            count_writes(observer, lost)
            assert lost[0] == lost[1]
        found = await drive(saver, "get_tuple", stored)
        assert found.pending_writes == [
            *(("a task", channel, value) for channel, value in WRITES),
            ("b task", "__error__", "what"),
        ]


async def test_a_retried_deletion_whose_result_was_lost_keeps_its_tombstone(
    proxy: Proxy, observer: Observer, drive: Driver
) -> None:
    tombstone = "SELECT ulid, deleted_at FROM langgraph_durable.tombstones"
    seen: list[Any] = []
    async with DurableSaver.from_conn_string(proxy.conninfo) as saver:
        await drive(saver, "put", *a_put())
        await drive(saver, "get_tuple", config())
        proxy.lose_next_answer(lambda: seen.extend(observer.rows(tombstone)))
        await drive(saver, "delete_thread", "thread")
        assert len(seen) == 1
        assert observer.rows(tombstone) == seen


def test_wait_until_waits() -> None:
    answers = iter([False, False, True])
    wait_until(lambda: next(answers), "the third answer")
    assert next(answers, None) is None


# --- puts with the same ULID, where the index has another name ---


PARTITIONED = """
ALTER TABLE langgraph_durable.checkpoints RENAME TO whole;
CREATE TABLE langgraph_durable.checkpoints (LIKE langgraph_durable.whole INCLUDING ALL) PARTITION BY HASH (thread_id);
DROP TABLE langgraph_durable.whole;
"""

PARTITION = """
CREATE TABLE langgraph_durable.{} PARTITION OF langgraph_durable.checkpoints
    FOR VALUES WITH (MODULUS 4, REMAINDER {})
"""


async def test_concurrent_puts_with_the_same_ulid_in_a_partition_all_succeed(
    conninfo: str, observer: Observer, drive: Driver
) -> None:
    """Eight savers, as of eight processes, put into one namespace."""
    observer.rows(PARTITIONED)
    for remainder in range(4):
        names = (sql.Identifier(f"checkpoints_{remainder:03}"), sql.Literal(remainder))
        observer.rows(sql.SQL(PARTITION).format(*names))
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(8))
    tomorrow = str(ULID.from_timestamp(time.time() + 86400))  # so each one's place is next to the last one's
    async with AsyncExitStack() as stack:
        savers = [
            await stack.enter_async_context(DurableSaver.from_conn_string(conninfo, max_size=2))
            for _ in range(8)
        ]

        async def put_many(saver: DurableSaver, number: int) -> None:
            for step in range(25):
                await drive(saver, "put", *a_put(checkpoint_id=f"{number} {step}", parent_id=tomorrow))

        await drive(savers[0], "put", *a_put(checkpoint_id=tomorrow))
        await asyncio.gather(*(put_many(saver, number) for number, saver in enumerate(savers)))
        assert sum(saver.metrics().retries for saver in savers) > 0, "puts chose the same ULID"
        expected = [tomorrow, *(f"{n} {s}" for n in range(8) for s in range(25))]
        assert sorted(await stored_ids(drive, savers[0])) == sorted(expected)


@pytest.mark.parametrize(
    ("primary", "detail", "constraint", "expected"),
    [
        ('"checkpoints_ulid_key"', "", "checkpoints_ulid_key", True),
        ('duplicate key value violates unique constraint "checkpoints_ulid_key_102072"', "", "", True),
        ("", "", "checkpoints_003_thread_id_checkpoint_ns_ulid_idx", True),
        ("", "Schlüssel »(thread_id, checkpoint_ns, ulid)=(a, , 0)« existiert bereits.", "any", True),
        ("", "Key (thread_id)=(Key (thread_id, checkpoint_ns, ulid)=(a, b)) already exists.", "mine", False),
        ("", "Key (thread_id, checkpoint_ns, checkpoint_id)=(a, , x) already exists.", "any", False),
        ('duplicate key value violates unique constraint "checkpoints_pkey_102072"', "", "", False),
        ("", "", "", False),
    ],
)
def test_unique_violations_of_ulids_are_transient(
    conninfo: str, primary: str, detail: str, constraint: str, expected: bool
) -> None:
    """As reported by Postgres, a partition, Citus and a localized server, or without details."""
    said: dict[LiteralString, str] = {"MESSAGE": primary or "-", "DETAIL": detail, "CONSTRAINT": constraint}
    options = sql.SQL(", ").join(sql.SQL("{} = {}").format(sql.SQL(k), v) for k, v in said.items() if v)
    with psycopg.connect(conninfo) as connection:
        body = sql.SQL("BEGIN RAISE unique_violation USING {}; END").format(options).as_string(connection)
        with pytest.raises(psycopg.errors.UniqueViolation) as caught:
            connection.execute(sql.SQL("DO {}").format(body))
        assert _faults.is_transient(caught.value) is expected

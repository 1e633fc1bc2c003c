"""Lifetimes of pools: with and without `with`, threads, event loops, forks, and pools that callers pass."""

from __future__ import annotations

import asyncio
import copy
import gc
import subprocess
import sys
import textwrap
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from psycopg import AsyncConnection, Connection
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool, AsyncNullConnectionPool, ConnectionPool, NullConnectionPool

from langgraph_durable import DurableSaver, EffectError
from langgraph_durable._postgres import pools as _pools
from langgraph_durable.errors import InvalidConfigError, SaverClosedError
from tests.proxy import Proxy
from tests.samples import (
    LARGE,
    OPERATIONS,
    WRITES,
    Driver,
    Observer,
    a_put,
    await_until,
    config,
    wait_until,
    without_slowness,
)


async def exercise(drive: Driver, saver: DurableSaver, thread_id: str = "thread") -> None:
    """Call each operation once, and check its result."""
    stored = await drive(saver, "put", *a_put(thread_id))
    await drive(saver, "put_writes", stored, WRITES, "task")
    found = await drive(saver, "get_tuple", config(thread_id))
    assert found.config == stored
    assert found.checkpoint["channel_values"] == {"messages": LARGE, "count": 1}
    assert [value for _, _, value in found.pending_writes] == [value for _, value in WRITES]
    assert [t.config for t in await drive(saver, "list", config(thread_id))] == [stored]
    await drive(saver, "delete_thread", thread_id)
    assert await drive(saver, "get_tuple", config(thread_id)) is None


def run_script(script: str, *args: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    """Run a script in a separate process, in development mode, with warnings as errors."""
    command = [sys.executable, "-X", "dev", "-W", "error", "-c", PREFACE + textwrap.dedent(script), *args]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
    done.stderr = without_slowness(done.stderr)
    return done


# langgraph's own imports warn of what is to come; ours must not.
PREFACE = """
import asyncio, os, sys, time, warnings
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from langgraph_durable import DurableSaver
    from tests.samples import a_put, config
"""


# --- bare, with, async with ---


async def test_a_saver_without_with_opens_at_first_use_and_closes(
    conninfo: str, observer: Observer, drive: Driver
) -> None:
    saver = DurableSaver.from_conn_string(conninfo)
    assert observer.backends() == []
    await exercise(drive, saver)
    assert observer.backends() != []
    await saver.aclose()
    await await_until(lambda: not observer.backends(), "the pools' end")


async def test_with_closes_the_pool(conninfo: str, observer: Observer) -> None:
    with DurableSaver.from_conn_string(conninfo) as saver:
        await exercise(Driver("sync"), saver)
    await await_until(lambda: not observer.backends(), "the pool's end")
    with pytest.raises(SaverClosedError):
        saver.get_tuple(config())


async def test_async_with_closes_both_pools(conninfo: str, observer: Observer) -> None:
    async with DurableSaver.from_conn_string(conninfo) as saver:
        await exercise(Driver("async"), saver)
        await exercise(Driver("sync"), saver)
    await await_until(lambda: not observer.backends(), "the pools' end")
    with pytest.raises(SaverClosedError):
        await saver.aget_tuple(config())


async def test_with_in_a_running_loop_closes_both_pools(conninfo: str, observer: Observer) -> None:
    with DurableSaver.from_conn_string(conninfo) as saver:
        await exercise(Driver("async"), saver)
        await exercise(Driver("sync"), saver)
    await await_until(lambda: not observer.backends(), "the pools' end")


def test_close_does_not_wait_for_a_blocked_loop(
    conninfo: str, observer: Observer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_pools, "CLOSE_TIMEOUT", 0.2)
    saver = DurableSaver.from_conn_string(conninfo)
    blocked, unblocked = threading.Event(), threading.Event()

    async def main() -> None:
        for _ in range(2):
            await saver.aget_tuple(config())
        blocked.set()
        assert unblocked.wait(30)
        await await_until(lambda: not observer.backends(), "the pool to close")

    with ThreadPoolExecutor() as executor:
        running = executor.submit(asyncio.run, main())
        assert blocked.wait(30)
        try:
            saver.close()
        finally:
            unblocked.set()
        running.result(30)


async def test_closing_again_does_nothing(conninfo: str, drive: Driver) -> None:
    saver = DurableSaver.from_conn_string(conninfo)
    await exercise(drive, saver)
    for _ in range(2):
        saver.close()
        await saver.aclose()
    saver.close()


def test_closing_an_unused_saver_does_nothing() -> None:
    saver = DurableSaver.from_conn_string("host=/nowhere")
    saver.close()
    asyncio.run(saver.aclose())
    with DurableSaver.from_conn_string("host=/nowhere"):
        pass


@pytest.mark.parametrize("used", [False, True])
async def test_calls_after_close_raise_saver_closed_error(conninfo: str, drive: Driver, used: bool) -> None:
    async with DurableSaver.from_conn_string(conninfo) as saver:
        if used:
            await exercise(drive, saver)
    for operation in ("setup", *OPERATIONS):
        with pytest.raises(SaverClosedError, match="make another one"):
            await drive(saver, operation, *OPERATIONS.get(operation, tuple)())


async def test_close_refuses_waiting_calls_and_finishes_running_ones(
    conninfo: str, observer: Observer, drive: Driver
) -> None:
    """Running calls end, those that wait for a connection get SaverClosedError, and no connection remains."""
    saver = DurableSaver.from_conn_string(conninfo, max_size=1)
    await exercise(drive, saver)
    with psycopg.connect(conninfo, application_name="observer") as other:
        other.execute("LOCK TABLE langgraph_durable.checkpoints IN ACCESS EXCLUSIVE MODE")
        calls = [asyncio.create_task(drive(saver, "get_tuple", config())) for _ in range(3)]
        await await_until(observer.blocked, "a call to wait for the lock")
        closing = asyncio.create_task(drive(saver, "close"))
        await await_until(lambda: sum(call.done() for call in calls) == 2, "the waiting calls' end")
        assert all(isinstance(call.exception(), SaverClosedError) for call in calls if call.done())
    await closing
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert sum(result is None for result in results) == 1
    await await_until(lambda: not observer.backends(), "the pools' end")


async def test_a_garbage_collected_saver_closes_its_pools(
    conninfo: str, observer: Observer, drive: Driver
) -> None:
    saver = DurableSaver.from_conn_string(conninfo)
    await exercise(drive, saver)
    assert observer.backends() != []
    del saver

    def collected() -> bool:
        gc.collect()
        return not observer.backends()

    await await_until(collected, "the pools' end")


# --- threads and event loops ---


async def test_a_single_caller_uses_one_connection(conninfo: str, observer: Observer, drive: Driver) -> None:
    """So that one backend's plans and catalogs stay cached."""
    size = 4
    reads = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
        "AND pid <> pg_backend_pid() AND query LIKE '%get_checkpoint_v1(%'"
    )
    async with DurableSaver.from_conn_string(conninfo, min_size=size, max_size=size) as saver:
        await drive(saver, "put", *a_put())
        await await_until(lambda: len(observer.backends()) == size, "the pool to be full")
        for _ in range(3 * size):
            await drive(saver, "get_tuple", config())
        assert observer.value(reads) == 1


async def test_concurrent_first_calls_open_few_connections(
    conninfo: str, proxy: Proxy, drive: Driver
) -> None:
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(40))
    async with DurableSaver.from_conn_string(proxy.conninfo, max_size=3) as saver:
        await asyncio.gather(*(drive(saver, "get_tuple", config(f"thread {n}")) for n in range(40)))
        assert proxy.connections <= 1 + 3


async def test_concurrent_first_calls_all_fail_without_a_server(proxy: Proxy, drive: Driver) -> None:
    """Each raises its error, and later calls succeed."""
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(40))
    async with DurableSaver.from_conn_string(proxy.conninfo, retry_timeout=0) as saver:
        proxy.go_down()
        calls = (drive(saver, "get_tuple", config()) for _ in range(40))
        failed = await asyncio.gather(*calls, return_exceptions=True)
        assert {type(exc) for exc in failed} == {psycopg.OperationalError}
        proxy.come_up()
        assert await drive(saver, "get_tuple", config()) is None


async def test_one_saver_in_fifty_threads(conninfo: str, observer: Observer) -> None:
    def work(number: int) -> None:
        for round_ in range(3):
            saver.put(*a_put(f"thread-{number}", step=round_))
            assert saver.get_tuple(config(f"thread-{number}")) is not None

    with DurableSaver.from_conn_string(conninfo, max_size=8) as saver, ThreadPoolExecutor(50) as executor:
        list(executor.map(work, range(50)))
        assert len(list(saver.list(None))) == 150
        await await_until(lambda: len(observer.backends()) <= 8, "the number of connections to be the pool's")


def test_one_saver_in_many_loops_at_once(conninfo: str, observer: Observer) -> None:
    at_once = 12
    together = threading.Barrier(at_once)

    async def work(number: int) -> None:
        await saver.aput(*a_put(f"thread-{number}"))
        together.wait(30)  # every loop is running
        await exercise(Driver("async"), saver, f"other-{number}")
        saver.put(*a_put(f"thread-{number}"))  # blocking, within a running loop
        together.wait(30)

    with DurableSaver.from_conn_string(conninfo, max_size=2) as saver:
        for _ in range(2):
            with ThreadPoolExecutor(at_once) as executor:
                list(executor.map(lambda number: asyncio.run(work(number)), range(at_once)))
        assert len(list(saver.list(None))) == at_once * 4
        wait_until(lambda: len(observer.backends()) <= 2, "the loops' pools to end with them")
    wait_until(lambda: not observer.backends(), "the pools' end")


def test_one_saver_in_short_loops_of_many_threads(conninfo: str, observer: Observer) -> None:
    """As in a web application that calls `asyncio.run` for each request."""

    def work(number: int) -> None:
        for _ in range(5):
            asyncio.run(saver.aput(*a_put(f"thread-{number}")))

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with DurableSaver.from_conn_string(conninfo) as saver, ThreadPoolExecutor(10) as executor:
            list(executor.map(work, range(10)))
            assert len(list(saver.list(None))) == 50
    finally:
        sys.setswitchinterval(interval)
    wait_until(lambda: not observer.backends(), "the pools' end")


def test_one_saver_in_one_loop_after_another(conninfo: str, observer: Observer) -> None:
    saver = DurableSaver.from_conn_string(conninfo)
    for number in range(4):
        asyncio.run(exercise(Driver("async"), saver, f"thread-{number}"))
        wait_until(lambda: not observer.backends(), "the loop's pool to end with it")
    gc.collect()
    saver.close()


def test_connections_of_a_loop_closed_without_shutdown_are_closed_later(
    conninfo: str, observer: Observer
) -> None:
    """When the saver is next used on another loop, or is closed."""
    saver = DurableSaver.from_conn_string(conninfo)
    for number in range(2):
        loop = asyncio.new_event_loop()
        loop.run_until_complete(exercise(Driver("async"), saver, f"thread-{number}"))
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
    asyncio.run(exercise(Driver("async"), saver))
    wait_until(lambda: not observer.backends(), "the pools' end")
    saver.close()


async def test_sync_calls_within_a_running_loop(conninfo: str) -> None:
    async with DurableSaver.from_conn_string(conninfo) as saver:
        for number in range(3):
            stored = saver.put(*a_put(f"thread-{number}"))
            found = await saver.aget_tuple(stored)
            assert found is not None
            assert saver.get_tuple(stored) == found
        for one in saver.list(None):
            async for other in saver.alist(one.config):
                assert saver.get_tuple(other.config) == one


async def test_calls_inside_a_listing_need_no_second_connection(conninfo: str) -> None:
    async with DurableSaver.from_conn_string(conninfo, max_size=1) as saver:
        for number in range(70):
            await saver.aput(*a_put(step=number))
        assert sum(saver.get_tuple(t.config) == t for t in saver.list(config())) == 70
        assert [await saver.aget_tuple(t.config) == t async for t in saver.alist(config())] == [True] * 70


@pytest.mark.parametrize("size", [6])
async def test_a_pool_runs_as_many_operations_at_once_as_it_has_connections(
    conninfo: str, observer: Observer, drive: Driver, size: int
) -> None:
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(2 * size))
    async with AsyncExitStack() as stack:
        own = await stack.enter_async_context(DurableSaver.from_conn_string(conninfo, max_size=size))
        for saver in (own, await on_a_pool(stack, drive, conninfo, min_size=1, max_size=size)):
            await exercise(drive, saver)
            with psycopg.connect(conninfo, application_name="observer") as other:
                other.execute("LOCK TABLE langgraph_durable.checkpoints IN ACCESS EXCLUSIVE MODE")
                calls = [
                    asyncio.create_task(drive(saver, "put", *a_put(f"thread-{n}"))) for n in range(2 * size)
                ]
                await await_until(lambda: len(observer.blocked()) == size, "as many calls at once")
            await asyncio.gather(*calls)
            assert len(await drive(saver, "list", None)) == 2 * size
            for number in range(2 * size):
                await drive(saver, "delete_thread", f"thread-{number}")


# --- processes ---


def test_a_script_without_close_ends_silently(conninfo: str, observer: Observer) -> None:
    done = run_script(
        """
        saver = DurableSaver.from_conn_string(sys.argv[1])
        for number in range(3):
            saver.put(*a_put(f"thread-{number}"))

        async def main():
            await asyncio.gather(*(saver.aput(*a_put(f"other-{number}")) for number in range(5)))
            saver.get_tuple(config())

        asyncio.run(main())
        asyncio.run(main())
        print(time.time())
        """,
        conninfo,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert float(done.stdout) > 0
    wait_until(lambda: not observer.backends(), "the backends' end")


def test_a_script_without_close_ends_quickly(conninfo: str) -> None:
    script = """
        saver = DurableSaver.from_conn_string(sys.argv[1])
        for number in range(3):
            saver.put(*a_put(f"thread-{number}"))
            asyncio.run(saver.aput(*a_put(f"other-{number}")))
        print("done", flush=True)
        sys.stdin.read()
        """
    command = [sys.executable, "-X", "dev", "-c", PREFACE + textwrap.dedent(script), conninfo]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"done\n"
        _, errors = child.communicate(timeout=2)
        assert (child.returncode, without_slowness(errors.decode())) == (0, "")


def test_loops_end_silently_while_their_pool_connects(conninfo: str, observer: Observer) -> None:
    """The pool's tasks, cancelled while they connect, neither block `asyncio.run` nor log anything."""
    done = run_script(
        """
        saver = DurableSaver.from_conn_string(sys.argv[1])
        for number in range(150):
            asyncio.run(saver.aput(*a_put(f"thread-{number}")))
        print(len(list(saver.list(None))))
        """,
        conninfo,
    )
    assert (done.stdout, done.stderr) == ("150\n", "")
    wait_until(lambda: not observer.backends(), "the backends' end")


def test_a_task_cancelled_at_the_end_of_its_loop_can_still_save(conninfo: str) -> None:
    done = run_script(
        """
        saver = DurableSaver.from_conn_string(sys.argv[1], max_size=2)

        async def work(number):
            try:
                await asyncio.Event().wait()
            finally:
                for _ in range(3):
                    await saver.aput(*a_put(f"thread-{number}"))

        async def main():
            await asyncio.gather(*(saver.aput(*a_put("main")) for _ in range(4)))
            for number in range(5):
                background.add(asyncio.create_task(work(number)))
            await asyncio.sleep(0)

        background = set()
        asyncio.run(main())
        print(len(list(saver.list(None))))
        """,
        conninfo,
    )
    assert (done.stdout, done.stderr) == ("19\n", "")


def test_a_script_that_exits_inside_a_loop_ends_silently(conninfo: str) -> None:
    done = run_script(
        """
        saver = DurableSaver.from_conn_string(sys.argv[1])

        async def main():
            await saver.aput(*a_put())
            saver.put(*a_put())
            sys.exit(3)

        asyncio.run(main())
        """,
        conninfo,
    )
    assert (done.returncode, done.stderr) == (3, "")


FORK = """
saver = DurableSaver.from_conn_string(sys.argv[1], retry_timeout=0)
for _ in range(3):
    saver.put(*a_put("parent"))
asyncio.run(saver.aput(*a_put("parent")))

def in_child():
    {child}

sys.stdout.flush()
if (pid := os.fork()) == 0:
    in_child()
    {end}
status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
for _ in range(3):
    saver.put(*a_put("parent"))
asyncio.run(saver.aput(*a_put("parent")))
print(status, len(list(saver.list(config("parent")))), len(list(saver.list(config("child")))))
"""


@pytest.mark.parametrize("end", ["sys.exit(0)", "os._exit(0)"])
@pytest.mark.parametrize(
    ("child", "stored"),
    [
        ("pass", 0),
        ('saver.put(*a_put("child"))', 1),
        ('asyncio.run(saver.aput(*a_put("child"))); saver.put(*a_put("child"))', 2),
        ('saver.put(*a_put("child")); saver.close()', 1),
        ("saver.close()", 0),
    ],
)
def test_a_forked_child_and_its_parent_can_both_continue(
    conninfo: str, child: str, stored: int, end: str
) -> None:
    done = run_script(FORK.format(child=child, end=end), conninfo)
    assert (done.stdout, done.stderr) == (f"0 8 {stored}\n", "")


def test_forks_while_other_threads_save(conninfo: str) -> None:
    done = run_script(
        """
        import threading
        saver = DurableSaver.from_conn_string(sys.argv[1], max_size=4)
        warnings.simplefilter("ignore", DeprecationWarning)  # of Python 3.12: that we fork with threads
        running = True
        # Connecting takes locks of OpenSSL's, which a fork at that moment leaves locked in the child for ever, as
        # any program with threads does: fork when the pool is full.
        connected = threading.Barrier(5)

        def work(number):
            for _ in range(100):
                saver.put(*a_put(f"parent-{number}"))
            connected.wait()
            while running:
                saver.put(*a_put(f"parent-{number}"))

        threads = [threading.Thread(target=work, args=[number]) for number in range(4)]
        for thread in threads:
            thread.start()
        connected.wait()
        for child in range(5):
            if (pid := os.fork()) == 0:
                saver.put(*a_put(f"child-{child}"))
                os._exit(0)
            assert os.waitpid(pid, 0)[1] == 0
        running = False
        for thread in threads:
            thread.join()
        print(len(list(saver.list(config("child-4")))))
        """,
        conninfo,
    )
    assert (done.stdout, done.stderr) == ("1\n", "")


# --- callers' pools and connections ---


async def on_a_pool(stack: AsyncExitStack, drive: Driver, conninfo: str, **options: Any) -> DurableSaver:
    if drive.kind == "sync":
        return DurableSaver(stack.enter_context(ConnectionPool(conninfo, open=False, **options)))
    pool = AsyncConnectionPool(conninfo, open=False, **options)
    return DurableSaver(async_pool=await stack.enter_async_context(pool))


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as made:
        yield made


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"autocommit": True},
        {"autocommit": False, "row_factory": dict_row},
        {"autocommit": True, "row_factory": dict_row, "prepare_threshold": None},
        {"autocommit": True, "prepare_threshold": 0},
        {"prepare_threshold": None},
    ],
    ids=lambda given: ",".join(given) or "defaults",
)
async def test_a_callers_pool(
    conninfo: str, observer: Observer, stack: AsyncExitStack, drive: Driver, options: dict[str, Any]
) -> None:
    saver = await on_a_pool(stack, drive, conninfo, kwargs=options, min_size=1, max_size=3)
    await drive(saver, "setup")
    await asyncio.gather(*(exercise(drive, saver, f"thread-{n}") for n in range(10)))
    assert observer.backends("state LIKE 'idle in transaction%'") == []
    saver.close()
    await saver.aclose()
    await exercise(drive, saver)  # still open


@pytest.mark.parametrize("cursor", ["Client", "Raw"])
async def test_a_callers_pool_with_another_cursor_class(
    conninfo: str, stack: AsyncExitStack, drive: Driver, cursor: str
) -> None:
    name = f"{'Async' if drive.kind == 'async' else ''}{cursor}Cursor"
    factory: Any = getattr(psycopg, name)

    async def aconfigure(connection: AsyncConnection[Any]) -> None:
        connection.cursor_factory = factory

    def configure(connection: Connection[Any]) -> None:
        connection.cursor_factory = factory

    options = {"configure": configure if drive.kind == "sync" else aconfigure, "min_size": 1}
    saver = await on_a_pool(stack, drive, conninfo, **options)
    await exercise(drive, saver)


async def test_a_callers_pool_without_connections_between_calls(
    conninfo: str, stack: AsyncExitStack, drive: Driver
) -> None:
    if drive.kind == "sync":
        saver = DurableSaver(stack.enter_context(NullConnectionPool(conninfo, open=False)))
    else:
        pool = AsyncNullConnectionPool(conninfo, open=False)
        saver = DurableSaver(async_pool=await stack.enter_async_context(pool))
    await exercise(drive, saver)


async def test_both_pools_of_a_caller(conninfo: str) -> None:
    with ConnectionPool(conninfo, open=True) as pool:
        async with AsyncConnectionPool(conninfo, open=False) as async_pool:
            saver = DurableSaver(pool, async_pool=async_pool)
            for kind in ("sync", "async"):
                await exercise(Driver(kind), saver)


@pytest.mark.parametrize("autocommit", [True, False])
async def test_a_callers_connection_used_by_many(
    conninfo: str, observer: Observer, stack: AsyncExitStack, drive: Driver, autocommit: bool
) -> None:
    saver = await on_a_connection(stack, drive, conninfo, autocommit=autocommit, row_factory=dict_row)
    await asyncio.gather(*(exercise(drive, saver, f"thread-{n}") for n in range(10)))
    assert len(observer.backends("state = 'idle'")) == 1
    saver.close()
    await saver.aclose()
    await exercise(drive, saver)


async def on_a_connection(
    stack: AsyncExitStack, drive: Driver, conninfo: str, **options: Any
) -> DurableSaver:
    if drive.kind == "sync":
        return DurableSaver(stack.enter_context(psycopg.connect(conninfo, **options)))
    connection = await stack.enter_async_context(await AsyncConnection.connect(conninfo, **options))
    return DurableSaver(async_pool=connection)


@pytest.mark.parametrize("autocommit", [True, False])
def test_a_put_in_the_callers_transaction_goes_with_it(conninfo: str, autocommit: bool) -> None:
    with psycopg.connect(conninfo, autocommit=autocommit) as connection:
        saver = DurableSaver(connection)
        with connection.transaction(force_rollback=True):
            stored = saver.put(*a_put())
            saver.put_writes(stored, WRITES, "task")
            assert saver.get_tuple(config()) is not None
        assert saver.get_tuple(config()) is None
        with connection.transaction():
            saver.put(*a_put())
        assert saver.get_tuple(config()) is not None


@pytest.mark.parametrize("autocommit", [True, False])
async def test_an_aput_in_the_callers_transaction_goes_with_it(conninfo: str, autocommit: bool) -> None:
    async with await AsyncConnection.connect(conninfo, autocommit=autocommit) as connection:
        saver = DurableSaver(async_pool=connection)
        async with connection.transaction(force_rollback=True):
            stored = await saver.aput(*a_put())
            await saver.aput_writes(stored, WRITES, "task")
            assert await saver.aget_tuple(config()) is not None
        assert await saver.aget_tuple(config()) is None
        async with connection.transaction():
            await saver.aput(*a_put())
        assert await saver.aget_tuple(config()) is not None


def test_calls_inside_an_effect_transaction_on_one_connection_join_it(conninfo: str) -> None:
    with Connection.connect(conninfo, autocommit=True) as connection:
        saver = DurableSaver(connection)
        log = saver.effects
        with pytest.raises(ZeroDivisionError), log.transaction("seat", key="12a"):
            saver.put(*a_put())
            assert saver.get_tuple(config()) is not None
            with pytest.raises(EffectError, match="in your open transaction"), log.effect("pay", key="12a"):
                pass
            raise ZeroDivisionError
        assert saver.get_tuple(config()) is None


async def test_async_calls_inside_an_effect_transaction_on_one_connection_join_it(
    conninfo: str,
) -> None:
    async with await AsyncConnection.connect(conninfo, autocommit=True) as connection:
        saver = DurableSaver(async_pool=connection)
        log = saver.effects
        others: list[asyncio.Task[Any]] = []
        with pytest.raises(ZeroDivisionError):
            async with log.atransaction("seat", key="12a"):
                await saver.aput(*a_put())
                assert await saver.aget_tuple(config()) is not None
                others.append(asyncio.create_task(saver.aput(*a_put("other"))))
                await asyncio.sleep(0.05)
                raise ZeroDivisionError
        await others[0]  # of another task: it waited
        assert await saver.aget_tuple(config()) is None
        assert await saver.aget_tuple(config("other")) is not None


async def test_methods_of_the_driver_that_was_not_given_raise(conninfo: str) -> None:
    with psycopg.connect(conninfo) as connection:
        saver = DurableSaver(connection)
        for operation, arguments in OPERATIONS.items():
            with pytest.raises(InvalidConfigError, match="pass async_pool= too"):
                await Driver("async")(saver, operation, *arguments())
    async with await AsyncConnection.connect(conninfo) as asynchronous:
        saver = DurableSaver(async_pool=asynchronous)
        for operation, arguments in OPERATIONS.items():
            with pytest.raises(InvalidConfigError, match="pass pool= too"):
                await Driver("sync")(saver, operation, *arguments())


@pytest.mark.parametrize("opened", [False, True])
async def test_a_callers_closed_pool_is_reported(conninfo: str, drive: Driver, opened: bool) -> None:
    if drive.kind == "sync":
        pool = ConnectionPool(conninfo, open=False)
        saver = DurableSaver(pool)
        if opened:
            pool.open()
            saver.put(*a_put())
            pool.close()
    else:
        async_pool = AsyncConnectionPool(conninfo, open=False)
        saver = DurableSaver(async_pool=async_pool)
        if opened:
            await async_pool.open()
            await saver.aput(*a_put())
            await async_pool.close()
    with pytest.raises(SaverClosedError, match="pool given to the saver is not open"):
        await drive(saver, "get_tuple", config())


async def test_a_callers_closed_connection_is_reported(conninfo: str, drive: Driver) -> None:
    async with AsyncExitStack() as stack:
        saver = await on_a_connection(stack, drive, conninfo)
        await exercise(drive, saver)
    with pytest.raises(SaverClosedError, match="connection given to the saver is closed"):
        await drive(saver, "get_tuple", config())


async def test_a_callers_dead_connection_is_reported(
    conninfo: str, observer: Observer, stack: AsyncExitStack, drive: Driver
) -> None:
    saver = await on_a_connection(stack, drive, conninfo)
    await exercise(drive, saver)
    observer.terminate(observer.backends())
    with pytest.raises(psycopg.OperationalError):
        await drive(saver, "get_tuple", config())
    with pytest.raises(SaverClosedError, match="or a pool, which replaces connections that die"):
        await drive(saver, "get_tuple", config())


async def test_other_objects_are_refused(conninfo: str) -> None:
    with pytest.raises(InvalidConfigError, match="from_conn_string"):
        DurableSaver()
    for wrong in (conninfo, object(), DurableSaver):
        with pytest.raises(InvalidConfigError, match="pool must be a psycopg ConnectionPool or Connection"):
            DurableSaver(wrong)  # type: ignore[arg-type]
        with pytest.raises(InvalidConfigError, match="async_pool must be a psycopg AsyncConnectionPool"):
            DurableSaver(async_pool=wrong)  # type: ignore[arg-type]
    blocking, asynchronous = (
        ConnectionPool(conninfo, open=False),
        AsyncConnectionPool(conninfo, open=False),
    )
    with pytest.raises(InvalidConfigError, match="pass it as async_pool="):
        DurableSaver(asynchronous)  # type: ignore[arg-type]
    with pytest.raises(InvalidConfigError, match="pass it as pool="):
        DurableSaver(async_pool=blocking)  # type: ignore[arg-type]


@pytest.mark.parametrize("sizes", [(2, 1), (-1, 1), (0, 0), (1, 2.5), (True, True), (0, "4")])
def test_invalid_pool_sizes_are_refused(sizes: tuple[Any, Any]) -> None:
    with pytest.raises(InvalidConfigError, match="0 <= min_size <= max_size"):
        DurableSaver.from_conn_string("", min_size=sizes[0], max_size=sizes[1])


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("pool_timeout", -1),
        ("pool_timeout", None),
        ("retry_timeout", "x"),
        ("retry_timeout", float("nan")),
        ("retry_timeout", timedelta(seconds=-1)),
        ("prepare_threshold", -1),
        ("prepare_threshold", True),
    ],
)
def test_invalid_options_are_refused(name: str, wrong: Any) -> None:
    with pytest.raises(InvalidConfigError, match=name):
        DurableSaver.from_conn_string("", **{name: wrong})


@pytest.mark.parametrize("duration", [2.5, timedelta(seconds=2.5)])
def test_timeouts_are_seconds_or_timedeltas(duration: Any) -> None:
    saver = DurableSaver.from_conn_string("", retry_timeout=duration, pool_timeout=duration)
    assert saver.durable_context.options.retry_timeout == 2.5


# --- clones ---


@pytest.mark.parametrize("how", ["copy", "with_allowlist"])
@pytest.mark.parametrize("used", [False, True])
async def test_a_clone_shares_its_originals_pools(
    conninfo: str, observer: Observer, drive: Driver, how: str, used: bool
) -> None:
    serde = JsonPlusSerializer(allowed_msgpack_modules=[("some.module", "Other")])
    async with DurableSaver.from_conn_string(conninfo, max_size=1, serde=serde) as saver:
        if used:
            await exercise(drive, saver)
        clone: Any = copy.copy(saver) if how == "copy" else saver.with_allowlist([("some.module", "Name")])
        assert clone is not saver
        await exercise(drive, clone)
        await exercise(drive, saver)
        assert len(observer.backends()) <= 1
        del clone
        gc.collect()
        await exercise(drive, saver)
        clone = copy.copy(saver)
    await await_until(lambda: not observer.backends(), "the pools' end")
    with pytest.raises(SaverClosedError):
        await drive(clone, "get_tuple", config())


async def test_a_clone_outlives_its_original(conninfo: str, drive: Driver) -> None:
    saver = DurableSaver.from_conn_string(conninfo)
    await exercise(drive, saver)
    clone = copy.copy(saver)
    del saver
    gc.collect()
    await exercise(drive, clone)
    await clone.aclose()

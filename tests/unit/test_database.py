"""The room that waits, without a database."""

from __future__ import annotations

import asyncio
import gc
import inspect
from typing import Any
from unittest.mock import AsyncMock

import psycopg
import pytest
from psycopg_pool import PoolTimeout

import langgraph_durable
from langgraph_durable import errors
from langgraph_durable._database import AsyncDatabase, OperationSuspended, run_now
from langgraph_durable._faults import is_transient


async def add_one(number: int) -> int:
    return number + 1


def test_run_now_finishes_an_operation_that_never_waits() -> None:
    async def operation() -> int:
        return await add_one(await add_one(1))

    assert run_now(operation()) == 3


def test_run_now_passes_exceptions_with_the_operations_line() -> None:
    async def operation() -> None:
        raise KeyError("here")

    with pytest.raises(KeyError) as caught:
        run_now(operation())
    assert caught.traceback[-1].name == "operation"


def test_run_now_refuses_an_operation_that_waits_for_something_else() -> None:
    cleaned = []

    async def operation() -> None:
        try:
            await asyncio.sleep(0)
        finally:
            cleaned.append(True)

    with pytest.raises(OperationSuspended):
        run_now(operation())
    assert cleaned == [True]


@pytest.mark.parametrize("times", [1, 2])
async def test_what_fails_after_its_caller_was_cancelled_is_told(
    times: int, caplog: pytest.LogCaptureFixture
) -> None:
    """By the package's own logger, and not by asyncio, when the garbage is collected."""
    complaints: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    database = AsyncDatabase(AsyncMock(), "schema", 0, AsyncMock(), None, AsyncMock())

    async def fail() -> None:
        await asyncio.sleep(0.05)
        raise KeyError("here")

    caller = asyncio.ensure_future(database.finish(fail()))
    for _ in range(times):
        await asyncio.sleep(0.01)
        caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    await asyncio.sleep(0.1)
    del caller
    gc.collect()
    assert not complaints
    assert "KeyError: 'here'" in caplog.text


@pytest.mark.parametrize(
    ("exc", "expected"),
    [
        (psycopg.errors.AdminShutdown(), True),
        (psycopg.errors.CannotConnectNow(), True),
        (psycopg.errors.SerializationFailure(), True),
        (psycopg.errors.DeadlockDetected(), True),
        (psycopg.errors.ConnectionFailure(), True),
        (psycopg.errors.TooManyConnections(), True),
        (psycopg.errors.ReadOnlySqlTransaction(), True),
        (psycopg.OperationalError("server closed the connection unexpectedly"), True),
        (psycopg.OperationalError('connection failed: ... FATAL:  role "x" does not exist'), False),
        (psycopg.OperationalError("connection failed: FATAL:  password authentication failed"), False),
        (psycopg.OperationalError("connection failed: Connection refused"), True),
        (psycopg.OperationalError("failed to resolve host 'x': Name or service not known"), False),
        (psycopg.OperationalError("failed to resolve host 'x': Temporary failure in name resolution"), True),
        (psycopg.OperationalError("could not match 2 port numbers to 3 hosts"), False),
        (psycopg.OperationalError("connection failed: server does not support SSL, but SSL was"), False),
        (psycopg.OperationalError("connection failed: SSL error: certificate verify failed"), False),
        (psycopg.OperationalError("connection failed: SSL error: tlsv1 alert unknown ca"), False),
        (psycopg.OperationalError("connection failed: SSL SYSCALL error: Connection reset by peer"), True),
        (psycopg.OperationalError("connection failed: SSL error: unexpected eof while reading"), True),
        (PoolTimeout(), False),
        (psycopg.errors.UniqueViolation(), False),
        (psycopg.errors.DiskFull(), False),
        (psycopg.errors.InsufficientPrivilege(), False),
        (psycopg.errors.QueryCanceled(), False),
        (psycopg.InterfaceError(), False),
        (psycopg.DataError(), False),
    ],
)
def test_what_is_transient(exc: psycopg.Error, expected: bool) -> None:
    assert is_transient(exc) is expected


def test_the_public_names_are_all_there_and_documented() -> None:
    assert len(set(langgraph_durable.__all__)) == len(langgraph_durable.__all__)  # ruff sees to their order
    for name in langgraph_durable.__all__:
        thing = getattr(langgraph_durable, name)
        if not isinstance(thing, str):
            assert inspect.getdoc(thing), name
    public = {
        n for n, e in vars(errors).items() if isinstance(e, type) and issubclass(e, errors.DurableError)
    }
    assert public <= set(langgraph_durable.__all__)
    assert all(name in (errors.__doc__ or "") for name in public)


def test_public_methods_are_documented_and_have_async_twins() -> None:
    saver = langgraph_durable.DurableSaver
    names = [n for n, m in vars(saver).items() if not n.startswith("_") and inspect.isfunction(m)]
    for name in names:
        assert inspect.getdoc(vars(saver)[name]), name
    twinless = {n for n in names if "a" + n not in names and not (n[0] == "a" and n[1:] in names)}
    assert twinless == {"get_next_version"}
    for name in names:
        if "a" + name in names:
            ours, twin = inspect.signature(vars(saver)[name]), inspect.signature(vars(saver)["a" + name])
            assert list(ours.parameters.values()) == list(twin.parameters.values()), name

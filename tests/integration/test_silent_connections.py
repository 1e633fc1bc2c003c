"""Connections whose peer vanished time out, and the call is retried on another connection."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from langgraph_durable import DurableSaver
from langgraph_durable._postgres import conninfo as _conninfo
from langgraph_durable._postgres.locks import LOCK_THREAD
from langgraph_durable._postgres.statement import render
from langgraph_durable.errors import InvalidConfigError
from langgraph_durable.schema import DEFAULT_SCHEMA
from tests.network import network
from tests.proxy import Proxy
from tests.samples import Driver, a_put, config

DEFAULTS = {
    "connect_timeout": "10",
    "tcp_user_timeout": "15000",
    "keepalives_idle": "15",
    "keepalives_interval": "5",
    "keepalives_count": "3",
}


@pytest.mark.parametrize("operation", ["put", "get_tuple"])
async def test_a_call_whose_packets_are_lost_is_retried(
    conninfo: str, drive: Driver, operation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a load balancer forgot the connection, or its host vanished; new connections work."""
    monkeypatch.setattr(_conninfo, "DEFAULTS", {**_conninfo.DEFAULTS, "tcp_user_timeout": 1500})
    with network() as net, Proxy(conninfo, net.listener) as proxy:
        async with DurableSaver.from_conn_string(proxy.conninfo) as saver:
            stored = await drive(saver, "put", *a_put(checkpoint_id="0"))
            for number in (1, 2):
                stored = await drive(saver, "put", *a_put(checkpoint_id=str(number)))
            for port in proxy.peers():
                net.drop(port)
            started = time.monotonic()
            arguments = a_put(checkpoint_id="3") if operation == "put" else (config(),)
            call = asyncio.create_task(drive(saver, operation, *arguments))
            done, _ = await asyncio.wait([call], timeout=10)
            net.restore()
            result = await call
            assert done, "it waited for the lost connection"
            assert time.monotonic() - started > 1, "packets were lost"
            if operation == "put":
                stored = result
            assert (await drive(saver, "get_tuple", config())).config == stored
            ids = [t.checkpoint["id"] for t in await drive(saver, "list", config())]
            assert ids == ["3", "2", "1", "0"][operation != "put" :]


async def test_a_large_put_waits_for_its_thread_however_long(
    conninfo: str, drive: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server has read all of it before it waits, or the kernel would take it for a peer that is gone."""
    monkeypatch.setattr(_conninfo, "DEFAULTS", {**_conninfo.DEFAULTS, "tcp_user_timeout": 1000})
    with socket.create_server(("127.0.0.1", 0)) as listener, Proxy(conninfo, listener) as proxy:
        async with DurableSaver.from_conn_string(proxy.conninfo, retry_timeout=2) as saver:
            await drive(saver, "put", *a_put())
            values = {"random": os.urandom(16 << 20)}
            with psycopg.connect(conninfo) as other:
                psycopg.RawCursor(other).execute(render(LOCK_THREAD, DEFAULT_SCHEMA).query, ["thread"])
                call = asyncio.create_task(drive(saver, "put", *a_put(values=values)))
                await asyncio.wait([call], timeout=8)
                assert not call.done()
                assert saver.metrics().retries == 0, "it was not cut off"
            stored = await call
            assert (await drive(saver, "get", stored))["channel_values"] == values


async def parameters_of(saver: DurableSaver, drive: Driver) -> Mapping[str, str]:
    """The parameters of the saver's connections as libpq reports them: the first one, and a pool's."""
    found: list[Mapping[str, str]] = []
    for _ in range(2):  # the first one is made without a pool
        async with connection_of(saver, drive) as connection:
            found.append(connection.info.get_parameters())
    assert found[0] == found[1]
    return found[0]


@asynccontextmanager
async def connection_of(saver: DurableSaver, drive: Driver) -> AsyncIterator[Any]:
    assert saver.durable_context.own_pools is not None
    if drive.kind == "async":
        async with saver.durable_context.own_pools.asynchronous.checkout() as asynchronous:
            yield asynchronous
    else:
        with saver.durable_context.own_pools.blocking.checkout() as blocking:
            yield blocking


async def test_connections_have_time_limits(conninfo: str, drive: Driver) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, Proxy(conninfo, listener) as proxy:
        async with DurableSaver.from_conn_string(proxy.conninfo) as saver:
            assert DEFAULTS.items() <= (await parameters_of(saver, drive)).items()
            async with connection_of(saver, drive) as connection:
                descriptor = socket.fromfd(connection.pgconn.socket, socket.AF_INET, socket.SOCK_STREAM)
                with descriptor:
                    names = ("TCP_USER_TIMEOUT", "TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT")
                    if not all(hasattr(socket, name) for name in names):
                        pytest.skip("this system has no such options")
                    set_ = [descriptor.getsockopt(socket.IPPROTO_TCP, getattr(socket, n)) for n in names]
                    assert set_ == [15_000, 15, 5, 3]
                    assert descriptor.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1


async def test_unix_sockets_accept_the_time_limits(conninfo: str, drive: Driver) -> None:
    async with DurableSaver.from_conn_string(conninfo) as saver:
        await drive(saver, "put", *a_put())
        assert DEFAULTS.items() <= (await parameters_of(saver, drive)).items()


async def test_time_limits_of_the_connection_string_win(conninfo: str, drive: Driver) -> None:
    given = dict.fromkeys(DEFAULTS, "7")
    async with DurableSaver.from_conn_string(make_conninfo(conninfo, **given)) as saver:
        assert given.items() <= (await parameters_of(saver, drive)).items()


async def test_time_limits_of_a_service_file_win(
    conninfo: str, drive: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = conninfo_to_dict(conninfo) | dict.fromkeys(DEFAULTS, "7")
    file = tmp_path / "services.conf"
    file.write_text("\n".join(["[ours]", *(f"{key}={value}" for key, value in given.items())]))
    monkeypatch.setenv("PGSERVICEFILE", str(file))
    for service in ("service=ours", "connect_timeout=7"):
        async with DurableSaver.from_conn_string(service) as saver:
            assert dict.fromkeys(DEFAULTS, "7").items() <= (await parameters_of(saver, drive)).items()
        monkeypatch.setenv("PGSERVICE", "ours")


async def test_time_limits_of_the_environment_win(
    conninfo: str, drive: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGCONNECT_TIMEOUT", "7")
    monkeypatch.setenv("PGPASSWORD", "p\udcff")
    async with DurableSaver.from_conn_string(conninfo) as saver:
        assert (await parameters_of(saver, drive))["connect_timeout"] == "7"
    monkeypatch.setenv("PGCONNECT_TIMEOUT", "soon")
    with pytest.raises(InvalidConfigError, match="connect_timeout: 'soon'"):
        DurableSaver.from_conn_string(conninfo)


async def test_a_callers_application_name_stays(conninfo: str, drive: Driver) -> None:
    async with DurableSaver.from_conn_string(make_conninfo(conninfo, application_name="ours")) as saver:
        assert (await parameters_of(saver, drive))["application_name"] == "ours"

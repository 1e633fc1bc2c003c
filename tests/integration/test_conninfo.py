"""Connection strings as people have them: passwords that rotate, several hosts, service files, SSL, options."""

from __future__ import annotations

import asyncio
import itertools
import socketserver
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from langgraph_durable import DurableSaver
from langgraph_durable.errors import ConnectionFailedError, InvalidConfigError
from tests.samples import Driver, Observer, a_put, config

_roles = itertools.count()


@pytest.fixture
def role(conninfo: str) -> Iterator[Any]:
    """A role whose password can be rotated, and the connection string without one."""
    name = f"rotating_{next(_roles)}"
    parameters: dict[str, Any] = conninfo_to_dict(conninfo)
    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE ROLE {} LOGIN SUPERUSER").format(sql.Identifier(name)))

        def rotate(password: str) -> None:
            connection.execute(
                sql.SQL("ALTER ROLE {} PASSWORD {}").format(sql.Identifier(name), sql.Literal(password))
            )

        yield make_conninfo(**{**parameters, "user": name, "password": ""}), rotate
        connection.execute(sql.SQL("DROP OWNED BY {}").format(sql.Identifier(name)))
        connection.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(name)))


class Tokens:
    """Passwords that are asked for."""

    def __init__(self, base: str, kind: str) -> None:
        self.base, self.kind, self.password = base, kind, "first"
        self.asked = 0
        self.threads: set[int] = set()

    def __call__(self) -> Any:
        self.threads.add(threading.get_ident())
        return self.later() if self.kind == "async" else self.now()

    def now(self) -> str:
        self.asked += 1
        return make_conninfo(self.base, password=self.password)

    async def later(self) -> str:
        await asyncio.sleep(0.01)
        return self.now()


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_a_rotating_password_is_asked_for_each_connection(
    role: Any, drive: Driver, kind: str, observer: Observer
) -> None:
    base, rotate = role
    rotate("first")
    tokens = Tokens(base, kind)
    async with DurableSaver.from_conn_string(tokens, max_size=2) as saver:
        assert tokens.asked == 0
        await drive(saver, "put", *a_put())
        await drive(saver, "get_tuple", config())
        asked = tokens.asked
        assert asked >= 1
        rotate("second")
        tokens.password = "second"
        observer.rows("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename LIKE 'rotating%'")
        assert await drive(saver, "get_tuple", config()) is not None
        assert tokens.asked > asked
    if kind == "sync" and drive.kind == "async":
        assert threading.get_ident() not in tokens.threads  # a slow callable does not block the loop


async def test_an_expired_password_is_reported(role: Any, drive: Driver) -> None:
    base, rotate = role
    rotate("second")
    if "SASL" not in _refusal(base):
        pytest.skip("the server asks for no password")
    async with DurableSaver.from_conn_string(Tokens(base, "sync")) as saver:
        with pytest.raises(ConnectionFailedError, match="password authentication failed"):
            await drive(saver, "get_tuple", config())


def _refusal(conninfo: str) -> str:
    try:
        psycopg.connect(make_conninfo(conninfo, password="wrong")).close()
    except psycopg.OperationalError as exc:
        return f"SASL {exc}"
    return ""


@pytest.mark.parametrize("answer", [None, 5, "nonsense", b"host=x"])
async def test_what_is_no_connection_string_is_refused(drive: Driver, answer: Any) -> None:
    async with DurableSaver.from_conn_string(lambda: answer) as saver:
        with pytest.raises(InvalidConfigError, match="the callable that was given for conninfo returned"):
            await drive(saver, "get_tuple", config())


async def test_an_error_of_the_callable_reaches_the_caller(drive: Driver) -> None:
    def fail() -> str:
        raise PermissionError("no token for you")

    async with DurableSaver.from_conn_string(fail) as saver:
        with pytest.raises(PermissionError, match="no token for you"):
            await drive(saver, "get_tuple", config())


async def test_options_from_a_callable_win(conninfo: str, drive: Driver) -> None:
    with_options = make_conninfo(conninfo, options="-c work_mem=7MB", application_name="ours")
    async with DurableSaver.from_conn_string(lambda: with_options) as saver:
        await drive(saver, "get_tuple", config())
        own = saver.durable_context.own_pools
        assert own is not None
        with own.blocking.checkout() as connection:
            shown = connection.execute(
                "SELECT current_setting('work_mem'), current_setting('jit'), current_setting('application_name')"
            ).fetchone()
        assert shown == ("7MB", "off", "ours")


async def test_the_first_host_that_answers_is_used(conninfo: str, drive: Driver) -> None:
    given = conninfo_to_dict(conninfo)
    several: dict[str, Any] = {**given, "host": f"/nonexistent,{given['host']}", "port": f"1,{given['port']}"}
    conninfo = make_conninfo(**several, target_session_attrs="read-write")
    async with DurableSaver.from_conn_string(conninfo) as saver:
        await drive(saver, "put", *a_put())
        assert await drive(saver, "get_tuple", config()) is not None


async def test_a_service_file_is_enough(
    conninfo: str, drive: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [f"{name}={value}" for name, value in conninfo_to_dict(conninfo).items()]
    file = tmp_path / "services.conf"
    file.write_text("\n".join(["[ours]", *lines, "options=-c work_mem=7MB", ""]))
    monkeypatch.setenv("PGSERVICEFILE", str(file))
    async with DurableSaver.from_conn_string("service=ours sslmode=prefer") as saver:
        await drive(saver, "put", *a_put())
        own = saver.durable_context.own_pools
        assert own is not None
        with own.blocking.checkout() as connection:
            row = connection.execute("SHOW work_mem").fetchone()
        assert row == ("7MB",)


class _WithoutSsl(socketserver.BaseRequestHandler):
    """A Postgres server's answer to the question for SSL."""

    def handle(self) -> None:
        if self.request.recv(8):
            self.request.sendall(b"N")


async def test_sslmode_is_passed_on(drive: Driver) -> None:
    """A connection that must be encrypted is refused, not made plainly."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _WithoutSsl) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"postgresql://ann:secret@127.0.0.1:{server.server_address[1]}/db?sslmode=require"
        async with DurableSaver.from_conn_string(url) as saver:
            with pytest.raises(ConnectionFailedError, match="does not support SSL"):
                await drive(saver, "get_tuple", config())
        server.shutdown()

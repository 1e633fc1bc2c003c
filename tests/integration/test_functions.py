"""The server functions that store and fetch checkpoints: what they are given, see, and need."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import orjson
import psycopg
import pytest
from psycopg import AsyncConnection, sql
from psycopg.conninfo import make_conninfo

from langgraph_durable import DurableSaver
from langgraph_durable._checkpoints import put as _put
from langgraph_durable._checkpoints.listing import LIST_NAMESPACE
from langgraph_durable._checkpoints.read import GET_CHECKPOINT, checkpoint_key
from langgraph_durable._postgres.locks import LOCK_THREAD
from langgraph_durable._postgres.migrate import migrations
from langgraph_durable._postgres.statement import render
from langgraph_durable.errors import SchemaOutOfDateError
from langgraph_durable.schema import DEFAULT_SCHEMA
from tests.samples import WRITES, Driver, Observer, a_put, await_until, checkpoint, config

FUNCTIONS = "SELECT proname FROM pg_proc WHERE pronamespace = 'langgraph_durable'::regnamespace ORDER BY 1"


def columns_of_given() -> list[str]:
    """Return the columns that the put's function takes from each row."""
    [text] = [m.statement.text for m in migrations() if "put_checkpoints_v1" in m.statement.text]
    found = re.search(r"json_to_recordset\(sent_rows\) AS \((.*?)\n +\)", text, re.DOTALL)
    assert found is not None
    return [column.split()[0] for column in found[1].split(",")]


def test_a_put_sends_the_columns_that_the_function_reads(
    saver: DurableSaver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is missing, or misspelt, would be NULL."""
    sent = []

    def keep(*args: Any) -> Any:
        sent.append(make(*args))
        return sent[-1]

    make = _put.checkpoint_row
    monkeypatch.setattr(_put, "checkpoint_row", keep)
    saver.put(*a_put())
    saver.put(*a_put(values={}))
    for row in sent:
        assert sorted(orjson.loads(row.packed) if row.packed else row.columns) == sorted(columns_of_given())


async def test_a_put_sees_what_was_removed_while_it_waited(
    conninfo: str, observer: Observer, drive: Driver
) -> None:
    """Under another's exclusive lock, the value that a put names is deleted; so the put sends it."""
    async with DurableSaver.from_conn_string(conninfo) as saver:
        first = await drive(saver, "put", *a_put("thread"))
        parent_id = first["configurable"]["checkpoint_id"]
        made = checkpoint()
        metadata = {"source": "loop", "step": 1, "parents": {}}
        async with await AsyncConnection.connect(conninfo, application_name="observer") as other:
            await psycopg.AsyncRawCursor(other).execute(render(LOCK_THREAD, DEFAULT_SCHEMA).query, ["thread"])
            put = asyncio.create_task(drive(saver, "put", config("thread", parent_id), made, metadata, {}))
            await await_until(observer.blocked, "the put to wait for the lock")
            await other.execute("DELETE FROM langgraph_durable.channel_values")
            await other.execute("DELETE FROM langgraph_durable.segments")
            await other.commit()
        found = await drive(saver, "get_tuple", await put)
        assert found.checkpoint["channel_values"] == made["channel_values"]


async def test_the_functions_lock_is_that_of_its_schema(conninfo: str, observer: Observer) -> None:
    """The same thread in another schema is another thread."""
    async with DurableSaver.from_conn_string(conninfo, schema="it's another") as other:
        await other.asetup()
        async with DurableSaver.from_conn_string(conninfo) as saver:
            lock = render(LOCK_THREAD, "it's another").query
            with psycopg.connect(conninfo, application_name="observer") as connection:
                psycopg.RawCursor(connection).execute(lock, ["thread"])
                await saver.aput(*a_put("thread"))
                waiting = asyncio.create_task(other.aput(*a_put("thread")))
                await await_until(observer.blocked, "the other schema's put to wait")
            await waiting


async def test_a_checkpoint_reads_alike_alone_and_in_a_listing(conninfo: str, drive: Driver) -> None:
    async with DurableSaver.from_conn_string(conninfo) as saver:
        values = {"long": [f"message {n} " * 20 for n in range(400)], "small": 1, "nothing": None}
        stored = await drive(saver, "put", *a_put("thread", values))
        await drive(saver, "put_writes", stored, WRITES, "task")
    last = "f" * 32
    listing = {
        "thread_id": "thread",
        "checkpoint_ns": "",
        "before": last,
        "cursor_ulid": last,
        "cursor_thread": "",
        "cursor_ns": "",
        "filter": "{}",
        "indexed_metadata": [],
        "size": 1,
    }
    id_ = stored["configurable"]["checkpoint_id"]
    found = []
    with psycopg.connect(conninfo) as connection:
        for statement, params in [
            (LIST_NAMESPACE, listing),
            (GET_CHECKPOINT, checkpoint_key("thread", "", None)),
            (GET_CHECKPOINT, checkpoint_key("thread", "", id_)),
            (GET_CHECKPOINT, checkpoint_key("thread", "", id_, or_ancestor=True)),
        ]:
            query = render(statement, DEFAULT_SCHEMA)
            cursor = psycopg.RawCursor(connection)
            found.append(sorted(map(repr, cursor.execute(query.query, query.arguments(params)))))
    assert {row[1] for row in found[0]} >= {"0", "1", "2"}  # the kinds of rows: checkpoint, value, write
    assert found[1:] == [found[0]] * 3


@pytest.mark.parametrize("isolation", ["read committed", "repeatable read", "serializable"])
async def test_puts_and_gets_work_at_every_isolation_level(
    conninfo: str, drive: Driver, isolation: str
) -> None:
    option = isolation.replace(" ", "\\ ")
    conninfo = make_conninfo(conninfo, options=f"-c default_transaction_isolation={option}")
    async with DurableSaver.from_conn_string(conninfo) as saver:
        ids = [await drive(saver, "put", *a_put("thread", step=n)) for n in range(3)]
        found = await drive(saver, "list", config("thread"))
        assert [one.config for one in found] == ids[::-1]


async def test_an_error_inside_a_function_reads_well(
    conninfo: str, observer: Observer, drive: Driver
) -> None:
    """Postgres adds the whole statement to it as context."""
    observer.rows("ALTER TABLE langgraph_durable.checkpoints ADD CHECK (thread_id <> 'bad')")
    async with DurableSaver.from_conn_string(conninfo) as saver:
        with pytest.raises(psycopg.errors.CheckViolation) as caught:
            await drive(saver, "put", *a_put("bad"))
    text = str(caught.value)
    assert text.startswith("new row for relation")
    assert "put_checkpoints_v1(json,integer[],bytea)" in text.splitlines()[-1]
    assert len(text) < 1500
    assert "WITH given" in (caught.value.diag.context or "")


async def test_a_missing_function_names_the_remedy(conninfo: str, observer: Observer, drive: Driver) -> None:
    names = [name for (name,) in observer.rows(FUNCTIONS)]
    assert names == ["get_checkpoint_v1", "put_checkpoints_v1"]
    for name in names:
        observer.rows(sql.SQL("DROP FUNCTION langgraph_durable.{}").format(sql.Identifier(name)))
    async with DurableSaver.from_conn_string(conninfo) as saver:
        for operation, arguments in [("put", a_put()), ("get_tuple", (config(),))]:
            with pytest.raises(SchemaOutOfDateError, match="lacks a table or function"):
                await drive(saver, operation, *arguments)


async def test_a_search_path_does_not_change_what_the_functions_find(conninfo: str, drive: Driver) -> None:
    """Neither do tables of the caller's with the same names."""
    async with DurableSaver.from_conn_string(conninfo, schema="hidden") as saver:
        await drive(saver, "setup")
    conninfo = make_conninfo(conninfo, options="-c search_path=hidden")
    async with DurableSaver.from_conn_string(conninfo) as saver:
        stored = await drive(saver, "put", *a_put())
        assert (await drive(saver, "get_tuple", config())).config == stored
    async with DurableSaver.from_conn_string(conninfo, schema="hidden") as saver:
        assert await drive(saver, "get_tuple", config()) is None

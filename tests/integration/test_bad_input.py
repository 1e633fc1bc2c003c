"""Bad input and damaged rows: a typed error that names the remedy, and nothing half-written."""

from __future__ import annotations

import logging
import time
from typing import Any

import psycopg
import pytest
from langgraph.checkpoint.base import BaseCheckpointSaver
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from langgraph_durable import DurableSaver
from langgraph_durable.errors import (
    CheckpointCorruptedError,
    ConnectionFailedError,
    InvalidConfigError,
    ThreadDeletedError,
)
from tests.checkpoints import checkpoint_with, config_for, listed_ids, put
from tests.drivers import Saver, SyncDriver

BAD_CONFIGS: list[Any] = [
    {},
    {"configurable": {}},
    {"configurable": None},
    {"configurable": {"thread_id": None}},
    {"configurable": {"thread_id": ""}},
    {"configurable": {"thread_id": "a\0b"}},
    {"configurable": {"thread_id": "\ud800"}},
    {"configurable": {"thread_id": "t", "checkpoint_ns": 3}},
    {"configurable": {"thread_id": "t", "checkpoint_id": "a\0b"}},
    "t",
]


def count_rows(conninfo: str) -> int:
    with psycopg.connect(conninfo) as connection:
        counts = [
            connection.execute(f"SELECT count(*) FROM langgraph_durable.{table}").fetchone()
            for table in (
                "checkpoints",
                "ancestors",
                "channel_values",
                "writes",
                "segments",
                "tombstones",
                "prunes",
            )
        ]
        return sum(row[0] for row in counts if row is not None)


@pytest.mark.parametrize("config", BAD_CONFIGS, ids=repr)
async def test_invalid_configs_are_refused(driven: Saver, conninfo: str, config: Any) -> None:
    checkpoint = checkpoint_with({"a": [1]})
    with pytest.raises(InvalidConfigError):
        await driven.aget_tuple(config)
    with pytest.raises(InvalidConfigError):
        await driven.aput(config, checkpoint, {}, {})
    with pytest.raises(InvalidConfigError):
        await driven.aput_writes(config, [("a", 1)], "task")
    with pytest.raises(InvalidConfigError):
        await listed_ids(driven, config)
    assert count_rows(conninfo) == 0


async def test_thread_ids_that_are_not_text_are_stored_as_text(driven: Saver) -> None:
    await put(driven, config_for(42))
    found = await driven.aget_tuple(config_for("42"))
    assert found is not None
    assert found.config["configurable"]["thread_id"] == "42"
    await driven.adelete_thread(42)  # type: ignore[arg-type]
    assert await driven.aget_tuple(config_for("42")) is None


@pytest.mark.parametrize("thread_id", [None, "", "a\0"])
async def test_deleting_an_invalid_thread_id_is_refused(driven: Saver, thread_id: Any) -> None:
    with pytest.raises(InvalidConfigError, match="thread_id"):
        await driven.adelete_thread(thread_id)


async def test_writes_without_a_checkpoint_id_are_refused(driven: Saver) -> None:
    with pytest.raises(InvalidConfigError, match="checkpoint_id"):
        await driven.aput_writes(config_for("t"), [("a", 1)], "task")


@pytest.mark.parametrize("writes", [[("a\0", 1)], [("\ud800", 1)]])
async def test_names_that_postgres_cannot_store_are_refused(
    driven: Saver, conninfo: str, writes: Any
) -> None:
    with pytest.raises(InvalidConfigError, match="channel"):
        await driven.aput_writes(config_for("t", "c"), writes, "task")
    with pytest.raises(InvalidConfigError, match="channel"):
        await put(driven, config_for("t"), {writes[0][0]: [1]})
    with pytest.raises(InvalidConfigError, match="task_id"):
        await driven.aput_writes(config_for("t", "c"), [("a", 1)], "\0")
    with pytest.raises(InvalidConfigError, match="task_path"):
        await driven.aput_writes(config_for("t", "c"), [("a", 1)], "task", "\0")
    assert count_rows(conninfo) == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"filter": "source"}, "filter must be a dict"),
        ({"filter": {1: 2}}, "keys are str"),
        ({"filter": {"a": object()}}, "not JSON"),
        ({"filter": {"a": float("nan")}}, "not JSON"),
        ({"filter": {"a": {1, 2}}}, "not JSON"),
        ({"before": {}}, "before"),
        ({"before": {"configurable": {}}}, "before"),
        ({"before": {"configurable": {"checkpoint_id": None}}}, "before"),
        ({"before": "1ef"}, "before"),
        ({"before": {"configurable": {"checkpoint_id": "tells-no-time"}}}, "holds no time"),
        ({"limit": -1}, "limit"),
        ({"limit": "3"}, "limit"),
        ({"limit": True}, "limit"),
    ],
)
async def test_invalid_listing_options_are_refused(driven: Saver, options: Any, message: str) -> None:
    with pytest.raises(InvalidConfigError, match=message):
        await listed_ids(driven, config_for("t"), **options)


def test_listing_options_are_checked_before_the_first_step(saver: DurableSaver) -> None:
    with pytest.raises(InvalidConfigError):
        saver.list(config_for("t"), limit=-1)
    with pytest.raises(InvalidConfigError):
        saver.alist(config_for("t"), limit=-1)


@pytest.mark.parametrize(
    ("conninfo", "said"),
    [
        ("nonsense", "nonsense"),
        ("postgresql://[::1", "::1"),
        ("host=/nowhere nokey=1", "nokey"),
        ("postgresql://localhost/db?nokey=1", "nokey"),
        ("postgresql://localhost:abc/db", "port 'abc' is not a number"),
        ("host=localhost,localhost port=5432,x", "port 'x' is not a number"),
        ("host=localhost port=-1", "port '-1' is not a number"),
        ("postgresql://localhost/db?connect_timeout=5s", "connect_timeout: '5s'"),
        ("host=localhost connect_timeout=''", "connect_timeout: ''"),
        ("host=localhost connect_timeout=nan", "connect_timeout: 'nan'"),
        ("postgresql://db..internal/db", "host 'db..internal'"),
        ("host=a\ud800", "surrogates"),
        (None, "NoneType"),
        (b"host=localhost", "bytes"),
    ],
)
def test_a_malformed_connection_string_is_refused_at_once(conninfo: Any, said: str) -> None:
    with pytest.raises(
        InvalidConfigError, match=rf"(?s)connection string \(.*{said}.*: pass \"postgresql://"
    ):
        DurableSaver.from_conn_string(conninfo)


def test_unusual_connection_strings_are_accepted() -> None:
    for unusual in (
        "",
        "host=/run/a..b,@abstract,::1,db.internal.,my_host port=5432,,1,5433,",
        "postgresql://u@[fe80::1%25eth0]:5432,h:5433/db",
        "port=' 5432 ' connect_timeout=1.5",
        "service=ours connect_timeout=-1",
    ):
        DurableSaver.from_conn_string(unusual).close()


@pytest.mark.parametrize("driver", ["sync", "async"])
@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"service": "nosuch"}, 'definition of service "nosuch" not found'),
        ({"host": "h,h,h", "port": "1,2"}, "could not match 2 port numbers to 3 hosts"),
        ({"host": "h,h", "hostaddr": "127.0.0.1"}, "could not match 2 host"),
        ({"port": "99999"}, "invalid port number"),
        ({"sslmode": "bogus"}, 'invalid sslmode value: "bogus"'),
        ({"target_session_attrs": "bogus"}, "invalid target_session_attrs"),
        ({"host": "127.0.0.1", "port": "1", "keepalives": "abc"}, "invalid integer value"),
        ({"requirepeer": "nosuch"}, "requirepeer"),
        ({"options": "-c nosuch=1"}, 'unrecognized configuration parameter "nosuch"'),
        ({"options": "-c work_mem=abc"}, 'invalid value for parameter "work_mem"'),
        ({"options": "-z"}, "invalid command-line argument"),
    ],
)
async def test_a_connection_string_that_cannot_work_is_not_retried(
    conninfo: str, driver: str, wrong: dict[str, str], said: str
) -> None:
    if "requirepeer" in wrong and not str(conninfo_to_dict(conninfo).get("host")).startswith("/"):
        pytest.skip("requirepeer is for Unix sockets")
    started = time.monotonic()
    async with DurableSaver.from_conn_string(make_conninfo(conninfo, **wrong), retry_timeout=30) as made:
        driven: Saver = SyncDriver(made) if driver == "sync" else made
        with pytest.raises(ConnectionFailedError, match=f"(?s)check the connection string: .*{said}"):
            await driven.aget_tuple(config_for("t"))
    assert time.monotonic() - started < 5  # far below the 30 s; a fraction of one on an idle machine


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"PGPORT": "abc"}, "Servname not supported|invalid integer"),
        ({"PGSERVICE": "s", "PGSERVICEFILE": "/nowhere"}, 'service file "/nowhere" not found'),
    ],
)
async def test_an_environment_that_cannot_work_is_not_retried(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], said: str
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    started = time.monotonic()
    async with DurableSaver.from_conn_string("host=localhost", retry_timeout=30) as made:
        for driven in (made, SyncDriver(made)):
            with pytest.raises(ConnectionFailedError, match=f"check the connection string: .*({said})"):
                await driven.aget_tuple(config_for("t"))
    assert time.monotonic() - started < 5


def test_invalid_constructor_arguments_are_refused(conninfo: str) -> None:
    with pytest.raises(InvalidConfigError, match="from_conn_string"):
        DurableSaver()
    with pytest.raises(InvalidConfigError, match="pool sizes"):
        DurableSaver.from_conn_string(conninfo, min_size=3, max_size=2)
    with pytest.raises(InvalidConfigError, match="schema"):
        DurableSaver.from_conn_string(conninfo, schema="")
    with pytest.raises(TypeError, match="indexed_metadata"):
        DurableSaver.from_conn_string(conninfo, indexed_metadata="step")


# --- damaged rows ---

DAMAGES = {
    "checkpoint bytes": ("UPDATE langgraph_durable.checkpoints SET checkpoint = '\\xc1'", "the checkpoint"),
    "checkpoint type": ("UPDATE langgraph_durable.checkpoints SET type = 'pickle'", "the checkpoint"),
    "checkpoint cut": (
        "UPDATE langgraph_durable.checkpoints SET checkpoint = substr(checkpoint, 1, 40)",
        "the checkpoint",
    ),
    "another's checkpoint": (
        "UPDATE langgraph_durable.checkpoints SET checkpoint_id = 'c'",
        "not the one its key names",
    ),
    "not a checkpoint": (
        "UPDATE langgraph_durable.checkpoints SET checkpoint = '\\x81a26964a163', checkpoint_id = 'c'",
        "no channel versions",
    ),
    "metadata": ("UPDATE langgraph_durable.checkpoints SET metadata = '\\xc1'", "the metadata"),
    "metadata of another type": ("UPDATE langgraph_durable.checkpoints SET metadata = '\\x01'", "metadata"),
    "names that do not pair": (
        "UPDATE langgraph_durable.checkpoints SET value_versions = '{}'",
        "do not pair",
    ),
    "value bytes": ("UPDATE langgraph_durable.channel_values SET data = '\\xc1'", "channel 'large'"),
    "value type": ("UPDATE langgraph_durable.channel_values SET type = 'json'", "channel 'large'"),
    "value gone": ("DELETE FROM langgraph_durable.channel_values", "channel 'large'"),
    "value null": ("UPDATE langgraph_durable.channel_values SET data = NULL", "channel 'large'"),
    "write": ("UPDATE langgraph_durable.writes SET value = '\\xc1'", "'written'"),
}


@pytest.mark.parametrize("damage", DAMAGES)
async def test_a_damaged_row_is_named(driven: Saver, conninfo: str, damage: str) -> None:
    stored = await put(driven, config_for("thread-7", checkpoint_ns="ns"), {"large": ["x"]})
    await driven.aput_writes(stored, [("written", ["x"])], "task")
    statement, message = DAMAGES[damage]
    with psycopg.connect(conninfo) as connection:
        assert connection.execute(statement).rowcount == 1
    latest = config_for("thread-7", checkpoint_ns="ns")
    with pytest.raises(CheckpointCorruptedError, match=message) as caught:
        await driven.aget_tuple(latest)
    for part in ("'thread-7'", "'ns'"):
        assert part in str(caught.value)
    with pytest.raises(CheckpointCorruptedError, match=message):
        await listed_ids(driven, latest)


async def test_a_hostile_row_is_not_executed(
    driven: Saver, conninfo: str, caplog: pytest.LogCaptureFixture
) -> None:
    stored = await put(driven, config_for("t"), {"large": ["x"]})
    with psycopg.connect(conninfo) as connection:
        connection.execute(
            "UPDATE langgraph_durable.channel_values SET type = 'pickle', data = %s",
            (b"cos\nsystem\n(S'exit 9'\ntR.",),
        )
    with caplog.at_level(logging.CRITICAL), pytest.raises(CheckpointCorruptedError):
        await driven.aget_tuple(stored)


# --- put and its parts ---


async def test_a_value_not_stored_before_is_stored_even_if_not_declared_new(driven: Saver) -> None:
    checkpoint = checkpoint_with({"a": [1], "b": [2]})
    versions = checkpoint["channel_versions"]
    stored = await driven.aput(config_for("t"), checkpoint, {"source": "loop"}, {"a": versions["a"]})
    found = await driven.aget_tuple(stored)
    assert found is not None
    assert found.checkpoint == checkpoint


async def test_a_value_pruned_since_is_stored_again(driven: Saver, conninfo: str) -> None:
    checkpoint = checkpoint_with({"a": [1]})
    first = await put(driven, config_for("t"), checkpoint=checkpoint)
    with psycopg.connect(conninfo) as connection:
        connection.execute("DELETE FROM langgraph_durable.channel_values")
    child = checkpoint_with({"a": [1]}, channel_versions=checkpoint["channel_versions"])
    stored = await driven.aput(first, child, {"source": "loop"}, {})
    found = await driven.aget_tuple(stored)
    assert found is not None
    assert found.checkpoint == child


async def test_a_failed_put_stores_nothing(driven: Saver, conninfo: str) -> None:
    with psycopg.connect(conninfo) as connection:
        connection.execute("ALTER TABLE langgraph_durable.checkpoints ADD CHECK (format < 4)")
    with pytest.raises(psycopg.errors.CheckViolation):
        await put(driven, config_for("t"), {"a": [1]})
    assert count_rows(conninfo) == 0


async def test_a_deleted_thread_is_not_brought_back_by_a_run_still_going(
    driven: Saver, conninfo: str
) -> None:
    first = await put(driven, config_for("t"), {"a": [1]})
    await driven.aput_writes(first, [("a", 1)], "task")
    await put(driven, config_for("t", checkpoint_ns="sub:1"), {"a": [1]})
    await driven.adelete_thread("t")
    assert count_rows(conninfo) == 1  # the tombstone
    with pytest.raises(ThreadDeletedError, match="'t'"):
        await put(driven, first, {"a": [2]})
    assert count_rows(conninfo) == 1
    await put(driven, config_for("t"), {"a": [3]})  # an input starts the thread afresh
    assert len(await listed_ids(driven, config_for("t"))) == 1
    await driven.adelete_thread("unknown")
    assert isinstance(driven, BaseCheckpointSaver)

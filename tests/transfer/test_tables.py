"""What the tables of other savers hold, by release and by accident."""

from __future__ import annotations

import json
import pickle
import sqlite3
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
from langgraph.checkpoint.base import Checkpoint
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.serde.types import TASKS
from langgraph.types import Send

from langgraph_durable import DurableSaver
from langgraph_durable.errors import CheckpointCorruptedError, ImportFailedError, InvalidConfigError
from tests.checkpoints import checkpoint_with, config_for
from tests.transfer.conftest import THREADS
from tests.transfer.threads import config, go_on, write_thread

THREAD = "values 0"


def change(conninfo: str, statement: Any, *parameters: Any) -> None:
    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute(statement, parameters)


def notes(saver: Any, thread_id: str = THREAD) -> list[Any]:
    return [t.checkpoint["channel_values"].get("note") for t in saver.list(config(thread_id))]


def set_note(conninfo: str, kind: str, data: bytes) -> None:
    change(
        conninfo,
        "UPDATE checkpoint_blobs SET type = %s, blob = %s WHERE thread_id = %s AND channel = 'note'",
        kind, data, THREAD,
    )  # fmt: skip


# --- values ---


@pytest.mark.parametrize(
    ("kind", "data", "value"),
    [
        (
            "json",
            json.dumps(["written", {"by": "early releases"}]).encode(),
            ["written", {"by": "early releases"}],
        ),
        ("null", b"", None),
        ("bytes", b"\0\xff" * 3000, b"\0\xff" * 3000),
        ("msgpack", b"\xc3", True),
    ],
)
def test_values_of_every_type_are_imported(
    saver: DurableSaver, source_conninfo: str, peer: PostgresSaver, kind: str, data: bytes, value: Any
) -> None:
    set_note(source_conninfo, kind, data)
    assert saver.import_from(source_conninfo).failures == {}
    assert saver.verify_import(source_conninfo).is_equal
    assert notes(saver) == notes(peer)
    assert notes(saver)[0] == value


def test_a_thread_with_a_pickled_value_is_named_and_skipped(
    saver: DurableSaver, source_conninfo: str
) -> None:
    set_note(source_conninfo, "pickle", pickle.dumps(["pickled"]))
    report = saver.import_from(source_conninfo)
    assert report.threads == len(THREADS) - 1
    assert list(report.failures) == [THREAD]
    error = report.failures[THREAD]
    assert isinstance(error, CheckpointCorruptedError)
    for part in ("channel 'note'", THREAD, "pickle", "source_serde=", "--allow-pickle"):
        assert part in str(error)
    assert notes(saver) == []
    again = saver.import_from(source_conninfo, source_serde=JsonPlusSerializer(pickle_fallback=True))
    assert (again.threads, again.failures) == (1, {})
    assert notes(saver)[0] == ["pickled"]


def test_pickled_values_stay_pickled_in_a_saver_that_reads_them(conninfo: str, source_conninfo: str) -> None:
    set_note(source_conninfo, "pickle", pickle.dumps({"a": complex(1, 2)}))
    with DurableSaver.from_conn_string(conninfo, serde=JsonPlusSerializer(pickle_fallback=True)) as saver:
        assert saver.import_from(source_conninfo).failures == {}
        assert notes(saver)[0] == {"a": complex(1, 2)}


def test_an_undecodable_write_is_named(saver: DurableSaver, source_conninfo: str) -> None:
    change(source_conninfo, "UPDATE checkpoint_writes SET blob = '\\xc1' WHERE thread_id = 'ask 0'")
    report = saver.import_from(source_conninfo)
    assert "write of task" in str(report.failures["ask 0"])
    assert list(saver.list(config("ask 0"))) == []


@dataclass
class Ticket:
    number: int


@pytest.fixture
def elsewhere() -> Iterator[types.ModuleType]:
    """A module with a class that can be imported only as long as the test lets it."""
    module = types.ModuleType("elsewhere")
    Ticket.__module__ = "elsewhere"
    module.Ticket = Ticket  # type: ignore[attr-defined]
    sys.modules["elsewhere"] = module
    yield module
    sys.modules.pop("elsewhere", None)
    Ticket.__module__ = __name__


def put_tickets(saver: Any) -> None:
    checkpoint = checkpoint_with({"long": [Ticket(n) for n in range(500)], "nested": {"at": [Ticket(7)]}})
    stored = saver.put(config_for("tickets"), checkpoint, {"step": 0}, checkpoint["channel_versions"])
    saver.put_writes(stored, [("long", [Ticket(8)])], "task")


def assert_tickets(saver: DurableSaver) -> None:
    found = saver.get_tuple(config("tickets"))
    assert found is not None
    assert found.checkpoint["channel_values"]["long"] == [Ticket(n) for n in range(500)]
    assert found.checkpoint["channel_values"]["nested"] == {"at": [Ticket(7)]}
    assert found.pending_writes is not None
    assert found.pending_writes[0][2] == [Ticket(8)]


def test_classes_that_cannot_be_imported_here_are_kept(
    saver: DurableSaver, peer: PostgresSaver, source_conninfo: str, elsewhere: types.ModuleType
) -> None:
    put_tickets(peer)
    del sys.modules["elsewhere"]
    assert saver.import_from(source_conninfo, thread_ids=["tickets"]).failures == {}
    sys.modules["elsewhere"] = elsewhere
    assert_tickets(saver)


def test_classes_are_kept_from_sqlite(
    saver: DurableSaver, tmp_path: Path, elsewhere: types.ModuleType
) -> None:
    sqlite = pytest.importorskip("langgraph.checkpoint.sqlite", reason="needs langgraph-checkpoint-sqlite")
    path = str(tmp_path / "file")
    with sqlite.SqliteSaver.from_conn_string(path) as source:
        put_tickets(source)
    del sys.modules["elsewhere"]
    assert saver.import_from(f"sqlite:{path}").failures == {}
    sys.modules["elsewhere"] = elsewhere
    assert_tickets(saver)


def test_an_encrypting_saver_encrypts_what_it_imports(conninfo: str, source_conninfo: str) -> None:
    serde = EncryptedSerializer.from_pycryptodome_aes(key=b"0123456789abcdef")
    with DurableSaver.from_conn_string(conninfo, serde=serde, segment_key=b"k" * 16) as saver:
        assert saver.import_from(source_conninfo, source_serde=JsonPlusSerializer()).failures == {}
        assert saver.verify_import(source_conninfo, source_serde=JsonPlusSerializer()).is_equal
    with psycopg.connect(conninfo) as connection:
        for table, column in (("checkpoints", "type"), ("channel_values", "type"), ("writes", "type")):
            kinds = connection.execute(f"SELECT DISTINCT {column} FROM langgraph_durable.{table}").fetchall()
            assert all("+aes" in kind for (kind,) in kinds), (table, kinds)


def test_an_encrypted_source_is_imported_with_its_serializer(
    saver: DurableSaver, conninfo: str, peer: PostgresSaver, source_conninfo: str
) -> None:
    serde = EncryptedSerializer.from_pycryptodome_aes(key=b"0123456789abcdef")
    write_thread(PostgresSaver(peer.conn, serde=serde), "chat 7")
    refused = saver.import_from(source_conninfo, thread_ids=["chat 7"])
    assert list(refused.failures) == ["chat 7"]
    assert saver.import_from(source_conninfo, thread_ids=["chat 7"], source_serde=serde).failures == {}
    assert saver.verify_import(source_conninfo, thread_ids=["chat 7"], source_serde=serde).is_equal


def test_metadata_of_early_releases_is_kept(saver: DurableSaver, source_conninfo: str) -> None:
    """They have what the step wrote, which `put` drops today."""
    change(
        source_conninfo,
        """UPDATE checkpoints SET metadata = metadata || '{"writes": {"node": {"trail": ["x"]}}}'
        || jsonb_build_object('thread_id', thread_id)""",
    )
    saver.import_from(source_conninfo)
    assert saver.verify_import(source_conninfo).is_equal
    assert all(t.metadata["writes"] == {"node": {"trail": ["x"]}} for t in saver.list(None))  # type: ignore[typeddict-item]


# --- forms of the tables ---


@pytest.mark.parametrize("by_tables", [True, False])
@pytest.mark.parametrize("version", [1, 3])
def test_sends_of_formats_before_4_are_imported(
    saver: DurableSaver, peer: PostgresSaver, source_conninfo: str, version: int, by_tables: bool
) -> None:
    def checkpoint(number: int) -> Checkpoint:
        made = checkpoint_with({"items": [0], "n": number}, v=version)
        made["id"] = f"1f000000-0000-6000-8000-00000000000{number}"
        return made

    first = checkpoint(1)
    stored = peer.put(config_for("old"), first, {"step": 0}, first["channel_versions"])
    for task_id, path in (("b", "~1"), ("a", "~2")):
        peer.put_writes(stored, [(TASKS, Send("work", {"of": task_id}))], task_id, path)
    second = checkpoint(2)
    peer.put(stored, second, {"step": 1}, second["channel_versions"])
    source = source_conninfo if by_tables else peer
    assert saver.import_from(source, thread_ids=["old"]).threads == 1
    assert saver.verify_import(source, thread_ids=["old"]).is_equal
    theirs, ours = peer.get_tuple(config_for("old")), saver.get_tuple(config_for("old"))
    assert theirs is not None
    assert ours is not None
    assert ours.checkpoint == theirs.checkpoint
    assert [send.arg["of"] for send in ours.checkpoint["channel_values"][TASKS]] == ["b", "a"]


def test_tables_without_task_paths_are_imported(saver: DurableSaver, source_conninfo: str) -> None:
    change(source_conninfo, "ALTER TABLE checkpoint_writes DROP COLUMN task_path")
    assert saver.import_from(source_conninfo).threads == len(THREADS)
    assert saver.verify_import(source_conninfo).is_equal


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tables_of_the_shallow_saver_are_imported_and_go_on(saver: DurableSaver, empty_conninfo: str) -> None:
    from langgraph.checkpoint.postgres import ShallowPostgresSaver

    names = ["values 0", "chat 0", "ask 0", "fan 0", "subgraph 0"]
    with ShallowPostgresSaver.from_conn_string(empty_conninfo) as source:
        source.setup()
        for thread_id in names:
            write_thread(source, thread_id)
        report = saver.import_from(empty_conninfo)
        assert (report.threads, report.failures) == (len(names), {})
        assert saver.verify_import(empty_conninfo).is_equal
        for thread_id in names:
            assert go_on(saver, thread_id)[:5] == go_on(source, thread_id)[:5], thread_id


# --- what is not a source ---


def test_a_database_without_the_tables_is_refused(saver: DurableSaver, empty_conninfo: str) -> None:
    with pytest.raises(InvalidConfigError, match=r"no tables of langgraph-checkpoint-postgres 2\.x or 3\.x"):
        saver.import_from(empty_conninfo)
    change(empty_conninfo, "CREATE TABLE checkpoints (thread_id text, checkpoint bytea)")
    with pytest.raises(
        InvalidConfigError, match="checkpoints, checkpoint_blobs, checkpoint_writes not found"
    ):
        saver.import_from(empty_conninfo)


def test_half_shallow_tables_are_refused(saver: DurableSaver, source_conninfo: str) -> None:
    change(source_conninfo, "ALTER TABLE checkpoint_blobs DROP COLUMN version")
    with pytest.raises(InvalidConfigError, match="of PostgresSaver and of ShallowPostgresSaver"):
        saver.import_from(source_conninfo)


def test_a_source_that_cannot_be_reached_or_read_is_named(
    saver: DurableSaver, source_conninfo: str, server: str
) -> None:
    with pytest.raises(ImportFailedError, match=r"the source cannot be reached: .*nowhere"):
        saver.import_from(psycopg.conninfo.make_conninfo(server, dbname="nowhere"))
    change(source_conninfo, "CREATE ROLE reader LOGIN PASSWORD 'secret'")
    try:
        change(source_conninfo, "GRANT SELECT ON checkpoints TO reader")
        reader = psycopg.conninfo.make_conninfo(source_conninfo, user="reader", password="secret")
        with pytest.raises(ImportFailedError, match="the source cannot be read: permission denied"):
            saver.import_from(reader)
    finally:
        change(source_conninfo, "DROP OWNED BY reader")
        change(source_conninfo, "DROP ROLE reader")


def test_a_file_that_is_not_a_savers_is_refused(saver: DurableSaver, tmp_path: Path) -> None:
    text, other = tmp_path / "text", tmp_path / "other"
    text.write_text("not a database, but long enough to be read as one " * 20)
    with sqlite3.connect(other) as connection:
        connection.execute("CREATE TABLE checkpoints (thread_id)")
    connection.close()
    for path, message in (
        (text, "not a SQLite database"),
        (other, "no tables of langgraph-checkpoint-sqlite"),
    ):
        with pytest.raises(InvalidConfigError, match=message):
            saver.import_from(f"sqlite:{path}")


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE checkpoints SET checkpoint = checkpoint - 'channel_versions' WHERE thread_id = %s",
        'UPDATE checkpoints SET checkpoint = checkpoint || \'{"id": "other"}\' WHERE thread_id = %s',
        "UPDATE checkpoints SET checkpoint = '7' WHERE thread_id = %s",
        "UPDATE checkpoints SET metadata = '[]' WHERE thread_id = %s",
        "UPDATE checkpoint_blobs SET blob = NULL WHERE thread_id = %s AND channel = 'note'",
    ],
)
def test_damaged_rows_are_named(saver: DurableSaver, source_conninfo: str, statement: str) -> None:
    change(source_conninfo, statement, THREAD)
    report = saver.import_from(source_conninfo)
    assert list(report.failures) == [THREAD]
    assert f"thread '{THREAD}'" in str(report.failures[THREAD])
    assert report.threads == len(THREADS) - 1

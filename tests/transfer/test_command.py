"""`langgraph-durable import`."""

from __future__ import annotations

import pickle
from pathlib import Path

import psycopg
import pytest

from langgraph_durable import DurableSaver
from langgraph_durable.cli.main import main
from tests.transfer.conftest import THREADS
from tests.transfer.threads import config, write_thread


def run(conninfo: str, source: str, *options: str) -> int:
    return main(["import", "--database", conninfo, "--from", source, *options])


def test_import_stores_verifies_and_resumes(
    saver: DurableSaver, conninfo: str, source_conninfo: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(conninfo, source_conninfo, "--dry-run") == 0
    tried = capsys.readouterr()
    assert f"would import {len(THREADS)} threads: " in tried.out
    assert list(saver.list(None)) == []
    assert run(conninfo, source_conninfo, "--thread", THREADS[0], "--thread", "unknown") == 0
    assert "imported 1 threads" in (printed := capsys.readouterr().out)
    assert "1 threads are not in the source" in printed
    assert run(conninfo, source_conninfo, "--batch", "2", "--verify") == 0
    printed_all = capsys.readouterr()
    lines = printed_all.out.splitlines()
    assert lines[0].startswith(f"imported {len(THREADS) - 1} threads: ")
    assert lines[1] == "  1 threads exist here already, and were left unchanged"
    assert lines[2].startswith("compared ")
    assert lines[2].endswith(f" checkpoints of {len(THREADS)} threads: no differences")
    assert f"importing: {len(THREADS)} of {len(THREADS)} threads" in printed_all.err
    assert f"comparing: {len(THREADS)} of {len(THREADS)} threads" in printed_all.err


def test_import_names_what_it_cannot_decode_and_exits_with_1(
    saver: DurableSaver, conninfo: str, source_conninfo: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with psycopg.connect(source_conninfo, autocommit=True) as connection:
        connection.execute(
            "UPDATE checkpoint_blobs SET type = 'pickle', blob = %s WHERE thread_id = 'values 0' AND channel = 'note'",
            [pickle.dumps({"a": 1})],
        )
    assert run(conninfo, source_conninfo, "--verify") == 1
    printed = capsys.readouterr()
    assert f"imported {len(THREADS) - 1} threads" in printed.out
    assert "no differences" in printed.out
    assert "not imported: thread 'values 0': CheckpointCorruptedError: " in printed.err
    assert "--allow-pickle" in printed.err
    assert run(conninfo, source_conninfo, "--allow-pickle", "--verify") == 0
    assert "imported 1 threads" in capsys.readouterr().out


def test_import_names_differences_and_exits_with_1(
    conninfo: str, source_conninfo: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(conninfo, source_conninfo) == 0
    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute("DELETE FROM langgraph_durable.writes WHERE thread_id = 'ask 0'")
        connection.execute("DELETE FROM langgraph_durable.checkpoints WHERE thread_id = 'chat 0'")
    assert run(conninfo, source_conninfo, "--verify", "--thread", "ask 0", "--thread", "values 0") == 1
    printed = capsys.readouterr().out
    assert "differences\n  thread 'ask 0', namespace '', checkpoint '" in printed
    assert ": pending writes are [], not [(" in printed


def test_import_refuses_threads_that_exist(
    conninfo: str, source_conninfo: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(conninfo, source_conninfo, "--thread", THREADS[0]) == 0
    assert run(conninfo, source_conninfo, "--on-existing", "refuse") == 1
    assert (
        f"ThreadExistsError: 1 threads exist here already, and threads are never mixed: '{THREADS[0]}'"
        in (capsys.readouterr().err)
    )


def test_import_of_another_database_exits_with_1(
    conninfo: str, empty_conninfo: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(conninfo, empty_conninfo, "--from-schema", "other") == 1
    assert (
        "InvalidConfigError: the source has no tables of langgraph-checkpoint-postgres 2.x or 3.x in schema"
        in (capsys.readouterr().err)
    )
    assert run(conninfo, "sqlite:/nowhere") == 1


def test_import_of_a_sqlite_file(
    saver: DurableSaver, conninfo: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sqlite = pytest.importorskip("langgraph.checkpoint.sqlite", reason="needs langgraph-checkpoint-sqlite")
    with sqlite.SqliteSaver.from_conn_string(str(tmp_path / "file")) as source:
        write_thread(source, "ask 0")
    assert run(conninfo, f"sqlite:{tmp_path / 'file'}", "--verify") == 0
    assert "no differences" in capsys.readouterr().out
    assert list(saver.list(config("ask 0")))

"""Threads leave into any saver, and go on there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg
import pytest
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver

from langgraph_durable import DurableSaver
from langgraph_durable.reports import TransferProgress
from tests.checkpoints import config_for
from tests.transfer.conftest import THREADS
from tests.transfer.threads import BUILDERS, config, go_on, write_thread


@pytest.fixture
def full(saver: DurableSaver) -> DurableSaver:
    for thread_id in THREADS:
        write_thread(saver, thread_id)
    return saver


def assert_exported(full: DurableSaver, target: BaseCheckpointSaver[Any]) -> None:
    verified = full.verify_import(target)
    assert (verified.differences, verified.failures, verified.threads) == ([], {}, len(THREADS))
    assert verified.checkpoints == len(list(full.list(None)))
    for thread_id in THREADS:
        assert go_on(target, thread_id) == go_on(full, thread_id), thread_id


def test_threads_go_on_in_memory(full: DurableSaver) -> None:
    memory = InMemorySaver()
    steps: list[TransferProgress] = []
    report = full.export_to(memory, progress=steps.append)
    assert (report.threads, report.failures) == (len(THREADS), {})
    assert report.checkpoints == len(list(memory.list(None)))
    assert [step.threads_done for step in steps] == list(range(1, len(THREADS) + 1))
    assert_exported(full, memory)


def test_threads_go_on_in_postgres(full: DurableSaver, empty_conninfo: str, conninfo: str) -> None:
    with PostgresSaver.from_conn_string(empty_conninfo) as target:
        target.setup()
        assert full.export_to(target).threads == len(THREADS)
        with psycopg.connect(empty_conninfo) as theirs, psycopg.connect(conninfo) as ours:
            paths = "SELECT thread_id, checkpoint_id, task_id, idx, task_path FROM {} ORDER BY 1, 2, 3, 4"
            assert sorted(theirs.execute(paths.format("checkpoint_writes")).fetchall()) == sorted(
                ours.execute(paths.format("langgraph_durable.writes")).fetchall()
            )
        assert_exported(full, target)


def test_threads_go_on_in_sqlite(full: DurableSaver, tmp_path: Path) -> None:
    sqlite = pytest.importorskip("langgraph.checkpoint.sqlite", reason="needs langgraph-checkpoint-sqlite")
    with sqlite.SqliteSaver.from_conn_string(str(tmp_path / "file")) as target:
        full.export_to(target)
        assert_exported(full, target)


async def test_threads_are_exported_async(full: DurableSaver, empty_conninfo: str) -> None:
    async with AsyncPostgresSaver.from_conn_string(empty_conninfo) as target:
        await target.setup()
        report = await full.aexport_to(target, thread_ids=[*THREADS[:3], "unknown"])
        assert report.threads == 3
        verified = await full.averify_import(target)
        assert (verified.is_equal, verified.threads) == (True, 3)


async def test_a_sync_saver_is_a_target_of_async_exports(full: DurableSaver, empty_conninfo: str) -> None:
    with PostgresSaver.from_conn_string(empty_conninfo) as target:
        target.setup()
        assert (await full.aexport_to(target)).threads == len(THREADS)
        assert (await full.averify_import(target)).is_equal


def test_a_round_trip_changes_nothing(
    conninfo: str, saver: DurableSaver, source_conninfo: str, empty_conninfo: str
) -> None:
    saver.import_from(source_conninfo)
    with PostgresSaver.from_conn_string(empty_conninfo) as target:
        target.setup()
        saver.export_to(target)
    columns = {
        "checkpoints": "thread_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id, metadata,"
        " checkpoint - 'channel_values'",  # which may mark a snapshot that is there at its version anyway
        "checkpoint_writes": "thread_id, checkpoint_ns, checkpoint_id, task_id, idx, channel, type, blob, task_path",
        "checkpoint_blobs": "thread_id, checkpoint_ns, channel, version, type, blob",
    }
    with psycopg.connect(source_conninfo) as before, psycopg.connect(empty_conninfo) as after:
        for table, names in columns.items():
            statement = f"SELECT {names} FROM {table} ORDER BY 1, 2, 3, 4, 5"
            assert after.execute(statement).fetchall() == before.execute(statement).fetchall(), table


def test_delta_channels_of_pruned_threads_keep_their_values(full: DurableSaver) -> None:
    for thread_id in ("sparse 0", "frequent 1"):
        graph = BUILDERS[thread_id.partition(" ")[0]](full)
        before = graph.get_state(config(thread_id)).values
        full.prune([thread_id])
        memory = InMemorySaver()
        report = full.export_to(memory, thread_ids=[thread_id])
        assert report.failures == {}
        other = BUILDERS[thread_id.partition(" ")[0]](memory)
        assert other.get_state(config(thread_id)).values == before
        assert next(other.get_state_history(config(thread_id))).values == before
        assert go_on(memory, thread_id)[:5] == go_on(full, thread_id)[:5]


def test_a_damaged_thread_is_named_and_the_others_are_exported(full: DurableSaver, conninfo: str) -> None:
    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute(
            "UPDATE langgraph_durable.checkpoints SET checkpoint = '' WHERE thread_id = 'chat 0'"
        )
    memory = InMemorySaver()
    report = full.export_to(memory)
    assert list(report.failures) == ["chat 0"]
    assert report.threads == len(THREADS) - 1
    assert list(memory.list(config_for("chat 0"))) == []

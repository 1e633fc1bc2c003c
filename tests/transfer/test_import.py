"""Threads of other savers are imported whole, and go on as they would have gone on there."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import psycopg
import pytest
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver

from langgraph_durable import DurableSaver
from langgraph_durable.errors import ImportFailedError, InvalidConfigError, ThreadExistsError
from langgraph_durable.reports import ImportReport, TransferProgress
from tests.checkpoints import checkpoint_with, config_for
from tests.conftest import Databases
from tests.transfer.conftest import THREADS
from tests.transfer.threads import config, go_on, write_thread


def assert_equal(saver: DurableSaver, source: Any) -> None:
    verified = saver.verify_import(source)
    assert (verified.differences, verified.failures) == ([], {})
    assert verified.is_equal
    assert verified.threads == len(THREADS)


def assert_all_go_on(saver: DurableSaver, source: BaseCheckpointSaver[Any]) -> None:
    for thread_id in THREADS:
        assert go_on(saver, thread_id) == go_on(source, thread_id), thread_id


# --- any saver ---


def test_threads_of_memory_are_imported_and_go_on(saver: DurableSaver) -> None:
    memory = InMemorySaver()
    for thread_id in THREADS:
        write_thread(memory, thread_id)
    steps: list[TransferProgress] = []
    report = saver.import_from(memory, progress=steps.append)
    assert report.threads == len(THREADS)
    assert report.checkpoints == len(list(memory.list(None))) == len(list(saver.list(None)))
    assert report.failures == {}
    assert [step.thread_id for step in steps] == sorted(THREADS)
    assert steps[-1].threads_done == steps[-1].threads_total == len(THREADS)
    assert_equal(saver, memory)
    assert_all_go_on(saver, memory)


def test_threads_of_sqlite_are_imported_and_go_on(saver: DurableSaver, tmp_path: Path) -> None:
    sqlite = pytest.importorskip("langgraph.checkpoint.sqlite", reason="needs langgraph-checkpoint-sqlite")
    path = tmp_path / "checkpoints.sqlite"
    with sqlite.SqliteSaver.from_conn_string(str(path)) as source:
        for thread_id in THREADS:
            write_thread(source, thread_id)
        half = THREADS[::2]
        assert saver.import_from(source, thread_ids=half).threads == len(half)
        report = saver.import_from(f"sqlite:{path}")
        assert (report.threads, report.threads_existing) == (len(THREADS) - len(half), len(half))
        assert_equal(saver, source)
        assert_equal(saver, f"sqlite:{path}")
        assert_all_go_on(saver, source)


async def test_threads_of_async_sqlite_are_imported(conninfo: str, tmp_path: Path) -> None:
    sqlite = pytest.importorskip(
        "langgraph.checkpoint.sqlite.aio", reason="needs langgraph-checkpoint-sqlite"
    )
    path = tmp_path / "checkpoints.sqlite"
    async with (
        sqlite.AsyncSqliteSaver.from_conn_string(str(path)) as source,
        DurableSaver.from_conn_string(conninfo) as saver,
    ):
        for thread_id in THREADS:
            await asyncio.to_thread(write_thread, source, thread_id)
        assert (await saver.aimport_from(source)).threads == len(THREADS)
        for given in (source, f"sqlite:{path}"):
            verified = await saver.averify_import(given)
            assert (verified.differences, verified.failures, verified.threads) == ([], {}, len(THREADS))


@pytest.fixture
async def sources(source_conninfo: str) -> AsyncIterator[Callable[[str], Any]]:
    async with AsyncExitStack() as stack:
        saver = stack.enter_context(PostgresSaver.from_conn_string(source_conninfo))
        asynchronous = await stack.enter_async_context(AsyncPostgresSaver.from_conn_string(source_conninfo))
        yield {
            "PostgresSaver": saver,
            "AsyncPostgresSaver": asynchronous,
            "tables": source_conninfo,
        }.__getitem__


@pytest.mark.parametrize("name", ["PostgresSaver", "tables"])
def test_threads_of_postgres_are_imported_and_go_on(
    saver: DurableSaver, peer: PostgresSaver, sources: Callable[[str], Any], name: str
) -> None:
    report = saver.import_from(sources(name), batch=3)
    assert report == ImportReport(len(THREADS), report.checkpoints, report.writes, 0, 0, 0, {})
    assert_equal(saver, sources(name))
    assert_equal(saver, sources("tables"))
    assert_all_go_on(saver, peer)


@pytest.mark.parametrize("name", ["PostgresSaver", "AsyncPostgresSaver", "tables"])
async def test_threads_of_postgres_are_imported_async(
    conninfo: str, sources: Callable[[str], Any], name: str
) -> None:
    async with DurableSaver.from_conn_string(conninfo) as saver:
        assert (await saver.aimport_from(sources(name))).threads == len(THREADS)
        for given in (name, "tables"):
            verified = await saver.averify_import(sources(given))
            assert (verified.differences, verified.failures, verified.threads) == ([], {}, len(THREADS))


def test_order_of_parallel_writes_is_kept_without_task_paths(saver: DurableSaver) -> None:
    memory = InMemorySaver()
    checkpoint = checkpoint_with({"items": ["x"]})
    stored = memory.put(config_for("t"), checkpoint, {"step": 0}, checkpoint["channel_versions"])
    for task_id, path in (("c", "~1"), ("a", "~2"), ("b", "~3")):
        memory.put_writes(stored, [("items", task_id), ("__interrupt__", "?"), ("items", 2)], task_id, path)
    saver.import_from(memory)
    theirs, ours = memory.get_tuple(stored), saver.get_tuple(stored)
    assert theirs is not None
    assert ours is not None
    assert ours.pending_writes == theirs.pending_writes
    assert saver.verify_import(memory).is_equal


def test_ids_that_contradict_their_parents_are_imported_parents_first(saver: DurableSaver) -> None:
    memory = InMemorySaver()
    config: Any = config_for("t")
    ids = [f"1f000000-0000-6000-8000-00000000000{number}" for number in (5, 3, 4, 9, 7)]
    for step, checkpoint_id in enumerate(ids):  # the clock of the second was behind
        checkpoint = checkpoint_with({"items": [step]}, id=checkpoint_id)
        metadata: Any = {"step": step, "counters_since_delta_snapshot": {"log": [step, 0]}}
        checkpoint["channel_versions"]["log"] = f"{step + 1:032}.0"
        config = memory.put(config, checkpoint, metadata, checkpoint["channel_versions"])
    assert saver.import_from(memory).failures == {}
    assert [t.checkpoint["id"] for t in saver.list(config_for("t"))] == ids[::-1]
    assert saver.verify_import(memory).is_equal


def test_times_are_those_of_the_source(saver: DurableSaver, source_conninfo: str, conninfo: str) -> None:
    with psycopg.connect(source_conninfo, autocommit=True) as connection:
        connection.execute(
            'UPDATE checkpoints SET checkpoint = checkpoint || \'{"ts": "2025-02-03T04:05:06.789+00:00"}\''
            " WHERE thread_id <> %s",
            [THREADS[0]],
        )
        connection.execute(
            "UPDATE checkpoints SET checkpoint = checkpoint - 'ts' WHERE thread_id = %s", [THREADS[0]]
        )
    saver.import_from(source_conninfo)
    with psycopg.connect(conninfo) as connection:
        connection.execute("SET search_path = langgraph_durable")
        [(timed,)] = connection.execute("SELECT count(*) FROM writes WHERE stored_at IS NOT NULL").fetchall()
        times = connection.execute(
            "SELECT DISTINCT created_at FROM checkpoints WHERE thread_id <> %s", [THREADS[0]]
        ).fetchall()
        [(timeless,)] = connection.execute(
            "SELECT min(created_at) > now() - interval '5 minutes' FROM checkpoints WHERE thread_id = %s",
            [THREADS[0]],
        ).fetchall()
    assert times == [(datetime(2025, 2, 3, 4, 5, 6, 789000, tzinfo=timezone.utc),)]
    assert (timed, timeless) == (0, True)
    [waiting, *_] = saver.pending_interrupts(thread_id="ask 0")
    assert waiting.asked_at == times[0][0]


def test_ids_that_are_numbers_or_cannot_be_stored(saver: DurableSaver) -> None:
    memory = InMemorySaver()
    for thread_id in (7, "a\0b", ""):
        checkpoint = checkpoint_with({"items": [1]})
        place: Any = {"configurable": {"thread_id": thread_id, "checkpoint_ns": ""}}
        memory.put(place, checkpoint, {"step": 0}, checkpoint["channel_versions"])
    report = saver.import_from(memory)
    assert report.threads == 1
    assert {type(exc) for exc in report.failures.values()} == {InvalidConfigError}
    assert set(report.failures) == {"a\0b", ""}
    assert len(list(saver.list(config_for("7")))) == 1


# --- what exists here ---


def test_threads_that_exist_here_are_skipped_or_refused(saver: DurableSaver, source_conninfo: str) -> None:
    own = checkpoint_with({"own": ["x" * 300]})
    saver.put(config_for(THREADS[0]), own, {"step": 0}, own["channel_versions"])
    saver.put_writes(config_for(THREADS[1], "not stored yet"), [("own", 1)], "task")
    with pytest.raises(ThreadExistsError, match=f"2 threads exist here already.*{THREADS[0]}"):
        saver.import_from(source_conninfo, on_existing="refuse")
    assert len(list(saver.list(None))) == 1
    report = saver.import_from(source_conninfo)
    assert (report.threads, report.threads_existing) == (len(THREADS) - 2, 2)
    assert [t.checkpoint["id"] for t in saver.list(config(THREADS[0]))] == [own["id"]]
    assert list(saver.list(config(THREADS[1]))) == []


def test_threads_that_were_deleted_here_do_not_come_back(saver: DurableSaver, peer: PostgresSaver) -> None:
    saver.import_from(peer)
    saver.delete_thread(THREADS[0])
    for source in (peer,):
        report = saver.import_from(source)
        assert (report.threads, report.threads_deleted) == (0, 1)
        assert report.threads_existing == len(THREADS) - 1
    verified = saver.verify_import(peer)
    assert (verified.is_equal, verified.threads, verified.threads_deleted) == (True, len(THREADS) - 1, 1)


def test_only_the_named_threads_are_imported(saver: DurableSaver, source_conninfo: str) -> None:
    report = saver.import_from(source_conninfo, thread_ids=[THREADS[2], "unknown"])
    assert (report.threads, report.threads_unknown) == (1, 1)
    assert {t.config["configurable"]["thread_id"] for t in saver.list(None)} == {THREADS[2]}


def test_a_dry_run_stores_nothing(saver: DurableSaver, source_conninfo: str) -> None:
    tried = saver.import_from(source_conninfo, dry_run=True)
    assert list(saver.list(None)) == []
    done = saver.import_from(source_conninfo)
    assert (tried.threads, tried.checkpoints, tried.writes) == (done.threads, done.checkpoints, done.writes)
    assert (tried.dry_run, done.dry_run) == (True, False)


# --- interruptions, changes, differences ---

KILLED_INSIDE_A_THREAD = """
import os, signal, sys
from langgraph_durable import DurableSaver
from langgraph_durable._transfer import store

store_batch, batches = store._store, []

async def store_and_die(session, batch):
    await store_batch(session, batch)
    batches.append(batch)
    if len(batches) == 3:
        os.kill(os.getpid(), signal.SIGKILL)

store._store = store_and_die
with DurableSaver.from_conn_string(sys.argv[2]) as saver:
    saver.import_from(sys.argv[1], batch=1, thread_ids=[sys.argv[3]])
"""


def killed(program: str, *arguments: str) -> bool:
    """Run a program; return whether it was killed."""
    ended = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
        check=False,
    )
    return ended.returncode == -signal.SIGKILL


def test_killed_inside_a_thread_leaves_nothing_of_it(
    saver: DurableSaver, source_conninfo: str, conninfo: str
) -> None:
    assert killed(KILLED_INSIDE_A_THREAD, source_conninfo, conninfo, THREADS[1])
    assert saver.storage_stats(THREADS[1]).total_rows == 0
    assert saver.import_from(source_conninfo, thread_ids=[THREADS[1]]).threads == 1
    assert saver.verify_import(source_conninfo, thread_ids=[THREADS[1]]).is_equal


INTERRUPTED = """
import os, signal, sys
from langgraph_durable import DurableSaver

def progress(step):
    if step.threads_done == 5:
        os.kill(os.getpid(), signal.SIGKILL)

with DurableSaver.from_conn_string(sys.argv[2]) as saver:
    saver.import_from(sys.argv[1], batch=2, progress=progress)
"""


def test_an_interrupted_import_is_resumed_without_duplicates(
    saver: DurableSaver, source_conninfo: str, conninfo: str
) -> None:
    assert killed(INTERRUPTED, source_conninfo, conninfo)
    assert len({t.config["configurable"]["thread_id"] for t in saver.list(None)}) == 5
    report = saver.import_from(source_conninfo)
    assert (report.threads, report.threads_existing) == (len(THREADS) - 5, 5)
    assert_equal(saver, source_conninfo)


def test_a_thread_is_imported_whole_or_not_at_all(saver: DurableSaver, source_conninfo: str) -> None:
    """The last checkpoint of a thread cannot be read: nothing of the thread is stored."""
    with psycopg.connect(source_conninfo, autocommit=True) as connection:
        connection.execute(
            "UPDATE checkpoints SET checkpoint = '[]' WHERE (thread_id, checkpoint_id) = "
            "(SELECT thread_id, max(checkpoint_id) FROM checkpoints WHERE thread_id = %s GROUP BY 1)",
            [THREADS[0]],
        )
    report = saver.import_from(source_conninfo, batch=1)
    assert list(report.failures) == [THREADS[0]]
    assert list(saver.list(config(THREADS[0]))) == []
    assert saver.storage_stats(THREADS[0]).total_rows == 0
    assert report.threads == len(THREADS) - 1


def test_a_source_that_changes_is_read_as_of_one_moment(
    saver: DurableSaver, peer: PostgresSaver, source_conninfo: str
) -> None:
    counts = {thread_id: sum(1 for _ in peer.list(config(thread_id))) for thread_id in THREADS}
    changed = threading.Event()

    def change(step: TransferProgress) -> None:
        if not changed.is_set():
            changed.set()
            go_on(peer, THREADS[-1])
            peer.delete_thread(THREADS[-2])
            write_thread(peer, "chat 99")

    assert saver.import_from(source_conninfo, progress=change).threads == len(THREADS)
    assert changed.is_set()
    assert {t: sum(1 for _ in saver.list(config(t))) for t in THREADS} == counts


def test_two_imports_at_once_store_each_thread_once(
    saver: DurableSaver, source_conninfo: str, conninfo: str
) -> None:
    reports: list[ImportReport] = []

    def run() -> None:
        with DurableSaver.from_conn_string(conninfo) as other:
            reports.append(other.import_from(source_conninfo, batch=2))

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(report.threads for report in reports) == len(THREADS)
    assert sum(report.threads + report.threads_existing for report in reports) == 3 * len(THREADS)
    assert_equal(saver, source_conninfo)


def end_connections(conninfo: str) -> None:
    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )


def test_a_lost_connection_to_this_saver_is_retried(
    saver: DurableSaver, source_conninfo: str, conninfo: str
) -> None:
    def lose(step: TransferProgress) -> None:
        if step.threads_done in (2, 5):
            end_connections(conninfo)

    report = saver.import_from(source_conninfo, progress=lose)
    assert (report.threads, report.failures) == (len(THREADS), {})
    assert_equal(saver, source_conninfo)


@pytest.mark.parametrize("by_tables", [True, False])
async def test_a_cancelled_import_is_resumed(conninfo: str, source_conninfo: str, by_tables: bool) -> None:
    async with (
        AsyncPostgresSaver.from_conn_string(source_conninfo) as peer,
        DurableSaver.from_conn_string(conninfo) as saver,
    ):
        source = source_conninfo if by_tables else peer

        def cancel(step: TransferProgress) -> None:
            if step.threads_done == 3:
                importing.cancel()

        importing = asyncio.ensure_future(saver.aimport_from(source, progress=cancel, batch=2))
        with pytest.raises(asyncio.CancelledError):
            await importing
        report = await saver.aimport_from(source)
        assert (report.threads, report.threads_existing) == (len(THREADS) - 3, 3)
        assert (await saver.averify_import(source)).is_equal


def test_a_lost_connection_to_the_source_ends_the_import(saver: DurableSaver, source_conninfo: str) -> None:
    def lose(step: TransferProgress) -> None:
        if step.threads_done == 3:
            end_connections(source_conninfo)

    with pytest.raises(ImportFailedError, match="the source cannot be read: "):
        saver.import_from(source_conninfo, progress=lose)
    report = saver.import_from(source_conninfo)
    assert (report.threads, report.threads_existing) == (len(THREADS) - 3, 3)


def test_differences_are_named(saver: DurableSaver, source_conninfo: str, conninfo: str) -> None:
    saver.import_from(source_conninfo)
    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute("SET search_path = langgraph_durable")
        damaged, lost, orphan = THREADS[0], THREADS[1], THREADS[3]
        connection.execute("UPDATE writes SET channel = 'other' WHERE thread_id = %s", [damaged])
        connection.execute(
            "DELETE FROM checkpoints WHERE thread_id = %s AND parent_checkpoint_id IS NULL", [lost]
        )
        connection.execute(
            "UPDATE checkpoints SET parent_checkpoint_id = NULL WHERE thread_id = %s", [orphan]
        )
    found = saver.verify_import(source_conninfo)
    assert not found.is_equal
    by_thread = {d.thread_id: d.what for d in found.differences}
    assert by_thread[damaged].startswith("pending writes are [(")
    assert by_thread[lost] == "it is not stored here"
    assert by_thread[orphan].startswith("its parent is None, not '")
    assert set(by_thread) == {damaged, lost, orphan}


# --- other databases and arguments ---


def test_tables_are_found_in_a_schema(saver: DurableSaver, source_conninfo: str) -> None:
    with psycopg.connect(source_conninfo, autocommit=True) as connection:
        connection.execute('ALTER SCHEMA public RENAME TO "The old"')
    with pytest.raises(
        InvalidConfigError, match=r"no tables of langgraph-checkpoint-postgres.*the search path"
    ):
        saver.import_from(source_conninfo)
    assert saver.import_from(source_conninfo, source_schema="The old").threads == len(THREADS)
    assert saver.verify_import(source_conninfo, source_schema="The old").is_equal


def test_both_savers_may_be_in_one_database(databases: Databases, written: str) -> None:
    name = databases.create(written)
    with DurableSaver.from_conn_string(databases.conninfo(name)) as saver:
        saver.setup()
        assert saver.import_from(databases.conninfo(name)).threads == len(THREADS)
        assert saver.verify_import(databases.conninfo(name)).is_equal
        with pytest.raises(InvalidConfigError, match="not found, or of another form"):
            saver.import_from(databases.conninfo(name), source_schema="langgraph_durable")
    databases.drop(name)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"source": 7}, "must be a BaseCheckpointSaver, a Postgres connection string or sqlite:PATH, got 7"),
        ({"source": "sqlite:/nowhere"}, "not a file"),
        ({"source": "nonsense"}, "not a Postgres connection string"),
        ({"batch": 0}, "batch must be an int >= 1"),
        ({"on_existing": "replace"}, 'on_existing must be "skip" or "refuse"'),
    ],
)
def test_invalid_arguments_are_refused(saver: DurableSaver, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidConfigError, match=message):
        saver.import_from(**{"source": InMemorySaver(), **arguments})


def test_a_saver_is_not_imported_into_itself(saver: DurableSaver) -> None:
    for other in (saver, saver.with_allowlist([("a", "B")])):
        with pytest.raises(InvalidConfigError, match="this saver itself"):
            saver.import_from(other)
        with pytest.raises(InvalidConfigError, match="this saver itself"):
            saver.export_to(other)

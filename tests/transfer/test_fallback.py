"""A thread that is unknown here moves from the fallback saver when it is first used, once, and goes on here."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from psycopg_pool import ConnectionPool

from langgraph_durable import DurableSaver
from langgraph_durable._transfer import fallback as fallback_module
from langgraph_durable.errors import (
    EffectUnresolvedError,
    ImportFailedError,
    InvalidConfigError,
)
from tests.checkpoints import checkpoint_with, config_for
from tests.transfer.conftest import THREADS
from tests.transfer.threads import BUILDERS, Mood, config, first_input, go_on, write_thread

THREAD = "chat 0"


def named(thread_id: str) -> RunnableConfig:
    return config_for(thread_id)


class Counting(InMemorySaver):
    """Counts the threads that are asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.listed: list[str] = []

    def list(self, config: RunnableConfig | None, **options: Any) -> Iterator[CheckpointTuple]:
        self.listed.append(config["configurable"]["thread_id"] if config else "all")
        yield from super().list(config, **options)


@pytest.fixture
def old() -> Counting:
    saver = Counting()
    for thread_id in ("chat 0", "ask 1"):
        write_thread(saver, thread_id)
    saver.listed.clear()
    return saver


@pytest.fixture
def moving(conninfo: str, old: Counting) -> Iterator[DurableSaver]:
    with DurableSaver.from_conn_string(conninfo, fallback=old) as saver:
        yield saver


def ids(saver: BaseCheckpointSaver[Any], thread_id: str) -> list[str]:
    return [t.checkpoint["id"] for t in saver.list(named(thread_id))]


# --- first use ---


def test_every_kind_of_thread_goes_on(conninfo: str, peer: PostgresSaver, source_conninfo: str) -> None:
    with (
        DurableSaver.from_conn_string(conninfo, fallback=peer) as saver,
        DurableSaver.from_conn_string(conninfo, schema="other") as all_at_once,
    ):
        all_at_once.setup()
        all_at_once.import_from(source_conninfo)
        for thread_id in THREADS:
            assert go_on(saver, thread_id) == go_on(all_at_once, thread_id), thread_id


async def test_every_kind_of_thread_goes_on_async(conninfo: str, source_conninfo: str) -> None:
    async with (
        AsyncPostgresSaver.from_conn_string(source_conninfo) as peer,
        DurableSaver.from_conn_string(conninfo, fallback=peer) as saver,
    ):
        for thread_id in THREADS:
            name = thread_id.partition(" ")[0]
            graph = BUILDERS[name](saver)
            before = await BUILDERS[name](peer).aget_state(config(thread_id))
            assert (await graph.aget_state(config(thread_id))).values == before.values
            await graph.ainvoke(first_input(name), config(thread_id))


async def test_a_sync_saver_is_a_fallback_of_async_graphs(conninfo: str, peer: PostgresSaver) -> None:
    async with DurableSaver.from_conn_string(conninfo, fallback=peer) as saver:
        found = await saver.aget_tuple(named(THREAD))
        assert found is not None
        assert found.checkpoint["id"] == ids(peer, THREAD)[0]
        await saver.adelete_thread(THREAD)
        assert ids(peer, THREAD) == []


@pytest.mark.parametrize("first", ["get_tuple", "list", "put", "put_writes", "copy_thread", "prune"])
def test_the_first_use_imports_the_thread(moving: DurableSaver, old: Counting, first: str) -> None:
    head = old.get_tuple(named(THREAD))
    assert head is not None
    if first == "get_tuple":
        assert moving.get_tuple(head.config) is not None
    elif first == "list":
        assert next(moving.list(named(THREAD))).checkpoint["id"] == head.checkpoint["id"]
    elif first == "put":
        new = checkpoint_with({"x": 1})
        moving.put(head.config, new, {"step": 9}, new["channel_versions"])
    elif first == "put_writes":
        moving.put_writes(head.config, [("x", 1)], "task")
    elif first == "copy_thread":
        moving.copy_thread(THREAD, "copy")
        assert ids(moving, "copy") == ids(old, THREAD)
    else:
        moving.prune([THREAD], keep_last=100)
    imported = ids(moving, THREAD)
    assert imported[-len(ids(old, THREAD)) :] == ids(old, THREAD)
    assert len(imported) == len(ids(old, THREAD)) + (first == "put")


async def test_the_first_use_imports_the_thread_async(moving: DurableSaver, old: Counting) -> None:
    assert [t.checkpoint["id"] async for t in moving.alist(named(THREAD))] == ids(old, THREAD)
    await moving.aput_writes(next(old.list(named("ask 1"))).config, [("x", 1)], "task")
    assert ids(moving, "ask 1") == ids(old, "ask 1")


def test_a_known_thread_costs_nothing(moving: DurableSaver, old: Counting) -> None:
    moving.get_tuple(named(THREAD))
    assert old.listed == [THREAD]
    before = moving.metrics().pool_requests
    for _ in range(5):
        moving.get_tuple(named(THREAD))
        moving.get_tuple({"configurable": {"thread_id": THREAD, "checkpoint_ns": "unused"}})
    assert moving.metrics().pool_requests - before == 10
    assert old.listed == [THREAD]


def test_a_thread_that_is_known_to_be_here_is_not_asked_for(conninfo: str, old: Counting) -> None:
    with DurableSaver.from_conn_string(conninfo) as saver:
        checkpoint = checkpoint_with({"x": ["own"]})
        saver.put(named(THREAD), checkpoint, {"step": 0}, checkpoint["channel_versions"])
    with DurableSaver.from_conn_string(conninfo, fallback=old) as saver:
        assert ids(saver, THREAD) == [checkpoint["id"]]
        assert saver.get_tuple(config_for(THREAD, "unknown")) is None
    assert old.listed == []


def test_a_new_thread_starts_here(moving: DurableSaver, old: Counting) -> None:
    graph = BUILDERS["chat"](moving)
    for _ in range(2):
        graph.invoke(first_input("chat"), config("new"))
    assert set(old.listed) == {"new"}
    asked = len(old.listed)
    graph.invoke(first_input("chat"), config("new"))
    assert len(old.listed) == asked <= 2
    assert list(old.list(named("new"))) == []


def test_a_listing_of_all_threads_has_those_that_are_here(moving: DurableSaver, old: Counting) -> None:
    assert list(moving.list(None)) == []
    moving.get_tuple(named(THREAD))
    assert {t.config["configurable"]["thread_id"] for t in moving.list(None)} == {THREAD}
    report = moving.import_from(old)
    assert (report.threads, report.threads_existing) == (1, 1)


def test_many_at_once_import_a_thread_once(conninfo: str, peer: PostgresSaver, source_conninfo: str) -> None:
    expected = ids(peer, THREAD)
    found: list[list[str]] = []

    def use() -> None:
        with (
            PostgresSaver.from_conn_string(source_conninfo) as source,
            DurableSaver.from_conn_string(conninfo, fallback=source) as saver,
        ):
            head = saver.get_tuple(named(THREAD))
            found.append([head.checkpoint["id"] if head else "", *ids(saver, THREAD)])

    threads = [threading.Thread(target=use) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [[expected[0], *expected]] * 6


def test_a_thread_that_another_process_imports_meanwhile_is_found(
    moving: DurableSaver, old: Counting, conninfo: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = vars(fallback_module)["get_tuple"]

    async def get_tuple_before_the_other(*arguments: Any) -> CheckpointTuple | None:
        found: CheckpointTuple | None = await real(*arguments)
        with DurableSaver.from_conn_string(conninfo) as other:
            other.import_from(old)
        return found

    monkeypatch.setattr(fallback_module, "get_tuple", get_tuple_before_the_other)
    found = moving.get_tuple(named(THREAD))
    assert found is not None
    assert found.checkpoint["id"] == ids(old, THREAD)[0]


def test_both_savers_may_share_a_small_pool(databases: Any, written: str) -> None:
    name = databases.create(written)
    with ConnectionPool[Any](
        databases.conninfo(name), min_size=1, max_size=2, timeout=10, kwargs={"autocommit": True}
    ) as pool:
        saver = DurableSaver(pool, fallback=PostgresSaver(pool))
        saver.setup()
        threads = [threading.Thread(target=saver.get_tuple, args=(named(t),)) for t in THREADS]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert {t.config["configurable"]["thread_id"] for t in saver.list(None)} == set(THREADS)
    databases.drop(name)


async def test_many_tasks_use_many_threads_at_once(conninfo: str, source_conninfo: str) -> None:
    async with (
        AsyncPostgresSaver.from_conn_string(source_conninfo) as peer,
        DurableSaver.from_conn_string(conninfo, fallback=peer, max_size=2) as saver,
    ):
        found = await asyncio.gather(*(saver.aget_tuple(named(t)) for t in THREADS * 3))
        assert all(found)


def test_types_of_a_graph_are_loaded_in_strict_mode(conninfo: str) -> None:
    """LangGraph lists them for the saver that a graph is compiled with, and knows nothing of its fallback."""
    strict = JsonPlusSerializer(allowed_msgpack_modules=None)
    old = InMemorySaver(serde=strict)
    checkpoint = checkpoint_with({"note": [Mood.CALM], "long": [Mood.CALM] * 9000})
    old.put(named("t"), checkpoint, {"step": 0}, checkpoint["channel_versions"])
    with DurableSaver.from_conn_string(conninfo, serde=strict, fallback=old) as saver:
        clone = saver.with_allowlist([(Mood.__module__, "Mood")])
        found = clone.get_tuple(named("t"))
        assert found is not None
        assert found.checkpoint["channel_values"] == checkpoint["channel_values"]


# --- faults ---


def test_a_thread_that_cannot_be_imported_is_an_error_at_each_use(
    conninfo: str, peer: PostgresSaver, source_conninfo: str
) -> None:
    with psycopg.connect(source_conninfo, autocommit=True) as connection:
        connection.execute("UPDATE checkpoint_blobs SET type = 'pickle' WHERE thread_id = %s", [THREAD])
    with DurableSaver.from_conn_string(conninfo, fallback=peer) as saver:
        for _ in range(2):
            with pytest.raises(
                ImportFailedError, match=f"thread '{THREAD}' is in the fallback saver.*pickle"
            ):
                saver.get_tuple(named(THREAD))
        assert saver.storage_stats().total_rows == 0
        saver.delete_thread(THREAD)
        assert saver.get_tuple(named(THREAD)) is None
        assert ids(peer, THREAD) == []


def test_invalid_fallbacks_are_refused(conninfo: str) -> None:
    with pytest.raises(InvalidConfigError, match="fallback must be a BaseCheckpointSaver, got str"):
        DurableSaver.from_conn_string(conninfo, fallback="postgresql://")  # type: ignore[arg-type]


# --- deletions ---


@pytest.mark.parametrize("used", [False, True])
def test_a_deleted_thread_is_gone_from_both(moving: DurableSaver, old: Counting, used: bool) -> None:
    if used:
        moving.get_tuple(named(THREAD))
    moving.delete_thread(THREAD)
    assert list(old.list(named(THREAD))) == []
    assert moving.get_tuple(named(THREAD)) is None


async def test_a_deleted_thread_is_gone_from_both_async(moving: DurableSaver, old: Counting) -> None:
    await moving.adelete_thread(THREAD)
    assert list(old.list(named(THREAD))) == []
    assert await moving.aget_tuple(named(THREAD)) is None


def test_a_thread_that_is_deleted_while_it_is_imported_stays_deleted(conninfo: str, old: Counting) -> None:
    """The import has read the thread when another process deletes it."""

    class Slow(InMemorySaver):
        def list(self, config: RunnableConfig | None, **options: Any) -> Iterator[CheckpointTuple]:
            listed = [*old.list(config, **options)]
            with DurableSaver.from_conn_string(conninfo, fallback=old) as other:
                other.delete_thread(THREAD)
            yield from listed

    with DurableSaver.from_conn_string(conninfo, fallback=Slow()) as saver:
        assert saver.get_tuple(named(THREAD)) is None
        assert saver.storage_stats(THREAD).total_rows == 0


def test_a_pruned_thread_is_gone_from_both(moving: DurableSaver, old: Counting) -> None:
    moving.prune([THREAD, "ask 1"], strategy="delete", dry_run=True)
    assert len(ids(old, THREAD)) > 1
    assert moving.storage_stats().total_rows == 0
    moving.prune([THREAD], strategy="delete")
    assert list(old.list(named(THREAD))) == []
    assert moving.get_tuple(named(THREAD)) is None
    moving.prune(["ask 1"])
    assert len(ids(moving, "ask 1")) == 1
    assert len(ids(old, "ask 1")) > 1


def test_a_refused_deletion_deletes_nowhere(moving: DurableSaver, old: Counting) -> None:
    moving.get_tuple(named(THREAD))
    with moving._context.db.open_session() as (_, connection):
        connection.execute(
            "INSERT INTO langgraph_durable.effects (effect_id, scope_thread, key, vendor_seed, thread_id, tool, scope,"
            " input_hash, state) VALUES (gen_random_uuid(), %s, '', '', %s, 'pay', 'call', '', 'unknown')",
            [THREAD, THREAD],
        )
    with pytest.raises(EffectUnresolvedError):
        moving.delete_thread(THREAD)
    assert len(ids(moving, THREAD)) == len(ids(old, THREAD)) > 0


def test_runs_are_deleted_from_a_fallback_that_can_do_that(conninfo: str, peer: PostgresSaver) -> None:
    class Deleting(InMemorySaver):
        runs: list[Any] = []  # noqa: RUF012

        def delete_for_runs(self, run_ids: Any) -> None:
            self.runs.append(list(run_ids))

    for fallback in (Deleting(), peer):
        with DurableSaver.from_conn_string(conninfo, fallback=fallback) as saver:
            saver.delete_for_runs(["run"])
    assert Deleting.runs == [["run"]]

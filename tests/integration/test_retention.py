"""Pruning, copying and deleting: what is removed, what stays, what is reported."""

from __future__ import annotations

import asyncio
import threading
from datetime import datetime, timedelta, timezone
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from langgraph.checkpoint.base.id import UUID, uuid6
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.types import TASKS, _DeltaSnapshot
from psycopg.pq import TransactionStatus

from langgraph_durable import DurableSaver
from langgraph_durable.errors import (
    InvalidConfigError,
    ParentPrunedError,
    PruneFailedError,
    ThreadDeletedError,
    ThreadExistsError,
)
from tests.checkpoints import checkpoint_with, config_for, get_values, listed_ids, put
from tests.drivers import Saver

TABLES = ("checkpoints", "ancestors", "channel_values", "segments", "writes")


def counts(conninfo: str, thread_id: str = "t") -> dict[str, int]:
    with psycopg.connect(conninfo) as connection:
        found = {}
        for table in TABLES:
            row = connection.execute(
                f"SELECT count(*) FROM langgraph_durable.{table} WHERE thread_id = %s", (thread_id,)
            ).fetchone()
            assert row is not None
            if row[0]:
                found[table] = row[0]
        return found


async def put_chain(saver: Saver, count: int, of: str = "t", ns: str = "", **metadata: Any) -> list[Any]:
    """Put checkpoints with a large value and two writes each; return their configs, oldest first."""
    config: Any = config_for(of, checkpoint_ns=ns)
    configs = []
    for step in range(count):
        full: Any = {"step": step, **metadata}
        config = await put(saver, config, {"n": [step], "small": step}, metadata=full)
        await saver.aput_writes(config, [("n", step), ("small", step)], str(uuid4()))
        configs.append(config)
    return configs


def ids(configs: list[Any]) -> list[str]:
    return [config["configurable"]["checkpoint_id"] for config in configs]


# --- prune ---


async def test_keep_latest_keeps_one_checkpoint_and_only_its_rows(driven: Saver, conninfo: str) -> None:
    configs = await put_chain(driven, 5)
    before = await driven.aget_tuple(configs[-1])
    report = await driven.aprune(["t"])
    assert counts(conninfo) == {"checkpoints": 1, "channel_values": 1, "writes": 2}
    after = await driven.aget_tuple(config_for("t"))
    assert before is not None
    assert after == before._replace(parent_config=None)
    assert report.threads["t"].rows == {"checkpoints": 4, "channel_values": 4, "writes": 8}
    assert all(size > 0 for size in report.threads["t"].bytes.values())
    assert report.total.total_rows == 16
    assert (await driven.aprune(["t"])).threads == {}


async def test_keep_last_and_older_than(driven: Saver, conninfo: str) -> None:
    configs = await put_chain(driven, 6)
    with psycopg.connect(conninfo) as connection:
        for age, config in enumerate(reversed(configs)):
            connection.execute(
                "UPDATE langgraph_durable.checkpoints SET created_at = now() - %s * interval '1 hour' "
                "WHERE checkpoint_id = %s",
                (age, config["configurable"]["checkpoint_id"]),
            )
    assert not (await driven.aprune(["t"], keep_last=2, older_than=timedelta(days=1))).threads
    await driven.aprune(["t"], keep_last=2, older_than=timedelta(hours=3.5))
    assert await listed_ids(driven, config_for("t")) == ids(configs)[:1:-1]
    await driven.aprune(["t"], keep_last=2)
    assert await listed_ids(driven, config_for("t")) == ids(configs)[:3:-1]
    await driven.aprune(["t"], older_than=timedelta(0))
    assert await listed_ids(driven, config_for("t")) == ids(configs)[:4:-1]


@pytest.mark.parametrize("strategy", ["delete", "delete_all"])
async def test_strategy_delete_by_either_name_deletes_everything(
    driven: Saver, conninfo: str, strategy: str
) -> None:
    """The Agent Server says delete_all where the base class's documentation says delete."""
    await put_chain(driven, 2)
    with pytest.raises(InvalidConfigError, match="neither keep_last"):
        await driven.aprune(["t"], strategy=strategy, keep_last=1)
    assert (await driven.aprune(["t"], strategy=strategy)).total.rows["checkpoints"] == 2
    assert counts(conninfo) == {}


async def test_dry_run_counts_what_a_prune_removes(driven: Saver, conninfo: str) -> None:
    await put_chain(driven, 4)
    before = counts(conninfo)
    dry = await driven.aprune(["t"], dry_run=True)
    assert dry.dry_run
    assert counts(conninfo) == before
    assert (await driven.aprune(["t"])).threads == dry.threads
    dry = await driven.aprune(["t"], strategy="delete", dry_run=True)
    assert counts(conninfo)
    assert (await driven.aprune(["t"], strategy="delete")).threads == dry.threads
    assert counts(conninfo) == {}


async def test_value_of_a_survivor_stays(driven: Saver) -> None:
    checkpoint = checkpoint_with({"kept": ["x"]})
    first = await put(driven, config_for("t"), checkpoint=checkpoint)
    child = checkpoint_with({"kept": ["x"]}, channel_versions=checkpoint["channel_versions"])
    second = await driven.aput(first, child, {"source": "loop"}, {})
    await driven.aprune(["t"])
    assert await get_values(driven, second) == {"kept": ["x"]}


async def test_sends_in_a_parent_before_v4_stay(driven: Saver, conninfo: str) -> None:
    parent = await put(driven, config_for("t"))
    await driven.aput_writes(parent, [("other", 1), (TASKS, "sent")], "task")
    old = await put(driven, parent, checkpoint=checkpoint_with({"a": [1]}, v=3))
    await driven.aprune(["t"])
    assert (await get_values(driven, old))[TASKS] == ["sent"]
    assert counts(conninfo)["writes"] == 1


async def test_namespace_of_a_call_is_deleted_with_its_root_checkpoint(driven: Saver) -> None:
    async def call(root: Any, ns: str) -> None:
        await put_chain(driven, 2, ns=ns, parents={"": root["configurable"]["checkpoint_id"]})

    first = await put(driven, config_for("t"))
    await call(first, "node:first")
    await call(first, "kept")  # of a subgraph that keeps its state between calls
    second = await put(driven, first)
    await call(second, "node:second")
    await call(second, "node:second|inner:x")
    unsaved = {"configurable": {"checkpoint_id": str(uuid6())}}
    await call(unsaved, "node:unsaved")  # the save of its root is still in flight
    await driven.aprune(["t"])
    left = [
        t.config["configurable"]["checkpoint_ns"]
        async for t in driven.alist({"configurable": {"thread_id": "t"}})
    ]
    assert sorted(left) == ["", "kept", "node:second", "node:second|inner:x", "node:unsaved"]


# --- delta channels ---


async def put_delta_chain(
    saver: Saver, length: int, snapshot_at: tuple[int, ...], thread_id: str = "t"
) -> list[Any]:
    """Put a chain whose channel "d" has a value only at some checkpoints; each checkpoint's task writes its step."""
    config: Any = config_for(thread_id)
    configs = []
    for step in range(length):
        values: dict[str, Any] = {"plain": [step]}
        if step in snapshot_at:
            values["d"] = _DeltaSnapshot(list(range(step)))
        checkpoint = checkpoint_with(values)
        checkpoint["channel_versions"]["d"] = f"{step + 1:032}.0"
        counters: Any = {} if step in snapshot_at else {"counters_since_delta_snapshot": {"d": (1, 1)}}
        metadata: Any = {"step": step, **counters}
        config = await saver.aput(config, checkpoint, metadata, checkpoint["channel_versions"])
        await saver.aput_writes(config, [("d", step), ("plain", [step])], f"task-{step}")
        configs.append(config)
    return configs


async def rebuilt(saver: Saver, config: Any) -> list[int]:
    history = (await saver.aget_delta_channel_history(config=config, channels=["d"]))["d"]
    seed = history.get("seed")
    return [*(seed.value if seed is not None else []), *(value for _, _, value in history["writes"])]


@pytest.mark.parametrize(
    ("snapshots", "ancestors"), [((), 7), ((0,), 7), ((2, 5), 2), ((6,), 1), ((2, 7), 0)]
)
async def test_rows_from_which_delta_channels_are_replayed_stay(
    driven: Saver, conninfo: str, snapshots: tuple[int, ...], ancestors: int
) -> None:
    configs = await put_delta_chain(driven, 8, snapshots)
    assert ancestors == 0 or await rebuilt(driven, configs[-1]) == list(range(7))
    await driven.aprune(["t"])
    assert await listed_ids(driven, config_for("t")) == ids(configs)[-1:]
    assert (await driven.aget_tuple(configs[-2]) is None) == (ancestors == 0)
    assert await driven.aget_ulid(configs[-2]) is None
    assert counts(conninfo).get("ancestors", 0) == ancestors
    assert counts(conninfo)["writes"] == 2 + ancestors  # an ancestor keeps only replayed writes
    if ancestors:
        assert await rebuilt(driven, configs[-1]) == list(range(7))
    else:
        assert (await get_values(driven, configs[-1]))["d"] == _DeltaSnapshot(list(range(7)))
    # Once the thread has a later snapshot, the ancestors are deleted.
    child = await put(driven, configs[-1], metadata={"counters_since_delta_snapshot": {"d": (2, 2)}})
    child = await put(driven, child, {"d": _DeltaSnapshot([1])})
    await driven.aprune(["t"])
    assert counts(conninfo) == {"checkpoints": 1, "channel_values": 1}


async def test_put_onto_a_pruned_checkpoint_is_refused(driven: Saver, conninfo: str) -> None:
    configs = await put_delta_chain(driven, 4, (2,))
    await driven.aprune(["t"])
    before = counts(conninfo)
    orphan = checkpoint_with({"plain": [9]})
    orphan["channel_versions"]["d"] = "0000000009.0"
    with pytest.raises(ParentPrunedError, match="pruned"):
        await driven.aput(configs[0], orphan, {"counters_since_delta_snapshot": {"d": (1, 1)}}, {})
    assert counts(conninfo) == before
    await put(driven, configs[0], {"plain": [9]})  # without delta channels it needs no parent
    orphan["id"] = str(uuid6())
    await driven.aput(configs[2], orphan, {"counters_since_delta_snapshot": {"d": (1, 1)}}, {})
    assert await rebuilt(driven, config_for("t", orphan["id"])) == [0, 1, 2]


# --- copy, delete ---


async def test_copy_is_complete_and_independent(driven: Saver, conninfo: str) -> None:
    await put_delta_chain(driven, 6, (1,), "source")
    await put_chain(driven, 2, "source", "sub:1")
    await driven.aprune(["source"], keep_last=2)
    await driven.acopy_thread("source", "target")
    assert counts(conninfo, "source") == counts(conninfo, "target")

    async def content(thread_id: str) -> list[Any]:
        found = [t async for t in driven.alist({"configurable": {"thread_id": thread_id}})]
        return [
            (t.checkpoint, t.metadata, t.pending_writes, t.config["configurable"]["checkpoint_ns"])
            for t in found
        ]

    assert await content("source") == await content("target")
    assert await rebuilt(driven, config_for("source")) == await rebuilt(driven, config_for("target"))
    await driven.adelete_thread("source")
    assert len(await content("target")) == 4
    await driven.acopy_thread("target", "target-2")
    with pytest.raises(ThreadExistsError, match="'target'"):
        await driven.acopy_thread("target-2", "target")
    await driven.acopy_thread("unknown", "nothing")
    assert counts(conninfo, "nothing") == {}
    await driven.adelete_thread("target-2")
    await driven.acopy_thread("target", "target-2")  # a deleted thread is empty
    await put(driven, config_for("target-2"))


@pytest.mark.parametrize("encrypted", [False, True])
async def test_a_copy_names_its_own_thread(conninfo: str, encrypted: bool) -> None:
    """The Agent Server stores a checkpoint's thread in its metadata, and shows it."""
    serde = EncryptedSerializer.from_pycryptodome_aes(key=b"0123456789abcdef") if encrypted else None
    async with DurableSaver.from_conn_string(conninfo, serde=serde) as saver:
        await put_chain(saver, 2, "source", thread_id="source")
        await saver.acopy_thread("source", "target")
        await saver.acopy_thread("target", "third")
        for thread_id in ("source", "target", "third"):
            config = config_for(thread_id)
            found = [t async for t in saver.alist(config, filter={"thread_id": thread_id, "step": 1})]
            assert [t.metadata for t in found] == [{"step": 1, "thread_id": thread_id}]
            latest = await saver.aget_tuple(config)
            assert latest is not None
            assert latest.metadata == {"step": 1, "thread_id": thread_id}


async def test_delete_for_runs(driven: Saver, conninfo: str) -> None:
    kept = await put_chain(driven, 2, run_id="kept")
    config = kept[-1]
    for _ in range(2):
        config = await put(driven, config, {"n": [7]}, metadata={"run_id": "gone"})
    last = await put(driven, config, {"n": [8]}, metadata={"run_id": "last"})
    await put_chain(driven, 1, "other", run_id="gone")
    await driven.adelete_for_runs(["gone", "unknown"])
    assert await listed_ids(driven, config_for("t")) == [*ids([last]), *ids(kept)[::-1]]
    assert counts(conninfo, "other") == {}
    found = await driven.aget_tuple(last)
    assert found is not None
    assert found.parent_config is None


async def test_delete_thread_returns_a_receipt(driven: Saver, conninfo: str) -> None:
    await put_chain(driven, 3)
    held = counts(conninfo)
    receipt = await driven.adelete_thread("t")
    assert receipt.removed.rows == held
    assert receipt.removed.total_bytes > 0
    assert abs(receipt.deleted_at - datetime.now(timezone.utc)) < timedelta(minutes=1)
    with psycopg.connect(conninfo) as connection:
        rows = connection.execute("SELECT thread_id, ulid FROM langgraph_durable.tombstones").fetchall()
    assert [row[0] for row in rows] == ["t"]
    assert (await driven.adelete_thread("unknown")).removed.total_rows == 0


async def test_late_put_of_a_deleted_thread_is_refused(driven: Saver, conninfo: str) -> None:
    configs = await put_chain(driven, 2)
    await driven.adelete_thread("t")
    await driven.aput_writes(configs[-1], [("n", 1)], "late")  # never refused
    with pytest.raises(ThreadDeletedError):
        await put(driven, configs[-1])
    assert counts(conninfo) == {"writes": 1}


# --- prune_all ---


def id_of_days_ago(days: int) -> str:
    now = uuid6()
    ticks = now.time - days * 86_400 * 10_000_000
    return str(UUID(int=ticks >> 12 << 80 | (ticks & 0xFFF) << 64 | now.int & 0xFFFF_FFFF, version=6))


async def test_prune_all_prunes_every_thread_and_deletes_old_orphan_writes(
    driven: Saver, conninfo: str
) -> None:
    for number in range(7):
        await put_chain(driven, 3, f"thread-{number}")
    await driven.aput_writes(config_for("gone", id_of_days_ago(3)), [("n", 1)], "late")
    await driven.aput_writes(config_for("coming", str(uuid6())), [("n", 1)], "early")
    dry = await driven.aprune_all(keep_last=1, dry_run=True)
    assert counts(conninfo, "thread-0")["checkpoints"] == 3
    seen: list[Any] = []
    report = await driven.aprune_all(keep_last=1, progress=seen.append)
    assert (report.threads_seen, report.threads_pruned, report.orphan_writes) == (7, 7, 1)
    assert report.removed == dry.removed
    assert report.removed.rows["checkpoints"] == 14
    assert seen[-1].after == "thread-6"
    assert seen[-1].threads_total == 7
    assert counts(conninfo, "gone") == {}
    assert counts(conninfo, "coming") == {"writes": 1}
    resumed = await driven.aprune_all(keep_last=1, after="thread-4")
    assert (resumed.threads_seen, resumed.threads_pruned) == (2, 0)


# --- concurrency and failures ---


async def test_concurrent_prunes_of_one_thread_run_one_after_the_other(driven: Saver) -> None:
    configs = await put_chain(driven, 30)
    reports = await asyncio.gather(*(driven.aprune(["t"]) for _ in range(4)))
    assert sum(bool(report.threads) for report in reports) == 1
    assert await listed_ids(driven, config_for("t")) == ids(configs)[-1:]


def test_prune_during_a_run_loses_nothing(saver: DurableSaver) -> None:
    """Puts a chain of checkpoints that share a value, while another thread prunes continuously."""
    stop = threading.Event()
    failures: list[BaseException] = []

    def prune() -> None:
        try:
            while not stop.is_set():
                saver.prune(["t"])
        except BaseException as exc:
            failures.append(exc)

    pruner = threading.Thread(target=prune)
    pruner.start()
    try:
        checkpoint = checkpoint_with({"shared": ["kept"], "n": [0]})
        config: Any = config_for("t")
        for step in range(150):
            versions = checkpoint["channel_versions"] | {"n": f"{step + 2:032}.0"}
            config = saver.put(config, checkpoint, {"step": step}, {"n": checkpoint["channel_versions"]["n"]})
            saver.put_writes(config, [("n", step)], "task")
            found = saver.get_tuple(config_for("t"))
            assert found is not None
            assert found.checkpoint["channel_values"] == {"shared": ["kept"], "n": [step]}
            assert found.pending_writes == [("task", "n", step)]
            checkpoint = checkpoint_with({"shared": ["kept"], "n": [step + 1]}, channel_versions=versions)
    finally:
        stop.set()
        pruner.join()
    assert not failures


async def test_other_threads_are_pruned_if_one_fails(driven: Saver, conninfo: str) -> None:
    for thread_id in ("a", "broken", "c"):
        await put_chain(driven, 3, thread_id)
    with psycopg.connect(conninfo) as connection:
        connection.execute("""
            CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN IF OLD.thread_id = 'broken' THEN RAISE 'refused'; END IF; RETURN OLD; END $$;
            CREATE TRIGGER refuse BEFORE DELETE ON langgraph_durable.checkpoints
            FOR EACH ROW EXECUTE FUNCTION refuse()""")
    with pytest.raises(PruneFailedError, match="'broken'") as caught:
        await driven.aprune(["a", "broken", "c"])
    assert set(caught.value.report.threads) == {"a", "c"}
    assert set(caught.value.failures) == {"broken"}
    assert counts(conninfo, "broken")["checkpoints"] == 3
    assert counts(conninfo, "broken")["writes"] == 6


async def test_damaged_thread_is_named_and_others_are_pruned(driven: Saver, conninfo: str) -> None:
    for thread_id in ("a", "damaged", "z"):
        await put_chain(driven, 3, thread_id, ns="ns", run_id="r")
    await driven.aput_writes(config_for("gone", id_of_days_ago(3)), [("n", 1)], "late")
    with psycopg.connect(conninfo) as connection:
        connection.execute(
            "UPDATE langgraph_durable.checkpoints SET value_versions = '{}' WHERE thread_id = 'damaged'"
        )
    for remove in (
        lambda: driven.aprune(["a", "damaged", "z"], keep_last=2),
        lambda: driven.aprune_all(keep_last=1),
        lambda: driven.adelete_for_runs(["r"]),
    ):
        with pytest.raises(
            PruneFailedError, match="do not pair: thread 'damaged', namespace 'ns', checkpoint"
        ):
            await remove()
    assert counts(conninfo, "a") == counts(conninfo, "z") == counts(conninfo, "gone") == {}
    assert counts(conninfo, "damaged")["checkpoints"] == 3


async def test_longest_age_prunes_nothing(driven: Saver, conninfo: str) -> None:
    await put_chain(driven, 3)
    assert (await driven.aprune(["t"], older_than=timedelta.max)).threads == {}
    report = await driven.aprune_all(older_than=timedelta.max, effects_older_than=timedelta.max)
    assert report.removed.total_rows == 0
    assert counts(conninfo)["checkpoints"] == 3


# --- bad input ---


@pytest.mark.parametrize(
    "options",
    [
        {"strategy": "all"},
        {"strategy": None},
        {"keep_last": -1},
        {"keep_last": 0},
        {"keep_last": 1.5},
        {"keep_last": True},
        {"older_than": timedelta(seconds=-1)},
        {"older_than": datetime(2026, 1, 1)},
        {"older_than": 30},
        {"strategy": "delete", "keep_last": 1},
    ],
    ids=str,
)
async def test_invalid_policy_is_refused(driven: Saver, conninfo: str, options: Any) -> None:
    await put_chain(driven, 2)
    with pytest.raises(InvalidConfigError):
        await driven.aprune(["t"], **options)
    assert counts(conninfo)["checkpoints"] == 2


async def test_invalid_ids_are_refused(driven: Saver) -> None:
    for call in (driven.aprune, driven.adelete_for_runs):
        with pytest.raises(TypeError, match="sequence"):
            await call("t")
    assert (await driven.aprune([])).threads == {}
    assert (await driven.aprune(["unknown"])).threads == {}
    await driven.adelete_for_runs([])
    await put_chain(driven, 1)
    with pytest.raises(InvalidConfigError, match="itself"):
        await driven.acopy_thread("t", "t")
    with pytest.raises(InvalidConfigError, match="older_than"):
        await driven.aprune_all()
    with pytest.raises(InvalidConfigError, match="after"):
        await driven.aprune_all(keep_last=1, after="a\0b")
    with pytest.raises(InvalidConfigError, match="thread_id"):
        await driven.acopy_thread("t", "")


async def test_ids_with_special_characters_are_pruned(driven: Saver) -> None:
    odd = ['"', "\\", '\\"', "{}", "a,b", " ", "NULL", "null", "line\nline", "\u00e9", "last"]
    for number, id_ in enumerate(odd):
        made = checkpoint_with({"n": [number] * 99}, id=id_)
        stored = await put(driven, config_for("t"), checkpoint=made)
        await driven.aput_writes(stored, [("n", number)], "task")
    await driven.aprune(["t"])
    assert await listed_ids(driven, config_for("t")) == ["last"]


def test_failed_prune_leaves_a_given_connection_idle(conninfo: str) -> None:
    with psycopg.connect(conninfo, autocommit=True) as connection:
        saver = DurableSaver(connection)
        for number in range(2):
            made = checkpoint_with({"n": [number] * 99})
            saver.put(config_for("t"), made, {"source": "loop"}, made["channel_versions"])
        connection.execute(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'refused'; END $$"
        )
        connection.execute(
            "CREATE TRIGGER refuse BEFORE DELETE ON langgraph_durable.checkpoints EXECUTE FUNCTION refuse()"
        )
        before = counts(conninfo)
        with pytest.raises(PruneFailedError):
            saver.prune(["t"])
        assert connection.info.transaction_status == TransactionStatus.IDLE
        assert counts(conninfo) == before
        connection.execute("DROP TRIGGER refuse ON langgraph_durable.checkpoints")
        saver.prune(["t"])
        assert counts(conninfo)["checkpoints"] == 1

"""Segments in the database: sent, fetched, cached, damaged, encrypted and deleted."""

from __future__ import annotations

import copy
import threading
import tracemalloc
import zlib
from typing import Any

import psycopg
import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.types import _DeltaSnapshot

from langgraph_durable import DurableSaver
from langgraph_durable._segments import reading as _segment_reading
from langgraph_durable._segments import values as _segments
from langgraph_durable._segments.cache import SegmentCache
from langgraph_durable._segments.values import plan_segments
from langgraph_durable.errors import CheckpointCorruptedError, InvalidConfigError
from tests.checkpoints import checkpoint_with, config_for, get_values, put
from tests.drivers import Saver
from tests.integration.test_retention import counts
from tests.proxy import Proxy
from tests.samples import Driver, Observer, a_put, config


def conversation(length: int, start: int = 0) -> list[Any]:
    return [
        (HumanMessage, AIMessage)[i % 2](f"message {i}: " + f"so it goes {i}, " * 60, id=f"m{i}")
        for i in range(start, start + length)
    ]


LONG = conversation(300)


def hashes(conninfo: str, thread_id: str = "t") -> set[bytes]:
    with psycopg.connect(conninfo) as connection:
        query = "SELECT hash FROM langgraph_durable.segments WHERE thread_id = %s"
        return {hash_ for (hash_,) in connection.execute(query, (thread_id,))}


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many segments each put sends."""
    numbers: list[int] = []

    def plan(values: Any, known: set[bytes]) -> Any:
        planned = plan_segments(values, known)
        numbers.append(len(planned[0]))
        return planned

    monkeypatch.setattr("langgraph_durable._checkpoints.put.plan_segments", plan)
    return numbers


# --- what is sent and fetched ---


async def test_a_put_sends_only_the_segments_that_the_database_lacks(
    driven: Saver, conninfo: str, sent: list[int]
) -> None:
    stored = await put(driven, config_for("t"), {"messages": LONG})
    assert sent[-1] == len(hashes(conninfo)) > 50
    for length in range(301, 320):
        before = len(hashes(conninfo))
        stored = await put(driven, stored, {"messages": conversation(length)})
        assert sent[-1] == len(hashes(conninfo)) - before <= 2
    assert len(hashes(conninfo)) < 150
    await put(driven, stored, {"messages": [*LONG[:100], *LONG[101:]]})
    assert sent[-1] <= 4
    async with DurableSaver.from_conn_string(conninfo) as other:  # which knows nothing, until it has read
        await put(other, stored, {"messages": LONG})
        assert sent[-1] > 50
    async with DurableSaver.from_conn_string(conninfo) as other:
        await get_values(other, stored)
        await put(other, stored, {"messages": conversation(319)})
        assert sent[-1] == 0


async def test_a_get_fetches_only_segments_that_are_not_cached(
    conninfo: str, proxy: Proxy, drive: Driver
) -> None:
    async with (
        DurableSaver.from_conn_string(proxy.conninfo, max_size=1) as warm,
        DurableSaver.from_conn_string(proxy.conninfo, max_size=1) as cold,
    ):
        for saver in (warm, cold):  # all statements are prepared
            await drive(saver, "put", *a_put("other", {"messages": conversation(30)}))
            saver.durable_context.segments = SegmentCache(0)
            await drive(saver, "get", config("other"))
            await drive(saver, "list", config("other"))
            await drive(saver, "get_delta_channel_history", config=config("other"), channels=["messages"])
            saver.durable_context.segments = SegmentCache(1 << 20)

        async def trips(saver: DurableSaver, name: str, *args: Any, **options: Any) -> int:
            before = proxy.round_trips
            await drive(saver, name, *args, **options)
            return proxy.round_trips - before

        for step in range(20):
            grown = a_put(values={"messages": conversation(100 + step)}, step=step)
            assert await trips(warm, "put", *grown) == 1
            assert await trips(warm, "get", config()) == 1
        assert await trips(warm, "list", config()) == 1
        assert await trips(cold, "get", config()) == 2
        assert await trips(cold, "get", config()) == 1
        assert await trips(cold, "list", config()) == 1, "the older ones have nothing that the newest has not"
        cold.durable_context.segments = SegmentCache(0)
        assert await trips(cold, "list", config()) == 2, "a page at once"
        history = {"config": config(), "channels": ["messages"]}
        assert await trips(warm, "get_delta_channel_history", **history) == 1


async def test_a_page_fetches_each_segment_once(conninfo: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with DurableSaver.from_conn_string(conninfo) as saver:
        stored: Any = config_for("t")
        for length in range(100, 150):
            stored = await put(saver, stored, {"messages": conversation(length)})
    fetched: list[bytes] = []
    opened = _segments.open_segment

    def spy(hash_: bytes, *args: Any) -> bytes:
        fetched.append(hash_)
        return opened(hash_, *args)

    monkeypatch.setattr("langgraph_durable._segments.reading.open_segment", spy)
    async with DurableSaver.from_conn_string(conninfo, segment_cache_bytes=0) as saver:
        found = [t async for t in saver.alist(config_for("t"))]
    assert [len(t.checkpoint["channel_values"]["messages"]) for t in found] == [*range(149, 99, -1)]
    assert len(fetched) == len(set(fetched))
    assert set(fetched) == hashes(conninfo)


async def test_a_seed_stored_in_segments_is_read(driven: Saver, conninfo: str) -> None:
    seeded = await put(driven, config_for("t"), {"d": _DeltaSnapshot(LONG)})
    await driven.aput_writes(seeded, [("d", "more")], "task")
    child = checkpoint_with({}, channel_versions={"d": "0000000002.0"})
    stored = await driven.aput(seeded, child, {"counters_since_delta_snapshot": {"d": (1, 1)}}, {})
    await driven.aprune(["t"])
    assert counts(conninfo)["ancestors"] == 1
    async with DurableSaver.from_conn_string(conninfo) as cold:
        for saver in (driven, cold):
            history = (await saver.aget_delta_channel_history(config=stored, channels=["d"]))["d"]
            assert history["seed"] == _DeltaSnapshot(LONG)
            assert history["writes"] == [("task", "d", "more")]


# --- the cache ---


def test_clones_share_the_cache_and_its_bound_holds(conninfo: str) -> None:
    with DurableSaver.from_conn_string(conninfo, segment_cache_bytes=40_000) as saver:
        clone: Any = copy.copy(saver)
        assert clone is not saver
        assert clone.durable_context.segments is saver.durable_context.segments
        cache = saver.durable_context.segments
        cache.add({bytes([n]): b"x" * 1000 for n in range(200)})
        kept = cache.find([bytes([n]) for n in range(200)])
        assert list(kept) == [bytes([n]) for n in range(175, 200)], (
            "the last ones, for three quarters of the bound"
        )
        cache.find([bytes([176])])
        cache.add({b"new": b"y" * 1000})
        assert cache.find([bytes([175]), bytes([176])]).keys() == {bytes([176])}, (
            "the least recently used goes first"
        )
        cache.add({b"huge": b"z" * 50_000})
        assert not cache.find([b"huge"])
        assert len(cache.find([bytes([n]) for n in range(200)])) == 24, (
            "one that is too large drives out none"
        )


def test_known_hashes_are_bounded_too() -> None:
    cache = SegmentCache(4 * 3 * (512 + 30 * 128))
    for thread in range(10):
        cache.note(f"t{thread}", [bytes([thread, n]) for n in range(30)])
    assert [len(cache.known(f"t{thread}")) for thread in range(10)] == [0] * 7 + [30] * 3
    cache.known("t7").clear()
    assert len(cache.known("t7")) == 30, "what is returned is the caller's own"
    cache.forget("t7")
    cache.forget("unknown")
    cache.note("t0", [bytes([n]) for n in range(30)])
    assert [len(cache.known(f"t{thread}")) for thread in (0, 7, 8, 9)] == [30, 0, 30, 30]
    cache.note("t1", [bytes([1, n]) for n in range(200)])
    assert not any(cache.known(f"t{thread}") for thread in range(10)), "one alone that is too much"
    for thread in range(1000):
        cache.note(f"t{thread}", [])
    assert not cache._known, "a thread without segments takes nothing"


def test_the_cache_is_safe_across_threads() -> None:
    cache = SegmentCache(100_000)
    failures: list[BaseException] = []

    def use(seed: int) -> None:
        try:
            for n in range(3000):
                key = bytes([(seed * n) % 251, n % 7])
                cache.add({key: key * 400})
                assert all(
                    data == hash_ * 400 for hash_, data in cache.find([key, bytes([n % 251, 3])]).items()
                )
                cache.note(f"t{n % 5}", [key])
                assert len(cache.known(f"t{n % 5}")) >= 0
                if n % 97 == 0:
                    cache.forget(f"t{n % 5}")
        except BaseException as exc:
            failures.append(exc)

    threads = [threading.Thread(target=use, args=(seed,)) for seed in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert cache._left == 75_000 - sum(len(data) + 200 for data in cache._segments.values())
    assert cache._known_left == 25_000 - sum(512 + 128 * len(known) for known in cache._known.values())


@pytest.mark.parametrize("size", [-1, 1.5, True, "64 MB"])
def test_an_invalid_cache_size_is_refused(conninfo: str, size: Any) -> None:
    with pytest.raises(InvalidConfigError, match="segment_cache_bytes"):
        DurableSaver.from_conn_string(conninfo, segment_cache_bytes=size)


# --- others prune meanwhile ---


async def test_segments_pruned_by_another_process_are_sent_again(
    driven: Saver, conninfo: str, sent: list[int]
) -> None:
    stored = await put(driven, config_for("t"), {"messages": LONG, "b": {"files": LONG}})
    stored = await put(driven, stored, {"messages": ["short"]})
    async with DurableSaver.from_conn_string(conninfo) as other:
        report = await other.aprune(["t"])
    assert report.total.rows["segments"] > 50
    assert report.total.bytes["segments"] > 10_000
    assert not hashes(conninfo)
    stored = await put(driven, stored, {"messages": LONG, "b": {"files": LONG}})
    assert sent[-1] > 50
    async with DurableSaver.from_conn_string(conninfo) as other:
        assert await get_values(other, stored) == {"messages": LONG, "b": {"files": LONG}}


async def test_segments_deleted_by_another_process_are_sent_again(driven: Saver, conninfo: str) -> None:
    await put(driven, config_for("t"), {"messages": LONG})
    async with DurableSaver.from_conn_string(conninfo) as other:
        await other.adelete_thread("t")
        assert not hashes(conninfo)
        stored = await put(driven, config_for("t"), {"messages": LONG})
        assert await get_values(other, stored) == {"messages": LONG}


async def test_a_read_is_repeated_after_a_prune_between_its_two_queries(
    driven: Saver, conninfo: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await put(driven, config_for("t"), {"messages": LONG})
    fill = _segment_reading.fill_values
    pruned: list[bool] = []

    async def late(db: Any, reader: Any, values: Any) -> set[str]:
        if not pruned:
            pruned.append(True)
            with DurableSaver.from_conn_string(conninfo) as other:
                new = checkpoint_with({"messages": LONG[150:]})
                other.put(first, new, {"source": "loop", "step": 1}, new["channel_versions"])
                other.prune(["t"])
        return await fill(db, reader, values)

    monkeypatch.setattr("langgraph_durable._checkpoints.read.fill_values", late)
    async with DurableSaver.from_conn_string(conninfo) as cold:
        assert await get_values(cold, config_for("t")) == {"messages": LONG[150:]}
        assert pruned
        pruned.clear()
        cold.durable_context.segments = SegmentCache(0)
        assert [t.checkpoint["channel_values"] async for t in cold.alist(config_for("t"))] == [
            {"messages": LONG[150:]}
        ]
        assert await cold.aget_tuple(first) is None


# --- damage ---


@pytest.fixture
def damaged(conninfo: str, observer: Observer) -> Any:
    """Changes segments of a thread with two checkpoints, the newer of which has no segments, and reads it anew."""
    with DurableSaver.from_conn_string(conninfo) as saver:
        checkpoint = checkpoint_with({"messages": conversation(100)})
        first = saver.put(config_for("t"), checkpoint, {}, checkpoint["channel_versions"])
        short = checkpoint_with({"messages": ["short"]})
        saver.put(first, short, {}, short["channel_versions"])

    def damage(statement: str) -> Any:
        observer.rows(statement)
        with DurableSaver.from_conn_string(conninfo) as saver:
            found = saver.list(config_for("t"))
            assert next(found).checkpoint["channel_values"] == {"messages": ["short"]}, "others can be read"
            with pytest.raises(CheckpointCorruptedError) as caught:
                next(found)
            with pytest.raises(CheckpointCorruptedError):
                saver.get(first)
            with pytest.raises(CheckpointCorruptedError):
                saver.get_delta_channel_history(config=config_for("t"), channels=["messages"])
            return str(caught.value)

    return damage


SEGMENTS = "langgraph_durable.segments WHERE get_byte(hash, 0) = "


@pytest.mark.parametrize("kind", [0, 1])
def test_a_missing_segment_is_named(damaged: Any, kind: int) -> None:
    told = damaged(f"DELETE FROM {SEGMENTS} {kind}")
    assert "segment 0" in told
    assert "of thread 't': it is not stored" in told
    assert "channel 'messages'" in told


@pytest.mark.parametrize("kind", [0, 1])
@pytest.mark.parametrize(
    "change",
    [
        "data || '\\x00'",
        "substr(data, 1, length(data) - 1)",
        "''::bytea",
        "set_byte(data, 9, 255 - get_byte(data, 9))",
    ],
)
def test_a_damaged_segment_is_named(damaged: Any, kind: int, change: str) -> None:
    told = damaged(f"UPDATE langgraph_durable.segments SET data = {change} WHERE get_byte(hash, 0) = {kind}")
    assert "segment 0" in told
    assert "of thread 't'" in told


@pytest.mark.parametrize("change", ["NULL", "''", "'\\xff'", "substr(data, 1, 5)"])
def test_a_damaged_tail_is_named(damaged: Any, change: str) -> None:
    update = f"UPDATE langgraph_durable.channel_values SET data = {change} WHERE segments IS NOT NULL"
    assert "channel 'messages'" in damaged(update)


@pytest.mark.parametrize(
    "change", ["segments[2:]", "segments || segments", "'{\"\"}'", "'{}'", "ARRAY['\\x01'::bytea]"]
)
def test_damaged_hashes_are_named(damaged: Any, change: str) -> None:
    damaged(f"UPDATE langgraph_durable.channel_values SET segments = {change} WHERE segments IS NOT NULL")


@pytest.mark.parametrize("damage", ["a segment's zeros", "a tail's zeros", "one segment's name"])
def test_rows_that_expand_beyond_their_claimed_size_are_refused(damaged: Any, damage: str) -> None:
    packed = (1000).to_bytes(4, "big") + zlib.compress(bytes(100 << 20))
    values = "langgraph_durable.channel_values"
    statement = {
        "a segment's zeros": f"UPDATE langgraph_durable.segments SET data = '\\x01{packed.hex()}' "
        "WHERE get_byte(hash, 0) = 0",
        "a tail's zeros": f"UPDATE {values} SET data = substr(data, 1, 6) || '\\x83{packed.hex()}' "
        "WHERE segments IS NOT NULL",
        "one segment's name": f"UPDATE {values} SET segments = array(SELECT hash FROM generate_series(1, 100000), "
        "(SELECT hash FROM langgraph_durable.segments WHERE get_byte(hash, 0) = 0 LIMIT 1) AS s) "
        "WHERE segments IS NOT NULL",
    }[damage]
    tracemalloc.start()
    try:
        damaged(statement)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 64 << 20


# --- encryption ---

SECRET = "s3cret-w0rd"
KEY = b"a separate secret, 32 bytes long"


def encrypted(conninfo: str, **options: Any) -> DurableSaver:
    serde = EncryptedSerializer.from_pycryptodome_aes(key=b"0123456789abcdef")
    return DurableSaver.from_conn_string(conninfo, serde=serde, **options)


SECRETS = [HumanMessage(f"{SECRET} {i} " * 100, id=str(i)) for i in range(100)]


async def test_encrypted_values_are_whole_without_a_segment_key(conninfo: str) -> None:
    async with encrypted(conninfo) as saver:
        stored = await put(saver, config_for("t"), {"messages": SECRETS})
        assert await get_values(saver, stored) == {"messages": SECRETS}
    assert not hashes(conninfo)


async def test_segments_are_keyed_and_encrypted_with_a_segment_key(conninfo: str) -> None:
    values = {"messages": SECRETS, "broken": [*["\ud800 ?" * 500] * 20, SECRET], "small": SECRET}
    async with encrypted(conninfo, segment_key=KEY) as saver, encrypted(conninfo, segment_key=KEY) as cold:
        stored = await put(saver, config_for("t"), values)
        for reader in (saver, cold):
            assert await get_values(reader, stored) == values
            assert [t.checkpoint["channel_values"] async for t in reader.alist(stored)] == [values]
        grown = {"messages": [*SECRETS, *conversation(1)]}
        before = len(hashes(conninfo))
        assert before > 10
        assert await get_values(cold, await put(saver, stored, grown)) == grown
        assert len(hashes(conninfo)) - before <= 2
    async with encrypted(conninfo, segment_key=KEY[::-1]) as other:
        await put(other, config_for("other"), values)
        with pytest.raises(CheckpointCorruptedError, match="do not match its hash"):
            await get_values(other, stored)
    async with DurableSaver.from_conn_string(conninfo) as plain:
        await put(plain, config_for("plain"), values)
        with pytest.raises(CheckpointCorruptedError, match="another serializer or key"):
            await get_values(plain, stored)
    async with encrypted(conninfo) as keyless:
        assert await get_values(keyless, config_for("plain")) == values
        with pytest.raises(CheckpointCorruptedError, match="segment_key"):
            await get_values(keyless, stored)
    async with encrypted(conninfo, segment_key=KEY) as saver:
        assert await get_values(saver, config_for("plain")) == values
    tails = [{hash_[1:] for hash_ in hashes(conninfo, thread)} for thread in ("t", "other", "plain")]
    assert not tails[0] & tails[1]
    assert not tails[0] & tails[2]
    with psycopg.connect(conninfo) as connection:
        for table in ("segments", "channel_values"):
            rows = connection.execute(
                f"SELECT * FROM langgraph_durable.{table} WHERE thread_id = 't'"
            ).fetchall()
            stored_bytes = b"".join(v for row in rows for v in row if isinstance(v, bytes))
            assert len(stored_bytes) > 1000
            assert SECRET.encode() not in stored_bytes
            assert b"HumanMessage" not in stored_bytes


async def test_a_saver_with_a_segment_key_reads_what_was_stored_without(conninfo: str) -> None:
    async with DurableSaver.from_conn_string(conninfo) as before:
        stored = await put(before, config_for("t"), {"messages": LONG})
    async with DurableSaver.from_conn_string(conninfo, segment_key=KEY) as after:
        assert await get_values(after, stored) == {"messages": LONG}
        await put(after, stored, {"messages": LONG})
    assert {hash_[0] for hash_ in hashes(conninfo)} == {0, 1, 2, 3}


@pytest.mark.parametrize("key", ["k" * 32, b"short", b"k" * 65, 7])
def test_an_invalid_segment_key_is_refused(conninfo: str, key: Any) -> None:
    with pytest.raises(InvalidConfigError, match="segment_key") as caught:
        DurableSaver.from_conn_string(conninfo, segment_key=key)
    assert str(key) not in str(caught.value) or key == 7


# --- what is freed ---


async def test_prune_deletes_segments_that_no_value_names(driven: Saver, conninfo: str) -> None:
    stored = await put(driven, config_for("t"), {"messages": LONG, "kept": LONG[:50]})
    shared = checkpoint_with({"messages": LONG[40:60], "kept": LONG[:50]})
    stored = await driven.aput(stored, shared, {}, shared["channel_versions"])
    await put(driven, config_for("other"), {"messages": LONG})
    others = hashes(conninfo, "other")
    dry = await driven.aprune(["t"], dry_run=True)
    report = await driven.aprune(["t"])
    assert report.threads == dry.threads
    assert report.total.rows["segments"] > 30
    assert hashes(conninfo, "other") == others
    async with DurableSaver.from_conn_string(conninfo) as cold:
        assert await get_values(cold, stored) == {"messages": LONG[40:60], "kept": LONG[:50]}
        await cold.acopy_thread("t", "copy")
        assert hashes(conninfo, "copy") == hashes(conninfo)
        receipt = await cold.adelete_thread("t")
        assert receipt.removed.rows["segments"] == len(hashes(conninfo, "copy"))
        assert not hashes(conninfo)
        assert await get_values(cold, config_for("copy")) == {"messages": LONG[40:60], "kept": LONG[:50]}
    async with DurableSaver.from_conn_string(conninfo) as cold:
        assert await get_values(cold, config_for("copy")) == {"messages": LONG[40:60], "kept": LONG[:50]}

"""Listing: filters, pages, and concurrent changes."""

from __future__ import annotations

import gc
import random
import tracemalloc
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from psycopg.types.json import Jsonb

from langgraph_durable import DurableSaver
from langgraph_durable._checkpoints import listing as _listing
from langgraph_durable._checkpoints.decoding import decode_checkpoint
from langgraph_durable._checkpoints.listing import PAGE_SIZE, filter_matches
from langgraph_durable.errors import CheckpointCorruptedError
from tests.checkpoints import checkpoint_with, config_for, listed_ids, put
from tests.drivers import Saver


async def put_chain(saver: Saver, count: int, thread_id: str = "t", ns: str = "") -> list[str]:
    """Put checkpoints, each the parent of the next, and return their ids, newest first."""
    config = config_for(thread_id, checkpoint_ns=ns)
    ids: list[str] = []
    for step in range(count):
        metadata: Any = {
            "source": "input" if step % 3 == 0 else "loop",
            "step": step,
            "none": None,
            "nested": {"a": {"b": step % 2}, "list": [1, {"c": step}]},
        }
        config = await put(saver, config, {"n": [step]}, metadata=metadata)
        ids.insert(0, config["configurable"]["checkpoint_id"])
    return ids


@pytest.mark.parametrize(
    ("wanted", "steps"),
    [
        ({}, [6, 5, 4, 3, 2, 1, 0]),
        ({"source": "input"}, [6, 3, 0]),
        ({"source": "input", "step": 3}, [3]),
        ({"step": 3.0}, [3]),
        ({"none": None}, [6, 5, 4, 3, 2, 1, 0]),
        ({"absent": None}, []),
        ({"source": None}, []),
        ({"nested": {"a": {"b": 1}}}, [5, 3, 1]),
        ({"nested": {"list": [{"c": 4}]}}, [4]),
        ({"nested": {"list": [1]}, "source": "loop"}, [5, 4, 2, 1]),
        ({"nested": {}}, [6, 5, 4, 3, 2, 1, 0]),
        ({"step": "3"}, []),
        ({"step": True}, []),
        ({"source": "lo\0op"}, []),
        ({"source": "\ud800"}, []),
    ],
)
async def test_a_filter_selects_checkpoints_by_their_metadata(
    driven: Saver, wanted: dict[str, Any], steps: list[int]
) -> None:
    await put_chain(driven, 7)
    found = [t.metadata["step"] async for t in driven.alist(config_for("t"), filter=wanted)]
    assert found == steps


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 5)
    | st.sampled_from(["a", "b", ""])
    | st.sampled_from([1.0, 0.5]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)


@pytest.fixture(scope="module")
def connection(server: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(server, autocommit=True) as connection:
        yield connection


@settings(max_examples=300, deadline=None)
@given(
    metadata=st.dictionaries(st.sampled_from("abc"), JSON),
    wanted=st.dictionaries(st.sampled_from("abc"), JSON),
)
def test_a_filter_matches_as_jsonb_containment_does(
    connection: psycopg.Connection[Any], metadata: dict[str, Any], wanted: dict[str, Any]
) -> None:
    row = connection.execute("SELECT %s::jsonb @> %s::jsonb", (Jsonb(metadata), Jsonb(wanted))).fetchone()
    assert row == (filter_matches(metadata, wanted),)


async def test_limit_and_before_combine(driven: Saver) -> None:
    ids = await put_chain(driven, 6)
    before = config_for("t", ids[1])
    assert await listed_ids(driven, config_for("t"), limit=0) == []
    assert await listed_ids(driven, config_for("t"), limit=2) == ids[:2]
    assert await listed_ids(driven, config_for("t"), before=before) == ids[2:]
    assert await listed_ids(driven, config_for("t"), before=before, limit=2) == ids[2:4]
    assert await listed_ids(driven, config_for("t"), before=before, limit=99) == ids[2:]
    assert await listed_ids(driven, config_for("t"), filter={"source": "input"}, limit=1) == [ids[2]]
    assert await listed_ids(driven, None, before=before) == ids[2:]
    only_an_id = {"configurable": {"checkpoint_id": ids[3]}}
    assert await listed_ids(driven, config_for("t"), before=only_an_id) == ids[4:]


async def test_a_listing_is_limited_to_its_thread_and_namespace(driven: Saver) -> None:
    root = await put_chain(driven, 3)
    child = await put_chain(driven, 3, ns="child:1")
    other = await put_chain(driven, 2, thread_id="other")
    without_namespace: Any = {"configurable": {"thread_id": "t"}}
    assert await listed_ids(driven, without_namespace) == child + root
    assert await listed_ids(driven, config_for("t")) == root
    assert await listed_ids(driven, config_for("t", checkpoint_ns="child:1")) == child
    assert await listed_ids(driven, None) == other + child + root
    assert await listed_ids(driven, {"configurable": {"thread_id": "t", "checkpoint_id": child[1]}}) == [
        child[1]
    ]
    assert await listed_ids(driven, config_for("t", child[1])) == []


@pytest.mark.parametrize("count", [63, 64, 65, 130])
async def test_pages_neither_skip_nor_repeat_checkpoints(driven: Saver, count: int) -> None:
    ids = await put_chain(driven, count)
    assert await listed_ids(driven, config_for("t")) == ids
    assert await listed_ids(driven, None) == ids
    assert (
        await listed_ids(driven, config_for("t"), filter={"source": "input"})
        == [i for step, i in enumerate(reversed(ids)) if step % 3 == 0][::-1]
    )


async def test_yielded_checkpoints_share_nothing_mutable(driven: Saver) -> None:
    checkpoint = checkpoint_with({"shared": [1]})
    config = await put(driven, config_for("t"), checkpoint=checkpoint)
    second = checkpoint_with({"shared": [1]}, channel_versions=checkpoint["channel_versions"])
    await put(driven, config, checkpoint=second)
    one, other = [t async for t in driven.alist(config_for("t"))]
    one.checkpoint["channel_values"]["shared"].append(2)
    assert other.checkpoint["channel_values"]["shared"] == [1]


@pytest.mark.parametrize("driver", ["sync", "async"])
async def test_a_listing_holds_no_connection_between_checkpoints(conninfo: str, driver: str) -> None:
    async with DurableSaver.from_conn_string(conninfo, max_size=1, pool_timeout=5) as saver:
        ids = await put_chain(saver, 70)
        if driver == "sync":
            for found in saver.list(config_for("t")):
                assert saver.get_tuple(found.config) == found
                saver.put_writes(found.config, [("a", 1)], "task")
        else:
            async for found in saver.alist(config_for("t")):
                assert await saver.aget_tuple(found.config) == found
                await saver.aput_writes(found.config, [("a", 1)], "task")
        assert await listed_ids(saver, config_for("t")) == ids


async def test_a_listing_ends_after_its_page_when_its_thread_is_deleted(driven: Saver) -> None:
    await put_chain(driven, 70)
    seen = 0
    async for _ in driven.alist(config_for("t")):
        seen += 1
        if seen == 1:
            await driven.adelete_thread("t")
    assert seen == PAGE_SIZE


def test_a_long_listing_holds_one_page_in_memory(
    saver: DurableSaver, conninfo: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = checkpoint_with({"large": ["x" * 2000]})
    saver.put(config_for("t"), checkpoint, {"source": "loop", "step": 0}, checkpoint["channel_versions"])
    with psycopg.connect(conninfo) as connection:
        # 10,000 like it, each with its own value. Their bodies name another id, since only the keys matter here.
        connection.execute("""
            INSERT INTO langgraph_durable.channel_values
            SELECT thread_id, checkpoint_ns, channel, version || '-' || i, type, data, segments
            FROM langgraph_durable.channel_values, generate_series(1, 10000) i""")
        connection.execute("""
            INSERT INTO langgraph_durable.checkpoints
            SELECT thread_id, checkpoint_ns, checkpoint_id || '-' || i, gen_random_uuid(), created_at,
                NULL, NULL, NULL, format, type, checkpoint, metadata_type, metadata, metadata_index,
                value_channels, ARRAY[value_versions[1] || '-' || i], NULL
            FROM langgraph_durable.checkpoints, generate_series(1, 10000) i""")
        connection.execute("ANALYZE langgraph_durable.checkpoints, langgraph_durable.channel_values")

    def decode(serde: Any, stored: Any) -> Any:
        stored.checkpoint_id = checkpoint["id"]
        return decode_checkpoint(serde, stored)

    monkeypatch.setattr(_listing, "decode_checkpoint", decode)
    walked = 0
    tracemalloc.start()
    try:
        for found in saver.list(config_for("t")):
            assert found.checkpoint["channel_values"] == {"large": ["x" * 2000]}
            walked += 1
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert walked == 10_001
    assert peak < 4 * PAGE_SIZE * 4000  # bytes; all of it would be 40 MB


# --- decoded some at a time ---


async def test_the_size_of_decoding_batches_does_not_change_a_listing(
    driven: Saver, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = await put_chain(driven, 9)
    for at_once in (1, 1000, 1 << 30):
        monkeypatch.setattr(_listing, "_BATCH_BYTES", at_once)
        assert await listed_ids(driven, config_for("t")) == ids
        assert await listed_ids(driven, config_for("t"), limit=4) == ids[:4]
        decided_there: dict[str, Any] = {"source": "input"}
        decided_here = {"nested": {"a": {"b": 0}}, "source": "input"}
        for wanted, steps in ((decided_there, [6, 3]), (decided_here, [6, 0])):
            listed = driven.alist(config_for("t"), filter=wanted, limit=2)
            assert [t.metadata["step"] async for t in listed] == steps


async def test_checkpoints_before_a_damaged_one_are_listed(driven: Saver, conninfo: str) -> None:
    ids = await put_chain(driven, 6)
    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute(
            "UPDATE langgraph_durable.checkpoints SET checkpoint = '\\xc1' WHERE checkpoint_id = %s", [ids[4]]
        )
    found = []
    with pytest.raises(CheckpointCorruptedError, match=ids[4]):
        async for listed in driven.alist(config_for("t")):
            found.append(listed.checkpoint["id"])
    assert found == ids[:4]


@pytest.mark.parametrize("enabled", [True, False])
async def test_a_listing_leaves_the_garbage_collector_as_it_was(
    driven: Saver, conninfo: str, enabled: bool
) -> None:
    ids = await put_chain(driven, 6)
    if not enabled:
        gc.disable()
    try:
        async for _ in driven.alist(config_for("t")):
            assert gc.isenabled() is enabled
            break
        with psycopg.connect(conninfo, autocommit=True) as connection:
            connection.execute(
                "UPDATE langgraph_durable.checkpoints SET checkpoint = '\\xc1' WHERE checkpoint_id = %s",
                [ids[0]],
            )
        with pytest.raises(CheckpointCorruptedError):
            await listed_ids(driven, config_for("t"))
        assert gc.isenabled() is enabled
    finally:
        gc.enable()


def test_large_pending_writes_are_decoded_a_few_at_a_time(
    saver: DurableSaver, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_for("t")
    for step in range(8):
        checkpoint = checkpoint_with({"n": step})
        config = saver.put(
            config, checkpoint, {"source": "loop", "step": step}, checkpoint["channel_versions"]
        )
        saver.put_writes(config, [("n", random.randbytes(200_000))], "task")
    decoded = []

    def decode(serde: Any, stored: Any) -> Any:
        decoded.append(stored.checkpoint_id)
        return decode_checkpoint(serde, stored)

    monkeypatch.setattr(_listing, "decode_checkpoint", decode)
    listing = saver.list(config_for("t"))
    next(listing)
    assert len(decoded) == 2
    assert len([*listing]) == 7

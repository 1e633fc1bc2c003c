"""The order of checkpoints: ULIDs, clocks that disagree, parents and imports."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

import pytest
from langgraph.checkpoint.base.id import UUID, uuid6
from ulid import ULID

from langgraph_durable import DurableSaver
from tests.checkpoints import checkpoint_with, config_for, listed_ids, put
from tests.drivers import Saver

HOUR_IN_TICKS = 3600 * 10_000_000


def id_of_a_clock_running(ahead_by_hours: float) -> str:
    """An id as the runtime makes it, on a machine whose clock is off."""
    now = uuid6(clock_seq=1)
    time = now.time + int(ahead_by_hours * HOUR_IN_TICKS)
    node_and_sequence = now.int & 0xFFFF_FFFF_FFFF_FFFF
    return str(UUID(int=time >> 12 << 80 | (time & 0xFFF) << 64 | node_and_sequence, version=6))


async def latest_id(saver: Saver, config: Any) -> str:
    found = await saver.aget_tuple(config)
    assert found is not None
    return found.checkpoint["id"]


@pytest.mark.parametrize("hours", [-1.0, -1e-7, 0.0, 1.0])
async def test_a_child_is_newer_than_its_parent_whatever_the_clock(driven: Saver, hours: float) -> None:
    config = config_for("t")
    stored = await put(driven, config, checkpoint=checkpoint_with(id=id_of_a_clock_running(0)))
    put_ids = [stored["configurable"]["checkpoint_id"]]
    for _ in range(3):
        stored = await put(driven, stored, checkpoint=checkpoint_with(id=id_of_a_clock_running(hours)))
        put_ids.append(stored["configurable"]["checkpoint_id"])
        assert await latest_id(driven, config) == put_ids[-1]
    assert await listed_ids(driven, config) == put_ids[::-1]
    assert await listed_ids(driven, config, before=config_for("t", put_ids[2])) == put_ids[1::-1]


async def test_a_fork_is_the_latest_however_old_its_parent(driven: Saver) -> None:
    config = config_for("t")
    first = await put(driven, config)
    await put(driven, await put(driven, first))
    fork = await put(driven, first, checkpoint=checkpoint_with(id=id_of_a_clock_running(-5)))
    assert await latest_id(driven, config) == fork["configurable"]["checkpoint_id"]


async def test_an_imported_checkpoint_keeps_the_place_of_its_id(driven: Saver) -> None:
    config = config_for("t")
    new = await put(driven, config, checkpoint=checkpoint_with(id=id_of_a_clock_running(0)))
    old = await put(driven, config, checkpoint=checkpoint_with(id=id_of_a_clock_running(-2)))
    orphan_config = config_for("t", checkpoint_id=str(uuid4()))
    between = await put(driven, orphan_config, checkpoint=checkpoint_with(id=id_of_a_clock_running(-1)))
    ids = [c["configurable"]["checkpoint_id"] for c in (new, between, old)]
    assert await listed_ids(driven, config) == ids


async def test_a_second_put_of_an_id_replaces_it_in_its_place(driven: Saver) -> None:
    config = config_for("t")
    first = await put(driven, config, {"a": [1]})
    kept = checkpoint_with({"a": [2]})
    second = await put(driven, first, checkpoint=kept)
    third = await put(driven, second, {"a": [3]})
    before = [await driven.aget_ulid(c) for c in (first, second, third)]
    kept["channel_values"] = {"a": [22]}
    kept["channel_versions"] = {"a": "0000000002.0"}
    await put(
        driven, second, checkpoint=kept, metadata={"source": "fork", "step": 9}
    )  # as exit durability does
    assert [await driven.aget_ulid(c) for c in (first, second, third)] == before
    found = await driven.aget_tuple(second)
    assert found is not None
    assert found.checkpoint == kept
    assert found.metadata["step"] == 9
    assert found.parent_config == first


async def test_a_ulid_is_accepted_wherever_an_id_is(driven: Saver) -> None:
    config = config_for("t")
    stored = [await put(driven, config, {"n": [0]})]
    for n in range(1, 4):
        stored.append(await put(driven, stored[-1], {"n": [n]}))
    ulids = [await driven.aget_ulid(c) for c in stored]
    assert all(ulid is not None and str(ULID.from_str(ulid)) == ulid for ulid in ulids)
    assert ulids == sorted(ulids, key=str)
    by_ulid = config_for("t", ulids[1])
    found = await driven.aget_tuple(by_ulid)
    assert found is not None
    assert found.config == stored[1]  # the config names it by the runtime's own id
    assert found == await driven.aget_tuple(stored[1])
    assert await listed_ids(driven, by_ulid) == [found.checkpoint["id"]]
    assert await listed_ids(driven, config, before=by_ulid) == [stored[0]["configurable"]["checkpoint_id"]]
    await driven.aput_writes(by_ulid, [("n", 5)], "task")
    found = await driven.aget_tuple(stored[1])
    assert found is not None
    assert found.pending_writes == [("task", "n", 5)]
    child = await driven.aget_tuple(await put(driven, by_ulid))
    assert child is not None
    assert child.parent_config == stored[1]


async def test_an_id_that_is_a_ulid_is_its_own_place(driven: Saver) -> None:
    config, own = config_for("t"), ULID()
    stored = await put(driven, config, checkpoint=checkpoint_with(id=str(own)))
    assert await driven.aget_ulid(stored) == str(own)
    found = await driven.aget_tuple(stored)
    assert found is not None
    assert found.checkpoint["id"] == str(own)


async def test_two_ids_with_one_ulid_get_different_places(driven: Saver) -> None:
    config = config_for("t")
    first = await put(driven, config)
    ulid = await driven.aget_ulid(first)
    second = await put(driven, config, checkpoint=checkpoint_with(id=ulid))  # its id is the other's place
    assert await driven.aget_ulid(second) != ulid
    assert await latest_id(driven, config) == ulid


async def test_ids_without_a_time_are_placed_by_the_servers_clock(driven: Saver) -> None:
    config = config_for("t")
    stored = await put(driven, config, checkpoint=checkpoint_with(id="one"))
    for name in ("two", "a fourth", str(uuid4())):
        stored = await put(driven, stored, checkpoint=checkpoint_with(id=name))
    ids = await listed_ids(driven, config)
    assert ids[1:] == ["a fourth", "two", "one"]
    place = await driven.aget_ulid(config)
    assert place is not None
    assert abs(ULID.from_str(place).timestamp - ULID().timestamp) < 60


async def test_ids_without_a_time_keep_the_order_of_their_puts_within_a_millisecond(driven: Saver) -> None:
    config = config_for("t")
    put_ids = [f"{number * 7919 % 100:02}" for number in range(100)]
    for id_ in put_ids:
        await put(driven, config, checkpoint=checkpoint_with(id=id_))
    assert await listed_ids(driven, config) == put_ids[::-1]


async def test_unknown_ids_find_nothing(driven: Saver) -> None:
    await put(driven, config_for("t"))
    for unknown in ("nope", str(uuid6()), str(ULID())):
        assert await driven.aget_tuple(config_for("t", unknown)) is None
        assert await driven.aget_ulid(config_for("t", unknown)) is None
        assert await listed_ids(driven, config_for("t", unknown)) == []
    assert await driven.aget_tuple(config_for("another")) is None


async def test_concurrent_puts_in_one_namespace_get_different_ulids(saver: DurableSaver) -> None:
    first = await put(saver, config_for("t"), checkpoint=checkpoint_with(id=id_of_a_clock_running(1)))
    children = [
        checkpoint_with() for _ in range(40)
    ]  # all of a clock behind: each needs the head's successor
    await asyncio.gather(*(put(saver, first, checkpoint=child) for child in children))
    listed = await listed_ids(saver, config_for("t"))
    assert sorted(listed[:-1]) == sorted(child["id"] for child in children)
    assert listed[-1] == first["configurable"]["checkpoint_id"]


def test_versions_grow_differ_between_branches_and_keep_another_savers_form(saver: DurableSaver) -> None:
    version = None
    seen = []
    for _ in range(200):
        version = saver.get_next_version(version, None)
        seen.append(version)
    assert seen == sorted(seen)
    assert len({saver.get_next_version(seen[0], None) for _ in range(1000)}) == 1000
    official = "00000000000000000000000000000009.0.5436434"
    assert official < saver.get_next_version(official, None)
    assert saver.get_next_version(official, None).startswith("00000000000000000000000000000010.")
    for number in (9, 9.25):
        following = saver.get_next_version(number, None)
        assert number < following < 11
        assert following != saver.get_next_version(number, None)


@pytest.mark.parametrize("hours", [-1.0, 0.0, 1.0])
async def test_the_order_of_root_and_subgraph_checkpoints_survives_clock_skew(
    driven: Saver, hours: float
) -> None:
    """As the runtime asks when it replays: the subgraph's checkpoints before one of the root's."""

    async def step(config: Any, ahead: float, metadata: Any) -> Any:
        checkpoint = checkpoint_with(id=id_of_a_clock_running(ahead))
        return await put(driven, config, checkpoint=checkpoint, metadata=metadata)

    namespace = config_for("t", checkpoint_ns="sub")
    roots = [await step(config_for("t"), 0, {"source": "input"})]
    subs: list[Any] = []
    for ahead in (0, hours, hours, hours):
        parents = {"parents": {"": roots[-1]["configurable"]["checkpoint_id"]}}
        subs.append(await step(subs[-1] if subs else namespace, ahead, {"source": "loop"} | parents))
        roots.append(await step(roots[-1], ahead, {"source": "loop"}))
    for number, root in enumerate(roots):
        before: Any = {"configurable": {"checkpoint_id": root["configurable"]["checkpoint_id"]}}
        expected = [s["configurable"]["checkpoint_id"] for s in subs[:number]][::-1]
        assert await listed_ids(driven, namespace, before=before) == expected
